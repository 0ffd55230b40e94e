"""Settings: given before environment before file before default; mistakes name their place; all of them documented."""

import json
import logging
import os
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import PydanticUndefined

from pipelines.errors import DataError
from pipelines.service import serve
from serving.settings import ENDED, Settings
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "service" / "settings.md").read_text(encoding="utf-8")
OTHER_CASES = {"request_timeout_s": 2.5, "http": "h11", "log_format": "text", "access_log": "all", "log_level": "debug"}


def rows() -> dict[str, str]:
    """Of the page's tables of settings: name to default."""
    found = re.findall(r"^\| `([a-z_]+)` \| (.+?) \| .+ \|$", PAGE, re.MULTILINE)
    assert len(found) == len(dict(found)), "a setting has two rows"
    return dict(found)


def shown(default: Any) -> str:
    if default is PydanticUndefined:
        return "required"
    if default is None:
        return "none"
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"


def test_the_page_has_every_setting_with_its_default_and_no_other() -> None:
    assert rows() == {name: shown(field.default) for name, field in Settings.model_fields.items()}


def test_every_option_of_serve_that_the_page_names_is_one() -> None:
    from pipelines.cli.serve import serve as words

    line = next(line for line in PAGE.splitlines() if line.startswith("1. an option"))
    options = set(re.findall(r"`--([a-z]+)`", line))
    assert options == set(words.__annotations__) - {"return"} <= Settings.model_fields.keys()


@pytest.mark.parametrize("name", sorted(Settings.model_fields.keys() - {"bundle", "config"}))
def test_every_setting_comes_from_its_variable(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    default = Settings.model_fields[name].default
    other: Any = OTHER_CASES.get(name, not default if isinstance(default, bool) else 7)
    if default is None and name not in OTHER_CASES:
        other = Path("somewhere")
    elif isinstance(default, str) and name not in OTHER_CASES:
        other = "elsewhere"
    monkeypatch.setenv(f"TOWERS_{name.upper()}", str(other))
    assert getattr(Settings(bundle=Path("b")), name) == other != default


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "serve.toml"
    # With a byte order mark, as an editor on Windows may save it.
    path.write_text('bundle = "from file"\nmax_k = 1\nmax_batch = 1\nmax_items = 1\n', encoding="utf-8-sig")
    return path


@pytest.mark.parametrize("by_variable", [False, True])
def test_given_goes_before_environment_before_file_before_default(
    file: Path, monkeypatch: pytest.MonkeyPatch, by_variable: bool
) -> None:
    monkeypatch.setenv("TOWERS_MAX_K", "2")
    monkeypatch.setenv("TOWERS_MAX_BATCH", "2")
    if by_variable:
        monkeypatch.setenv("TOWERS_CONFIG", str(file))
    settings = serve.read_settings(max_k=3, **({} if by_variable else {"config": file}))
    assert (settings.max_k, settings.max_batch, settings.max_items, settings.max_list) == (3, 2, 1, 10_000)
    assert (settings.bundle, settings.config) == (Path("from file"), file)


def test_a_worker_gets_what_the_command_has_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOWERS_MAX_BATCH", "2")
    settings = serve.read_settings(config=file)
    sent = pickle.dumps(settings)
    file.write_text('bundle = "another"', encoding="utf-8")
    monkeypatch.setenv("TOWERS_MAX_BATCH", "3")
    assert pickle.loads(sent) == settings


@pytest.mark.parametrize("name", ["config", "bundle", "cache", "state", "keys", "host"])
@pytest.mark.parametrize("value", ["", " "])
def test_an_empty_path_or_host_is_refused_and_not_the_working_directory_or_every_address(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOWERS_BUNDLE", "b")
    monkeypatch.setenv(f"TOWERS_{name.upper()}", value)
    with pytest.raises(DataError, match=f"TOWERS_{name.upper()}: must not be empty, got {value!r}"):
        serve.read_settings()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("max_kk = 5", r"serve\.toml: max_kk: no such setting; did you mean max_k\?$"),
        ("max_k = 'many'", r"serve\.toml: max_k: .*integer.*, got 'many'"),
        ("max_k = true", r"serve\.toml: max_k: must be a number, got True$"),
        ("slow_ms = false", r"serve\.toml: slow_ms: must be a number, got False$"),
        ("max_k = 0", r"serve\.toml: max_k: .*greater than or equal to 1, got 0"),
        ("port = 70000", r"serve\.toml: port: .*65535, got 70000"),
        ("access_log = 'some'", r"serve\.toml: access_log: .*'errors', 'all' or 'none', got 'some'"),
        ("keep_alive_s = 0", r"serve\.toml: keep_alive_s: .*greater than 0, got 0"),
        ("http = 'h2'", r"serve\.toml: http: .*'httptools' or 'h11', got 'h2'"),
        ("max_slowdown = 8.0", r"serve\.toml: max_slowdown: no such setting any more: .* max_concurrent, "),
        ("max_connections = 9", r"serve\.toml: max_connections: no such setting any more: limit_conn .*deploy/nginx"),
        ("header_timeout_s = 9", r"serve\.toml: header_timeout_s: no such setting any more: body_timeout_s .*nginx"),
        ("config = 'other.toml'", r"--config .*serve\.toml: config: a settings file cannot name another one"),
        ("max_k = ", r"--config .*serve\.toml: Invalid value"),
        ("[limits]\nmax_k = 1", r"serve\.toml: limits: no such setting; a .* has no tables such as \[limits\]$"),
    ],
)
def test_a_mistake_in_the_file_names_the_file_and_the_key(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(f"{content}\n[x]" if content == "" else content, encoding="utf-8")
    with pytest.raises(DataError, match=message) as caught:
        serve.read_settings(bundle=Path("b"), config=path)
    assert str(path) in str(caught.value)


def test_a_pipe_is_refused_and_not_taken_for_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    os.mkfifo(path)
    with pytest.raises(DataError, match=rf"^--config {path}: a pipe, which can be read only once; name a file$"):
        serve.read_settings(bundle=Path("b"), config=path)


@pytest.mark.parametrize("content", ["max_kk = 5", "max_k = 0", '[serve]\nbundle = "b"'])
def test_a_mistake_in_the_file_is_told_before_what_is_missing(tmp_path: Path, content: str) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=r"serve\.toml: (max_kk: no such|max_k: .*, got 0|serve: no such .*\[serve\]$)"):
        serve.read_settings(config=path)


def test_a_mistake_elsewhere_names_the_option_or_the_variable(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"^--port: .*65535, got 70000$"):
        serve.read_settings(config=file, port=70_000)
    monkeypatch.setenv("TOWERS_MAX_K", "many")  # the file has a good one, which does not count
    with pytest.raises(DataError, match=r"^TOWERS_MAX_K: .*got 'many'$"):
        serve.read_settings(config=file)


def test_a_file_or_a_bundle_that_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^--config .*none\.toml: No such file or directory$"):
        serve.read_settings(bundle=Path("b"), config=tmp_path / "none.toml")
    with pytest.raises(DataError, match=r"^bundle: give --bundle, TOWERS_BUNDLE, or bundle in the file of --config$"):
        serve.read_settings()


@pytest.mark.parametrize(
    ("host", "keys", "warned"),
    [("127.0.0.1", False, False), ("localhost", False, False), ("::1", False, False), ("0.0.0.0", True, False),
     ("0.0.0.0", False, True), ("192.0.2.7", False, True)],
)  # fmt: skip
def test_a_service_that_anyone_can_reach_and_change_is_warned_of(
    host: str, keys: bool, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "uvicorn.error.serving"):
        serve.tell_risks(Settings(bundle=Path("b"), host=host, keys=Path("keys.toml") if keys else None))
    assert any("may read and change everything" in line for line in caplog.messages) == warned


def test_a_variable_that_is_no_setting_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TOWERS_MAXK", "5")
    monkeypatch.setenv("TOWERS_API_KEY", "secret")
    with caplog.at_level(logging.WARNING, "uvicorn.error.serving"):
        serve.tell_risks(Settings(bundle=Path("b")))
    assert caplog.messages == ["TOWERS_MAXK is not a setting of this service"]


@pytest.mark.parametrize("name", ENDED)
def test_a_variable_of_an_ended_setting_says_what_takes_its_place(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(f"TOWERS_{name.upper()}", "5")
    with caplog.at_level(logging.WARNING, "uvicorn.error.serving"):
        serve.tell_risks(Settings(bundle=Path("b")))
    (told,) = caplog.messages
    assert told.startswith(f"TOWERS_{name.upper()} is not a setting of this service any more: ")
    # It names a setting that there is, or one of the proxy's file.
    assert set(re.findall(r"[a-z_]+", told)) & (Settings.model_fields.keys() | {"limit_conn"})


def test_localhost_is_the_default() -> None:
    assert Settings(bundle=Path("b")).host == "127.0.0.1"
