"""Tells whether a run saw a user: the data set that it was trained on, and the users in its vocabularies."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelines.errors import DataError


def dataset_of(run: Path) -> str:
    """The fingerprint of the data set that a run was trained on."""
    with _refusing(run):
        return str(json.loads((run / "summary.json").read_text(encoding="utf-8"))["dataset"])


def in_vocabulary(run: Path, user: str) -> bool:
    """Whether a run's vocabularies of users hold the user."""
    kinds = {"query": "id", "candidate": "neighbours"}
    with _refusing(run):
        sides = json.loads((run / "features.json").read_text(encoding="utf-8"))
        files = [
            each["vocabulary"] for side, kind in kinds.items() for each in sides[side] if each["config"]["kind"] == kind
        ]
        return any(user in (run / file).read_text(encoding="utf-8").split("\n") for file in files if file)


@contextmanager
def _refusing(run: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(f"--run {run}: not a finished run (no {Path(error.filename).name})") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"--run {run}: not a finished run, or damaged ({error})") from None
