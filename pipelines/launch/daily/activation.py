"""Whether an interrupted day has been activated, although another bundle answers now.

A rollback gives `active.json` the content of before back. So a day that is about to be activated notes also when the
file was written: a kill before the activation leaves that as it was; the activation and a rollback do not.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from pipelines.launch.daily.day import ACTIVATED, FAILED, Day
from pipelines.launch.daily.settings import Loop
from serving.bundle.active import ACTIVE
from serving.bundle.versions import Versions
from serving.service.store import Store

ACTIVATION = "activation"  # an outcome that no day ends with
BEFORE = "active_before"


def note(day: Day) -> dict[str, Any]:
    """The summary of a day that is about to be activated."""
    return {
        "day": day.name,
        "outcome": ACTIVATION,
        "store": day.loop.settings.shown_store,
        "seconds": day.summary.get("seconds", {}),
        BEFORE: _stamp(day.loop),
    }


def was_activated(day: Day) -> bool:
    """Whether a day's bundle has been activated where services look, so that nothing is left to do.

    Of a day that was interrupted while its bundle was activated that is so, too, if anyone has changed since what is
    active; unless the bundle answers: then the end of the day is left to do.

    Raises:
        StoreError: the store cannot be read.
    """
    summary, loop = day.summary, day.loop
    if summary.get("store") != loop.settings.shown_store:
        return False
    if not day.bundle.is_dir():
        # One that was rolled back may have been removed since, and does not come back; one that should be here does.
        here = Path(summary.get("bundle") or "").resolve() == day.bundle.resolve()  # a folder has several names
        return here and summary.get("outcome") == ACTIVATED and loop.answers not in (None, day.name)
    if summary.get("outcome") in (ACTIVATION, FAILED) and BEFORE in summary:
        return loop.answers != day.name and summary.get(BEFORE) != _stamp(loop)
    return bool(summary.get("outcome") == ACTIVATED)


def _stamp(loop: Loop) -> str | None:
    """The digest of `active.json` where services look and of the time of its writing; None if there is none."""
    if loop.settings.store is None:
        file = Versions(loop.settings.root).file
        told = [file.read_bytes().hex(), file.stat().st_mtime_ns] if file.exists() else None
    else:
        content = loop.stored_active()
        told = None if content is None else [content.hex(), Store(loop.settings.store).objects(ACTIVE)]
    return None if told is None else hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()
