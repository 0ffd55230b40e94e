"""The data set on disk: its manifest and the memory-mapped access that training, report and export share.

In: a directory that `towers prepare` wrote (docs/design.md). Out: a `Dataset`, or a `DataError` with the reason.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import polars as pl
from pydantic import BaseModel, ConfigDict, ValidationError

from pipelines.errors import DataError
from pipelines.ingest.layout import CONTEXT, map_array, map_events
from pipelines.ingest.splits import SplitKind
from pipelines.ingest.tables import Kind
from towers.config import DataConfig
from towers.events import Events, Floats

SCHEMA_VERSION = 1
MANIFEST = "dataset.json"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SplitInfo(_Model):
    """How the events were split: never "auto"; under global_time the first time of ``valid`` and of ``test``."""

    kind: SplitKind
    boundaries: dict[str, int]


class SourceInfo(_Model):
    """Where the data came from: the format, and file names without their folders."""

    format: str
    files: tuple[str, ...]


class FileInfo(_Model):
    """Size in bytes and SHA-256 of one file."""

    bytes: int
    sha256: str


class DatasetManifest(_Model):
    """What `dataset.json` says.

    Attributes:
        schema_version: of the layout.
        fingerprint: one SHA-256 over all files' digests: equal data sets have equal ones.
        users: number of users.
        items: number of items.
        events: number of events of each split.
        split: how they were split.
        timed: the split respects time, so that histories are the strictly earlier events.
        time_unit: unit of the stored times, None where there are none.
        user_columns: kinds of the users' attributes.
        item_columns: kinds of the items' attributes.
        event_columns: kinds of the events' own columns.
        roles: columns of the events by what they are: user, item, time, type, weight.
        weighted: events have weights.
        config: the recipe section it was made with.
        source: where it came from.
        rejected: bad rows left out; they are in `rejects.csv`.
        dropped: events left out by each rule of the recipe.
        files: the files by path inside the directory.
    """

    schema_version: Literal[1] = 1
    fingerprint: str
    users: int
    items: int
    events: dict[str, int]
    split: SplitInfo
    timed: bool
    time_unit: Literal["s", "ms", "us", "ns", "order"] | None
    user_columns: dict[str, Kind]
    item_columns: dict[str, Kind]
    event_columns: dict[str, Kind]
    roles: dict[str, str] = {}
    weighted: bool
    config: DataConfig
    source: SourceInfo
    rejected: int
    dropped: dict[str, int]
    files: dict[str, FileInfo]


def digest_files(directory: Path) -> tuple[dict[str, FileInfo], str]:
    """Size and SHA-256 of every file below `directory` but the manifest, and one digest over them all."""
    files = {}
    for path in sorted(directory.rglob("*")):
        if path.is_file() and path.name != MANIFEST:
            with path.open("rb") as handle:
                digest = hashlib.file_digest(handle, "sha256").hexdigest()
            files[path.relative_to(directory).as_posix()] = FileInfo(bytes=path.stat().st_size, sha256=digest)
    together = hashlib.sha256()
    for name, info in files.items():
        together.update(f"{name} {info.sha256}\n".encode())
    return files, together.hexdigest()


@dataclass(frozen=True)
class Dataset:
    """A data set; arrays are memory-mapped, frames are read once when first asked for."""

    path: Path
    manifest: DatasetManifest

    @classmethod
    def open(cls, path: Path) -> "Dataset":
        """Reads the manifest and checks that every file is there at its full size.

        Raises:
            DataError: no data set, another schema version, or a missing or truncated file.
        """
        file = path / MANIFEST
        try:
            text = file.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            raise DataError(f"{path}: not a data set (no {MANIFEST}); towers prepare makes one") from None
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{file}: cannot be read: {error}") from None
        try:
            manifest = DatasetManifest.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"])) or "the whole file"
            if key == "schema_version":
                raise DataError(
                    f"{file}: schema version {first['input']!r}, this program reads {SCHEMA_VERSION}; prepare it again"
                ) from None
            raise DataError(f"{file}: {key}: {first['msg']}") from None
        for name, info in manifest.files.items():
            part = path / name
            if not part.is_file():
                raise DataError(f"{path}: {name} is missing; prepare the data set again")
            if (size := part.stat().st_size) != info.bytes:
                raise DataError(
                    f"{path}: {name} has {size:,} bytes, the manifest says {info.bytes:,}: truncated or altered"
                )
        return cls(path, manifest)

    @cached_property
    def users(self) -> pl.DataFrame:
        """Row = user number: `user_id`, then the attributes."""
        return pl.read_parquet(self.path / "users.parquet")

    @cached_property
    def items(self) -> pl.DataFrame:
        """Row = item number: `item_id`, `train_count`, then the attributes."""
        return pl.read_parquet(self.path / "items.parquet")

    def events(self, split: str) -> Events:
        """The events of ``train``, ``valid`` or ``test``, memory-mapped."""
        return map_events(self.path / split)

    def context(self, split: str) -> pl.DataFrame | None:
        """The events' own columns, rows as in `events`; None where there are none."""
        if not self.manifest.event_columns:
            return None
        return pl.read_parquet(self.path / split / CONTEXT)

    def truth(self) -> tuple[Floats, Floats] | None:
        """User and item vectors of a synthetic world, memory-mapped, rows as in `users` and `items`; else None.

        Their dot product is the true probability that the user takes the item next.
        """
        folder = self.path / "truth"
        if not folder.is_dir():
            return None
        return map_array(folder / "query_vectors.npy"), map_array(folder / "item_vectors.npy")
