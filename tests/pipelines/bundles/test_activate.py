"""`towers bundles`: its words, what each says and changes, and that nothing becomes active that does not answer."""

import inspect
import shutil
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pipelines import console
from pipelines.bundles import activate, fold, publish, requirement
from pipelines.cli import app, bundles
from pipelines.launch import gate
from serving.bundle.active import Active, Canary
from serving.bundle.versions import Versions
from serving.errors import BundleError
from tests.support.worlds.serving import write_whole_world, write_world

VERBS = ["activate", "canary", "fold", "gate", "list", "publish", "rollback"]


def towers(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["towers", "bundles", *words])
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


# The functions behind the words, and their parameters in the order of the cases below.
PARAMETERS = {
    "show": "root",
    "activate": "root name override",
    "rollback": "root override",
    "canary": "root name share override",
    "clear_canary": "root",
    "run": "bundle state out overwrite",
    "publish": "bundle url name override",
    "unrequire": "root reason",
    "require": "rules root",
}


def put_double(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replaces the functions behind the words; gives the list that fills with their calls: name and arguments."""
    calls: list[Any] = []

    def put(module: ModuleType, name: str) -> None:
        function = getattr(module, name)

        @wraps(function)  # so that a double of a double has the parameters of the function, too
        def call(*args: Any, **options: Any) -> Active | str:
            arguments = inspect.signature(function).bind(*args, **options).arguments
            calls.append((name, *map(arguments.pop, PARAMETERS[name].split()), *arguments))
            return "v2" if name == "publish" else Active(active="v2")

        monkeypatch.setattr(module, name, call)

    for name in ("show", "activate", "rollback", "canary", "clear_canary"):
        put(activate, name)
    for module, name in ((fold, "run"), (publish, "publish"), (requirement, "unrequire"), (gate, "require")):
        put(module, name)
    return calls


def test_the_words_are_those_that_others_script() -> None:
    commands = bundles.app.registered_commands
    assert sorted(command.name or command.callback.__name__ for command in commands if command.callback) == VERBS


def test_every_word_reaches_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path("r")
    cases: dict[str, tuple[Any, ...]] = {
        "list --root r": ("show", root),
        "activate v2 --root r": ("activate", root, "v2", None),
        "activate v2 --root r --override why": ("activate", root, "v2", "why"),
        "rollback --root r": ("rollback", root, None),
        "rollback --root r --override why": ("rollback", root, "why"),
        "canary v2 --share 0.05 --root r": ("canary", root, "v2", 0.05, None),
        "canary v2 --share 0.05 --root r --override why": ("canary", root, "v2", 0.05, "why"),
        "gate rules.toml --root r": ("require", Path("rules.toml"), root),
        "gate --off why --root r": ("unrequire", root, "why"),
        "canary --clear --root r": ("clear_canary", root),
        "publish b --root s3://r": ("publish", Path("b"), "s3://r", None, None),
        "publish b --root s3://r --name v2 --override why": ("publish", Path("b"), "s3://r", "v2", "why"),
        "list --root s3://r": ("show", "s3://r"),
        "activate v2 --root s3://r": ("activate", "s3://r", "v2", None),
        "rollback --root s3://r": ("rollback", "s3://r", None),
        "canary v2 --share 0.05 --root s3://r": ("canary", "s3://r", "v2", 0.05, None),
        "canary --clear --root s3://r": ("clear_canary", "s3://r"),
        "fold --bundle b --state s --out o": ("run", Path("b"), Path("s"), Path("o"), False),
        "fold --bundle b --state s --out o --overwrite": ("run", Path("b"), Path("s"), Path("o"), True),
    }
    for line, call in cases.items():
        calls = put_double(monkeypatch)
        assert towers(monkeypatch, *line.split()) == 0, line
        assert calls == [call], line


@pytest.mark.parametrize("verb", VERBS)
def test_help_shows_an_example_that_parses(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert towers(monkeypatch, verb, "--help") == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert "Example:" in lines
    (words,) = [line.removeprefix("$ towers bundles ").split() for line in lines if line.startswith("$ ")]
    calls = put_double(monkeypatch)
    assert towers(monkeypatch, *words) == 0 and words[0] == verb
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("", ["Missing command", "towers bundles --help"]),
        ("activate --root r", ["Missing argument 'NAME'"]),
        ("activate v2", ["Missing option '--root'"]),
        ("canary --root r", ["NAME / --share", "--clear"]),
        ("canary v2 --root r", ["NAME / --share", "--clear"]),
        ("canary v2 --share 1.5 --root r", ["'--share'", "less than or equal to 1"]),
        ("canary v2 --clear --root r", ["--clear", "neither a name nor --share"]),
        ("canary --clear --override why --root r", ["--clear", "nor --override"]),
        ("publish b --root r", ["--root", "must be a URL, such as s3://bucket/recall, got 'r'"]),
        ("activate v2 --root s3://r --override why", ["--override", "a root in a store has no gate"]),
        ("gate --root r", ["RULES / --off", "give RULES"]),
        ("gate rules.toml --off why --root r", ["RULES / --off"]),
        ("list --root nowhere", ["nowhere: no such directory"]),
        ("rollback --root nowhere", ["nowhere: no such directory"]),
        ("activate v2 --root nowhere", ["nowhere/v2: not a bundle: no such directory"]),
        ("activate ../v2 --root nowhere", ["'../v2' cannot name a bundle"]),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(
    words: str, parts: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert towers(monkeypatch, *words.split()) == 2
    streams = capsys.readouterr()
    assert streams.out == "" and streams.err.startswith("error: ") and streams.err.count("\n") == 1
    assert [part for part in parts if part not in streams.err] == []


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_whole_world(tmp_path_factory.mktemp("bundles"))


def test_the_command_to_give_quotes_a_root_with_blanks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_world(tmp_path / "my root" / "v1")
    activate.show(tmp_path / "my root")
    assert f"towers bundles activate NAME --root '{tmp_path}/my root'\n" in capsys.readouterr().err


def test_a_bundle_is_one_whole_line_in_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / ("of the shop " * 9)
    names = ["release-2026-11-28-nightly-eu-west-01-23abcd", "with-a-damaged-manifest"]
    write_world(root / names[0])
    (root / names[1]).mkdir()
    (root / names[1] / "manifest.json").write_text("{")
    activate.show(root)
    rows = [line.split("│") for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    told = {row[1].strip(): row[6].strip() for row in rows}
    assert sorted(told) == sorted(names) and told[names[0]] == ""
    assert told[names[1]].startswith(f"{root / names[1]}/manifest.json: truncated or altered") and "…" not in told


def test_what_cannot_be_is_told_before_a_bundle_is_probed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe takes seconds, of a large bundle minutes."""
    for name in ("v0", "v1", "v2"):
        write_world(tmp_path / name)
    versions = Versions(tmp_path)

    def probed_too_early(path: Path) -> None:
        raise AssertionError(path)

    monkeypatch.setattr(activate, "verify", probed_too_early)

    def refused(message: str, *acts: Callable[[], object]) -> None:
        for act in acts:
            with pytest.raises(BundleError, match=message):
                act()

    refused("none of its bundles is active", lambda: activate.canary(tmp_path, "v2", 0.5))
    for name in ("v0", "v1"):
        versions.activate(name)
    refused(r"must lie in \(0, 1\], got 0$", lambda: activate.canary(tmp_path, "v2", 0.0))
    refused("v1 is the active bundle", lambda: activate.canary(tmp_path, "v1", 0.5))
    every = (
        lambda: activate.activate(tmp_path, "v2"),
        lambda: activate.canary(tmp_path, "v2", 0.5),
        lambda: activate.rollback(tmp_path),
    )
    with monkeypatch.context() as patched:
        # Not by the mode of the directory, which does not bind root.
        patched.setattr("os.access", lambda path, mode: Path(path) != tmp_path)
        refused(f"^{tmp_path}: cannot be written", *every)
    versions.file.write_text("{")
    refused(r"active\.json: damaged", *every)


@pytest.mark.slow
def test_an_operators_day(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"
    for name in ("v1", "v2"):
        shutil.copytree(whole, root / name)
    write_world(root / "v3", model_version="world-3")  # Whole by its digests, but its towers are no models.
    shutil.copytree(root / "v3", root / "v\udcff")
    versions = Versions(root)
    (tmp_path / "nothing").mkdir()
    assert towers(monkeypatch, "list", "--root", str(tmp_path / "nothing")) == 0
    assert (
        f"no bundle in {tmp_path / 'nothing'}; `towers export --run RUN --out {tmp_path / 'nothing'}/NAME` makes one"
        in capsys.readouterr().err
    )

    def said(*words: str, code: int = 0) -> str:
        assert towers(monkeypatch, *words, "--root", str(root)) == code
        streams = capsys.readouterr()
        return streams.out + streams.err

    assert f"none of them is active; name one: towers bundles activate NAME --root {root}" in said("list")
    first, second = said("activate", "v1").splitlines()[3:], said("activate", "v2").splitlines()[3:]
    assert first == ["active: v1 (model world-1, 60 items)", f"next: {console.towers()} serve --bundle {root}"]
    follow = f"next: {console.towers()} bundles list --root {root}"
    assert second == ["active: v2 (model world-1, 60 items), after v1", follow]
    for words in (["activate", "v3"], ["canary", "v3", "--share", "0.5"]):
        assert f"error: {root}/v3/query_tower: TensorFlow cannot load it" in said(*words, code=2)
    assert "share of the users must lie in (0, 1], got 0" in said("canary", "v1", "--share", "0", code=2)
    assert "v2 is the active bundle" in said("canary", "v2", "--share", "0.5", code=2)
    assert versions.read() == Active(active="v2", previous=("v1",))
    told = said("canary", "v1", "--share", "0.05").splitlines()[3:]
    assert told == ["canary: v1 (model world-1, 60 items) for 5.00% of the users, next to v2", follow]
    assert versions.read().canary == Canary(bundle="v1", share=0.05)
    shown = [line.split("│")[1:-1] for line in said("list").splitlines() if line.startswith("│ v")]
    assert {row[0].strip(): row[1].strip() for row in shown} == {
        "v1": "canary",
        "v2": "active",
        "v3": "",
        "v\\udcff": "",
    }
    newest = [cell.strip() for cell in shown[0]]
    assert (newest[0], newest[2], newest[4]) == ("v3", "world-3", "60")
    assert said("canary", "--clear").splitlines() == ["no canary: v2 answers every user", follow]
    (root / "v1" / "popularity.npy").write_bytes(b"")
    assert f"error: {root}/v1/popularity.npy: truncated" in said("rollback", code=2)
    shutil.copy(whole / "popularity.npy", root / "v1" / "popularity.npy")
    assert said("rollback").splitlines()[3:] == ["active: v1 (model world-1, 60 items), back from v2", follow]
    assert "no bundle was active before v1" in said("rollback", code=2)
    assert versions.read() == Active(active="v1")
