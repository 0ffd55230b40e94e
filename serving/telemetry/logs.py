"""Log lines on stderr, JSON or text, without secrets and, by default, without user ids.

A record's fields are passed as `extra={"fields": {...}}`. An exception raised during a request is logged with its type
and stack but without its text, which may hold what the caller sent.
"""

import json
import logging
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

import orjson

from serving.settings import Settings

# All loggers of the service are children of uvicorn's: its level and handler then apply in every worker.
SERVER = "uvicorn.error"
SERVICE = f"{SERVER}.serving"
# Values that text lines show unquoted.
PLAIN = re.compile(r"[!#-<>-~]+")
UPGRADE_WARNINGS = ("Unsupported upgrade request.", "No supported WebSocket library detected.")  # beginnings

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)


class _Formatter(logging.Formatter):
    """Common to both formats.

    Args:
        user_ids: whether a line may hold what a caller sent: user ids, the text of exceptions in requests.
    """

    def __init__(self, *, user_ids: bool = False) -> None:
        super().__init__()
        self.user_ids = user_ids

    def fields(self, record: logging.LogRecord) -> dict[str, Any]:
        """The line's fields, in order."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            # uvicorn calls everything but access lines "error".
            "logger": "uvicorn" if record.name == SERVER else record.name.removeprefix(f"{SERVER}."),
            "message": record.getMessage(),
        }
        asked = request_id.get()
        if asked is not None:
            line["request_id"] = asked
        own: Mapping[str, Any] = getattr(record, "fields", {})
        line |= {name: value for name, value in own.items() if name != "user_id" or self.user_ids}
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = "".join(_told(record.exc_info[1], whole=asked is None or self.user_ids))
        return line


class JsonFormatter(_Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Formats a record."""
        return orjson.dumps(self.fields(record), default=str).decode()


class TextFormatter(_Formatter):
    """Readable text: time, level, message, then the other fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Formats a record, with any exception below it."""
        line = self.fields(record)
        told = line.pop("exception", None)
        message = "\n    ".join(line.pop("message").splitlines())
        head = f"{line.pop('time')} {line.pop('level').upper():8} {message}"
        del line["logger"]
        rest = "".join(f" {name}={_word(value)}" for name, value in line.items())
        lines = [f"{head}{rest}", *("" if told is None else told).rstrip().splitlines()]
        # Only log lines begin at the left edge, so nothing that a caller sent can look like one.
        return "\n    ".join(lines)


def _word(value: object) -> str:
    """A field's value as one word: what a caller sent must not look like further fields or another line."""
    word = str(value)
    return word if PLAIN.fullmatch(word) else json.dumps(word)


class UpgradeFilter(logging.Filter):
    """Drops uvicorn's two warnings about each request with `Upgrade`.

    Anyone could fill the log with them, and they advise to install a library. The service refuses such a request, and
    tells their number each second.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter`."""
        return record.name != SERVER or not record.getMessage().startswith(UPGRADE_WARNINGS)


def log_config(settings: Settings) -> dict[str, Any]:
    """The configuration for `uvicorn.Config(log_config=...)`: uvicorn's own lines look like the service's.

    Unless the settings name a format, lines are text on a terminal and JSON elsewhere.
    """
    form = settings.log_format or ("text" if sys.stderr.isatty() else "json")
    formatter = JsonFormatter if form == "json" else TextFormatter
    level = settings.log_level.upper()
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"lines": {"()": f"{__name__}.{formatter.__name__}", "user_ids": settings.log_user_ids}},
        "filters": {"upgrades": {"()": f"{__name__}.{UpgradeFilter.__name__}"}},
        "handlers": {
            "stderr": {
                "class": "logging.StreamHandler",
                "formatter": "lines",
                "filters": ["upgrades"],
                "stream": "ext://sys.stderr",
            }
        },
        # The root logger takes the warnings of libraries.
        "root": {"handlers": ["stderr"], "level": "WARNING"},
        "loggers": {"uvicorn": {"handlers": ["stderr"], "level": level, "propagate": False}},
    }


def _told(error: BaseException, *, whole: bool) -> Iterator[str]:
    """A traceback as Python writes it; unless `whole`, without the texts of the exceptions."""
    if whole:
        yield from traceback.format_exception(error)
        return
    chain: list[BaseException] = []
    step: BaseException | None = error
    while step is not None and step not in chain:
        chain.append(step)
        step = step.__cause__ or (None if step.__suppress_context__ else step.__context__)
    for each in reversed(chain):
        yield "Traceback (most recent call last):\n"
        yield from traceback.format_tb(each.__traceback__)
        yield f"{type(each).__module__}.{type(each).__qualname__} (its text may hold what a caller sent)\n"
