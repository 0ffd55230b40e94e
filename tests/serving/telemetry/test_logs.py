"""The log's lines: their form, and what they never hold."""

import json
import logging
import logging.config
import subprocess
import sys
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from serving.settings import Settings
from serving.telemetry.logs import JsonFormatter, TextFormatter, UpgradeFilter, log_config, request_id

SECRET = "4711-secret"


def record(message: str = "a %s", *values: object, error: BaseException | None = None, **fields: Any) -> Any:
    exc_info = None if error is None else (type(error), error, error.__traceback__)
    made = logging.LogRecord("uvicorn.error.serving", logging.WARNING, "f.py", 1, message, values, exc_info)
    made.fields = fields
    return made


@contextmanager
def in_request(name: str = "r-1") -> Any:
    token = request_id.set(name)
    try:
        yield
    finally:
        request_id.reset(token)


def raised() -> Exception:
    """An exception whose text, and whose cause's text, hold what a caller sent."""
    try:
        try:
            raise KeyError(SECRET)
        except KeyError as cause:
            raise ValueError(f"bad {SECRET}") from cause
    except ValueError as error:
        return error


def test_a_line_is_one_json_object() -> None:
    with in_request("abc"):
        line = JsonFormatter().format(record("a %s\nb", "Ü", route="/recall", status=200, ms=1.5))
    assert "\n" not in line
    told = json.loads(line)
    assert datetime.fromisoformat(told.pop("time")).utcoffset().total_seconds() == 0
    assert told == {
        "level": "warning",
        "logger": "serving",
        "message": "a Ü\nb",
        "request_id": "abc",
        "route": "/recall",
        "status": 200,
        "ms": 1.5,
    }


def test_outside_requests_there_is_no_id() -> None:
    assert "request_id" not in json.loads(JsonFormatter().format(record("started")))


def test_what_json_does_not_know_is_written_as_text() -> None:
    assert json.loads(JsonFormatter().format(record("x", path=Path("/a"))))["path"] == "/a"


@pytest.mark.parametrize("form", [JsonFormatter, TextFormatter])
def test_user_ids_need_the_setting(form: type[logging.Formatter]) -> None:
    assert SECRET not in form().format(record("x", user_id=SECRET))
    assert SECRET in form(user_ids=True).format(record("x", user_id=SECRET))


@pytest.mark.parametrize("form", [JsonFormatter, TextFormatter])
def test_the_text_of_an_exception_in_a_request_is_left_out(form: type[logging.Formatter]) -> None:
    with in_request():
        line = form().format(record("failed", error=raised()))
        whole = form(user_ids=True).format(record("failed", error=raised()))
    assert SECRET not in line and SECRET in whole
    assert line.index("builtins.KeyError") < line.index("builtins.ValueError")
    assert line.count("test_logs.py") == 2 and "raised" in line
    assert SECRET in form().format(record("failed", error=raised()))  # A bundle that cannot be opened, say.


def test_exceptions_that_point_at_each_other_end() -> None:
    one, other = ValueError("a"), ValueError("b")
    one.__context__, other.__context__ = other, one
    with in_request():
        assert JsonFormatter().format(record("x", error=one)).count("builtins.ValueError") == 2


def test_text_is_for_people() -> None:
    with in_request("r-9"):
        line = TextFormatter().format(record("POST /recall: 500", status=500))
    assert line.endswith(" WARNING  POST /recall: 500 request_id=r-9 status=500")


FORGED = "u1\n2026-11-20T21:25:23.115+00:00 ERROR    forged"


@pytest.mark.parametrize("cut", ["\n", "\r", "\x0b", "\x85", "\u2028", "\x1b[2K", "\u202e"])
def test_no_value_is_a_line_or_a_field_of_its_own(cut: str) -> None:
    line = TextFormatter(user_ids=True).format(record("x", user_id=FORGED.replace("\n", cut), status=200))
    assert line.isprintable() and line.isascii()
    assert line.partition(" user_id=")[2].startswith('"u1\\') and line.endswith('forged" status=200')


@pytest.mark.parametrize(
    ("value", "told"),
    [("u-17", "u-17"), ("a b", '"a b"'), ("1 status=500", '"1 status=500"'), ("", '""'), ('"', r'"\""'), (5, "5")],
)
def test_a_value_is_one_word_of_the_text(value: object, told: str) -> None:
    assert TextFormatter(user_ids=True).format(record("x", user_id=value)).endswith(f" x user_id={told}")


def test_a_message_and_an_exception_of_several_lines_are_indented() -> None:
    error = ValueError(FORGED)
    with in_request():
        lines = TextFormatter(user_ids=True).format(record("a\nb", error=error)).splitlines()
    assert lines[1] == "    b request_id=r-1"
    assert all(line.startswith("    ") for line in lines[1:])
    assert any(line.endswith("forged") for line in lines)


class Terminal:
    def __init__(self, *, is_one: bool) -> None:
        self.is_one = is_one

    def isatty(self) -> bool:
        return self.is_one


@pytest.mark.parametrize(
    ("asked", "terminal", "form"),
    [
        (None, False, "JsonFormatter"),
        (None, True, "TextFormatter"),
        ("json", True, "JsonFormatter"),
        ("text", False, "TextFormatter"),
    ],
)
def test_the_form_follows_setting_and_terminal(
    monkeypatch: pytest.MonkeyPatch, asked: str | None, terminal: bool, form: str
) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal(is_one=terminal))
    monkeypatch.delenv("TOWERS_LOG_FORMAT", raising=False)
    settings = Settings(bundle=Path("b"), **({} if asked is None else {"log_format": asked}))
    assert log_config(settings)["formatters"]["lines"]["()"] == f"serving.telemetry.logs.{form}"


@pytest.mark.parametrize("protocol", [HttpToolsProtocol, H11Protocol])
def test_both_warnings_of_an_upgrade_are_dropped(protocol: Any) -> None:
    told: list[str] = []
    logger = SimpleNamespace(warning=told.append)
    protocol._unsupported_upgrade_warning(SimpleNamespace(logger=logger, _should_upgrade_to_ws=lambda: False))
    assert len(told) == 2
    for name, kept in (("uvicorn.error", False), ("uvicorn.error.serving", True)):
        lines = [logging.LogRecord(name, logging.WARNING, "f.py", 1, message, (), None) for message in told]
        assert [UpgradeFilter().filter(line) for line in lines] == [kept] * 2


def test_uvicorn_and_libraries_write_the_same_lines() -> None:
    code = """
import logging, logging.config
from pathlib import Path
import uvicorn
from serving.telemetry.logs import log_config
from serving.settings import Settings
settings = Settings(bundle=Path("b"), log_level="info", log_user_ids=True)
uvicorn.Config("x:y", log_config=log_config(settings), log_level=settings.log_level)
logging.getLogger("uvicorn.error").info("Started")
logging.getLogger("uvicorn.error").debug("not this")
logging.getLogger("uvicorn.error").warning("Unsupported upgrade request.")
logging.getLogger("uvicorn.error").warning("No supported WebSocket library detected. Please use pip")
logging.getLogger("uvicorn.error.serving").error("ours", extra={"fields": {"user_id": "u"}})
logging.getLogger("some.library").warning("beware")
logging.getLogger("some.library").info("not this")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    told = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(each["level"], each["logger"], each["message"], each.get("user_id")) for each in told] == [
        ("info", "uvicorn", "Started", None),
        ("error", "serving", "ours", "u"),
        ("warning", "some.library", "beware", None),
    ]
