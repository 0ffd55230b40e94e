"""Writes the arrays and the ids of a bundle."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from serving.bundle import arrays as files
from serving.bundle.ids import Ids
from serving.bundle.manifest import PriorInfo
from serving.bundle.prior import COLUMNS, recall_vectors
from serving.errors import BundleError

Strings = Sequence[str] | NDArray[np.str_] | pl.Series
Advance = Callable[[float], None]


class Progress(Protocol):
    """Shows the progress of a phase with that many units; yields a callable that reports finished ones."""

    def __call__(self, description: str, total: float, unit: str) -> AbstractContextManager[Advance]:
        """Begins the phase."""
        ...


@contextmanager
def no_progress(description: str, total: float, unit: str) -> Iterator[Advance]:
    """A `Progress` that shows nothing."""
    yield lambda _: None


def write_ids(path: Path, column: str, ids: Strings) -> None:
    """Writes ids as a column, and beside it as the table that the service maps."""
    values = (ids if isinstance(ids, pl.Series) else pl.Series(list(ids))).cast(pl.String)
    values.alias(column).to_frame().write_parquet(path)
    # Faults of the column are reported when it is read back.
    Ids.of(values.drop_nulls()).save(path.parent, column)


def copy_vectors(vectors: NDArray[np.float32], path: Path, advance: Advance) -> None:
    """Copies [M, D] in blocks, so that neither side needs to fit in memory; `advance` gets the rows of each."""
    if vectors.ndim != 2:
        raise BundleError(f"{path.name}: vectors must be [M, D], got {vectors.shape}")
    write_blocks(path, vectors.shape, lambda part: vectors[part], advance)


def write_prior(
    directory: Path,
    vectors: NDArray[np.float32],
    prior: PriorInfo,
    item_prior: ArrayLike,
    advance: Advance = lambda _: None,
) -> None:
    """Writes log shares [N, 2] and the vectors that recall searches, [N, D + 2].

    Raises:
        BundleError: the shares are not [N, 2].
    """
    shares = np.asarray(item_prior, np.float32)
    if shares.shape != (len(vectors), COLUMNS):
        raise BundleError(f"{files.ITEM_PRIOR}: must be [{len(vectors)}, {COLUMNS}], got {list(shares.shape)}")
    np.save(directory / files.ITEM_PRIOR, shares, allow_pickle=False)
    shape = len(vectors), vectors.shape[1] + COLUMNS
    path = directory / files.RECALL_VECTORS
    write_blocks(path, shape, lambda part: recall_vectors(vectors[part], shares[part], prior), advance)


def write_blocks(
    path: Path,
    shape: tuple[int, ...],
    rows: Callable[[slice], NDArray[np.float32]],
    advance: Advance = lambda _: None,
) -> None:
    """Writes a float32 array of `shape`, a block of `rows` at a time; `advance` gets the rows of each."""
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        for start in range(0, shape[0], files.BLOCK_ROWS):
            block = np.ascontiguousarray(rows(slice(start, start + files.BLOCK_ROWS)), np.float32)
            block.tofile(file)
            advance(len(block))
