"""What baselines cost is paid once: arrays are kept in a hidden directory beside the data set, each file with its key.

In: the path of a data set. Out: `.DATASET.baselines/NAME.npz`. A file that is damaged or was written for another key is
no error, and neither is a place that cannot be written: the arrays are then made again.
"""

import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.progress import say
from serving.disk_full import DiskFullError
from serving.staging import OutputExistsError, staged

KEY = "key"
DAMAGE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError)


@dataclass(frozen=True)
class Cache:
    """Named sets of arrays.

    Attributes:
        folder: where they lie.
    """

    folder: Path

    @classmethod
    def beside(cls, dataset: Path) -> "Cache":
        """That of a data set."""
        place = dataset.resolve()
        return cls(place.parent / f".{place.name}.baselines")

    def read(self, name: str, key: str) -> dict[str, NDArray[Any]] | None:
        """The arrays of `name`; None where there are none, they are damaged, or were made for another key."""
        try:
            with np.load(self.folder / f"{name}.npz", allow_pickle=False) as file:
                if str(file[KEY]) == key:
                    return {each: file[each] for each in file.files if each != KEY}
        except DAMAGE:
            pass
        return None

    def write(self, name: str, key: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Keeps arrays under `name`; where that cannot be done says so and goes on."""
        try:
            with staged(self.folder / f"{name}.npz", overwrite=True) as path, path.open("wb") as file:
                np.savez(file, allow_pickle=False, **{KEY: np.asarray(key), **arrays})
        except (OSError, DiskFullError, OutputExistsError) as error:
            say(f"{name} is not kept for the next report: {error}")
