"""Writes the arrays and the ids of a bundle."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from serving.bundle import arrays as files
from serving.bundle.ids import Ids
from serving.errors import BundleError

Strings = Sequence[str] | NDArray[np.str_] | pl.Series


def write_ids(path: Path, column: str, ids: Strings) -> None:
    """Writes ids as a column, and beside it as the table that the service maps."""
    values = (ids if isinstance(ids, pl.Series) else pl.Series(list(ids))).cast(pl.String)
    values.alias(column).to_frame().write_parquet(path)
    # Faults of the column are reported when it is read back.
    Ids.of(values.drop_nulls()).save(path.parent, column)


def copy_vectors(vectors: NDArray[np.float32], path: Path) -> None:
    """Copies [M, D] in blocks, so that neither side needs to fit in memory."""
    if vectors.ndim != 2:
        raise BundleError(f"{path.name}: vectors must be [M, D], got {vectors.shape}")
    write_blocks(path, vectors.shape, lambda part: vectors[part])


def write_blocks(path: Path, shape: tuple[int, ...], rows: Callable[[slice], NDArray[np.float32]]) -> None:
    """Writes a float32 array of `shape`, a block of `rows` at a time."""
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        for start in range(0, shape[0], files.BLOCK_ROWS):
            np.ascontiguousarray(rows(slice(start, start + files.BLOCK_ROWS)), np.float32).tofile(file)
