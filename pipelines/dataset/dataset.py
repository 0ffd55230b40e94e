"""Opens a data set: its manifest, and memory-mapped arrays for training, report and export."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import ValidationError

from pipelines.dataset.arrays import CONTEXT, IMPRESSIONS, SPLITS, map_array, map_events, select_events
from pipelines.dataset.manifest import MANIFEST, SCHEMA_VERSION, DatasetManifest
from pipelines.errors import DataError
from towers.data.events import Events, Floats

Opened = TypeVar("Opened")


@dataclass(frozen=True)
class Dataset:
    """A data set; arrays are memory-mapped, frames are read once, at first use."""

    path: Path
    manifest: DatasetManifest

    @classmethod
    def open(cls, path: Path) -> "Dataset":
        """Reads the manifest and checks that every file exists with its full size.

        Raises:
            DataError: it is not a data set, has another schema version, or a file is missing or truncated.
        """
        manifest = _manifest(path)
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
        return self._ours(lambda: pl.read_parquet(self.path / "users.parquet", glob=False))

    @cached_property
    def items(self) -> pl.DataFrame:
        """Row = item number: `item_id`, `train_count`, then the attributes."""
        return self._ours(lambda: pl.read_parquet(self.path / "items.parquet", glob=False))

    @property
    def _mixed(self) -> bool:
        """Whether files hold events of weight 0 among the others, as those of schema version 1 do."""
        return self.manifest.schema_version == 1 and self.manifest.weighted

    def parts(self, *splits: str) -> list[str]:
        """Names of the splits, all by default, each followed by that of its impressions if the data set has any."""
        some = self._mixed or f"train{IMPRESSIONS}/item.npy" in self.manifest.files
        return [name for split in splits or SPLITS for name in (split, split + IMPRESSIONS)[: 1 + some]]

    def events(self, part: str) -> Events:
        """The events of one of `parts`, memory-mapped: a split holds the positive ones, its impressions all others."""
        return self._ours(lambda: (_events_of if self._mixed else map_events)(self.path / part))

    def context(self, part: str) -> pl.LazyFrame | None:
        """The events' own columns, rows as in `events`; None if there are none."""
        if not self.manifest.event_columns:
            return None
        file = self.path / part / CONTEXT
        return self._ours(lambda: _context_of(file) if self._mixed else pl.scan_parquet(file, glob=False))

    def _ours(self, opened: Callable[[], Opened]) -> Opened:
        """Opens files by their path, unless another data set has taken its place.

        A training or a search opens files until its end; what is open stays what it was.

        Raises:
            DataError: another command has replaced the data set.
        """
        try:
            return opened()
        finally:  # the other one may lack the file
            self.refuse_replaced()

    def refuse_replaced(self) -> None:
        """Raises DataError if another data set has taken its place."""
        before, now = self.manifest.fingerprint, _manifest(self.path).fingerprint
        if now != before:
            told = f"was {before[:12]} when this command began, now {now[:12]}"
            raise DataError(f"{self.path}: another command has replaced it meanwhile (fingerprint {told})")

    def truth(self) -> tuple[Floats, Floats] | None:
        """User and item vectors of a synthetic world, memory-mapped, rows as in `users` and `items`; else None.

        Their dot product is the true probability that the user takes the item next.
        """
        folder = self.path / "truth"
        if not folder.is_dir():
            return None
        return self._ours(lambda: (map_array(folder / "query_vectors.npy"), map_array(folder / "item_vectors.npy")))


def _manifest(path: Path) -> DatasetManifest:
    """Reads the manifest of a data set; see `Dataset.open` for what is refused."""
    file = path / MANIFEST
    try:
        text = file.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{path}: not a data set (no {MANIFEST}); towers prepare makes one") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read: {error}") from None
    try:
        return DatasetManifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "the whole file"
        if key == "schema_version":
            raise DataError(
                f"{file}: schema version {first['input']!r}, this program reads 1 to {SCHEMA_VERSION}; prepare it again"
            ) from None
        raise DataError(f"{file}: {key}: {first['msg']}") from None


# In schema version 1 impressions lie among the positive events. There, a part has the path that it would have now, and
# is a copy in memory unless all events are positive.


def _events_of(part: Path) -> Events:
    """The positive events of a split, or its impressions."""
    split, keep = _kept(part)
    every = map_events(split)
    if part == split:
        return every if keep.all() else select_events(every, keep)
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(~keep)])
    place = (before[:-1] - before[every.offsets[every.user]]).astype(np.int32)
    return select_events(replace(every, history_end=None, place=place), keep)


def _context_of(file: Path) -> pl.LazyFrame:
    """The own columns of these events, named by the file that they would lie in now."""
    split, keep = _kept(file.parent)
    table = pl.scan_parquet(split / file.name, glob=False)
    return table if keep.all() else table.collect().filter(pl.Series(keep)).lazy()


def _kept(part: Path) -> tuple[Path, NDArray[np.bool_]]:
    """The folder of the split, and which of its events are in the part."""
    split = part.with_name(part.name.removesuffix(IMPRESSIONS))
    return split, (map_array(split / "weight.npy") > 0) == (part == split)
