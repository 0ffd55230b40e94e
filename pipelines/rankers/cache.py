"""Caches fitted baselines in `.DATASET.baselines/NAME.npz`, a hidden directory beside the data set.

A file that is damaged or has another key is not an error, nor is an unwritable directory: the arrays are recomputed.
"""

import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.console import say
from serving.files.disk_full import DiskFullError
from serving.files.staging import OutputExistsError, staged

KEY = "key"
DAMAGE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError)


@dataclass(frozen=True)
class Cache:
    """Named sets of arrays.

    Attributes:
        folder: the directory of the files.
    """

    folder: Path

    @classmethod
    def beside(cls, dataset: Path) -> "Cache":
        """The cache of a data set."""
        place = dataset.resolve()
        return cls(place.parent / f".{place.name}.baselines")

    def read(self, name: str, key: str) -> dict[str, NDArray[Any]] | None:
        """Returns the arrays of `name`; None if they are missing, damaged or stored under another key."""
        try:
            with np.load(self.folder / f"{name}.npz", allow_pickle=False) as file:
                if str(file[KEY]) == key:
                    return {each: file[each] for each in file.files if each != KEY}
        except DAMAGE:
            pass
        return None

    def write(self, name: str, key: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Stores arrays under `name`; if that fails, says so and carries on."""
        try:
            with staged(self.folder / f"{name}.npz", overwrite=True) as path, path.open("wb") as file:
                np.savez(file, allow_pickle=False, **{KEY: np.asarray(key), **arrays})
        except (OSError, DiskFullError, OutputExistsError) as error:
            say(f"{name} is not kept for the next report: {error}")
