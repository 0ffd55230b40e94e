"""Tells whether a run saw a user, by the users in its vocabularies and the data set that it was trained on."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from pipelines.dataset.dataset import Dataset
from pipelines.errors import DataError


def dataset_of(run: Path) -> str:
    """The fingerprint of the data set that a run was trained on."""
    with _refusing(run):
        return str(json.loads((run / "summary.json").read_text(encoding="utf-8"))["dataset"])


def datasets_of(run: Path, datasets: Sequence[Path]) -> list[Path]:
    """The data sets that the run was trained on, or that `towers forget` has made of it, as far as they can be read."""
    trained, found = dataset_of(run), list[Path]()
    for path in datasets:
        with suppress(DataError):  # removed meanwhile
            if trained in Dataset.open(path).manifest.fingerprints:
                found.append(path)
    return found


def saw_user(run: Path, user: str, datasets: Sequence[Dataset]) -> bool | None:
    """Whether a run saw the user; None if neither its vocabularies nor any of these data sets tells.

    Its data set as it is after `towers forget` holds fewer users than the run saw, and a vocabulary may hold only those
    with several events.
    """
    trained, saw = dataset_of(run), None
    if _in_vocabulary(run, user):
        return True
    for data in datasets:
        if trained in data.manifest.fingerprints and user in data.users["user_id"]:
            return True
        if trained == data.manifest.fingerprint:
            saw = False
    return saw


def _in_vocabulary(run: Path, user: str) -> bool:
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
