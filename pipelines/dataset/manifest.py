"""`dataset.json`: the description of a data set, and the digests of its files."""

import hashlib
import json
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from serving.bundle.arrays import digest, digests, files_under
from serving.bundle.manifest import FileInfo
from towers.config.sections import DataConfig

Kind = Literal["string", "number", "list", "vector"]
SplitKind = Literal["global_time", "leave_last_out", "random", "given"]
SCHEMA_VERSION: Literal[3] = 3
MANIFEST = "dataset.json"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SplitInfo(_Model):
    """How the events were split: never "auto"; with global_time the first time of ``valid`` and of ``test``."""

    kind: SplitKind
    boundaries: dict[str, int]


class SourceInfo(_Model):
    """The data's origin: the format, and file names without folders."""

    format: str
    files: tuple[str, ...]


class DatasetManifest(_Model):
    """The content of `dataset.json`.

    Attributes:
        schema_version: version of the layout.
        fingerprint: one SHA-256 over all files' digests, the unit and zone of times, the types and the split; equal
            data sets have equal ones if one release made them.
        before_forget: those that it had before each `towers forget` that removed something of it.
        users: number of users.
        items: number of items.
        events: number of events of each split, impressions included.
        split: how the events were split.
        timed: the split respects time, so histories are the strictly earlier events.
        time_unit: unit of the stored times, None without times.
        user_columns: kinds of the users' attributes.
        item_columns: kinds of the items' attributes.
        event_columns: kinds of the events' own columns.
        roles: event columns by role: user, item, time, type, weight.
        event_types: the types of the events, each at the place that is its number; none if the events have no types.
        weighted: events have weights.
        config: the recipe section the data set was prepared with.
        source: the data's origin.
        rejected: number of bad rows, which are in `rejects.csv`.
        dropped: number of events dropped by each rule of the recipe.
        files: the files by path inside the directory.
    """

    schema_version: Literal[1, 2, 3] = SCHEMA_VERSION
    fingerprint: str
    before_forget: tuple[str, ...] = ()
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
    event_types: tuple[str, ...] = ()
    weighted: bool
    config: DataConfig
    source: SourceInfo
    rejected: int
    dropped: dict[str, int]
    files: dict[str, FileInfo]

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """Its fingerprint and the earlier ones: what bundles and runs may name that were trained on it."""
        return (self.fingerprint, *self.before_forget)

    @property
    def type_column(self) -> str | None:
        """The events' column of types; None if the data set does not keep them."""
        return self.roles.get("type") if self.event_types else None

    @property
    def megabytes(self) -> float:
        """The size of all files."""
        return sum(info.bytes for info in self.files.values()) / 1e6


def digest_files(directory: Path) -> tuple[dict[str, FileInfo], str]:
    """Returns size and SHA-256 of every file below `directory` except the manifest, and one digest over all of them."""
    files = digests(directory, [path for path in files_under(directory) if path.name != MANIFEST])
    together = hashlib.sha256()
    for name, info in files.items():
        together.update(f"{name} {info.sha256}\n".encode())
    return files, together.hexdigest()


def with_fingerprint(manifest: DatasetManifest, content: str) -> DatasetManifest:
    """Returns a manifest whose fingerprint covers the files' content and what no file says of its meaning.

    Args:
        manifest: of any fingerprint.
        content: the digest over all files.
    """
    split, zone = manifest.split.model_dump(mode="json"), manifest.config.time_zone
    meaning = [content, manifest.timed, manifest.time_unit, zone, manifest.event_types, split]
    digest = hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()
    return manifest.model_copy(update={"fingerprint": digest})


def digest_of(path: Path) -> str:
    """Returns the SHA-256 of a file."""
    return digest(path).sha256
