"""Compares the files of a data set with the digests that `towers prepare` wrote.

`.DATASET.digests`, a hidden sibling of the data set, keeps the digest found of each file with its size and time of
change, so that a file is read again only if one of them differs.
"""

import json
from pathlib import Path
from typing import Any

from pipelines.console import Advance, no_bar, say
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.manifest import MANIFEST, digest_of
from pipelines.errors import DataError
from serving.files.disk_full import DiskFullError
from serving.files.staging import OutputExistsError, staged


def refuse_changes(dataset: Dataset, advance: Advance = no_bar) -> None:
    """Refuses a data set with a file that is not the one `towers prepare` wrote.

    Args:
        dataset: the data set.
        advance: called with the megabytes of each file, once it is compared.

    Raises:
        DataError: names the file, and the digest it has and should have.
    """
    place = dataset.path.resolve()
    memory = place.parent / f".{place.name}.digests"
    before, found = _read(memory), {}
    for name, info in dataset.manifest.files.items():
        state = (place / name).stat()
        now = [state.st_size, state.st_mtime_ns]
        known = before.get(name)
        digest = known[2] if isinstance(known, list) and known[:-1] == now else digest_of(place / name)
        if digest != info.sha256:
            raise DataError(
                f"{dataset.path / name}: changed since `towers prepare`: its SHA-256 is {str(digest)[:12]}…, in "
                f"{MANIFEST} it is {info.sha256[:12]}…; put the file back, or prepare the data set again"
            )
        found[name] = [*now, digest]
        advance(info.bytes / 1e6)
    if found != before:
        _write(memory, found)


def _read(memory: Path) -> dict[str, Any]:
    try:
        kept = json.loads(memory.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


def _write(memory: Path, found: dict[str, Any]) -> None:
    try:
        with staged(memory, overwrite=True) as half:
            half.write_text(json.dumps(found), encoding="utf-8")
    except (OSError, DiskFullError, OutputExistsError) as error:
        say(f"the digests are not kept, so the next command reads every file again: {error}")
