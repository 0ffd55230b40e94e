"""Writes the arrays and the ids of a bundle."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, DTypeLike, NDArray

from serving.bundle import arrays as files
from serving.bundle.ids import Ids
from serving.bundle.manifest import PriorInfo
from serving.bundle.prior import COLUMNS, recall_vectors, weighs
from serving.errors import BundleError
from serving.search.vector_codes import DTYPES, MOST_HALF, VectorType, encode

Strings = Sequence[str] | NDArray[np.str_] | pl.Series
Advance = Callable[[float], None]
# Begins a phase: description, total and unit; shows its progress, and yields what reports finished units.
Progress = Callable[[str, float, str], AbstractContextManager[Advance]]


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


def copy_vectors(vectors: NDArray[np.float32], path: Path, advance: Advance, kind: VectorType = "float32") -> None:
    """Copies [M, D] in blocks, so that neither side needs to fit in memory; `advance` gets the rows of each.

    Raises:
        BundleError: they are not [M, D], or float16 does not hold a number.
    """
    if vectors.ndim != 2:
        raise BundleError(f"{path.name}: vectors must be [M, D], got {vectors.shape}")
    scales: list[NDArray[np.float32]] = []

    def codes(part: slice) -> NDArray[Any]:
        block = np.asarray(vectors[part], np.float32)
        if kind == "float16" and not (held := np.abs(block) <= MOST_HALF).all():
            row, column = np.argwhere(~held)[0]
            number = f"row {part.start + row} holds {block[row, column]:g}"
            raise BundleError(f"{path.name}: {number}; float16 holds up to {MOST_HALF:,.0f}: take int8 or float32")
        found, *its_scales = encode(block, kind)
        scales.extend(its_scales)
        return found

    write_blocks(path, vectors.shape, codes, advance, DTYPES[kind])
    if scales:
        np.save(path.with_name(files.ITEM_SCALES), np.concatenate(scales), allow_pickle=False)


def write_prior(
    directory: Path,
    vectors: NDArray[np.float32],
    kind: VectorType,
    prior: PriorInfo,
    item_prior: ArrayLike,
    advance: Advance = lambda _: None,
) -> None:
    """Writes log shares [N, 2] and, for float32, the vectors that recall searches, [N, D + 2]; others decode to them.

    A prior whose weights are zero leaves recall the vectors as they are.

    Raises:
        BundleError: the shares are not [N, 2].
    """
    shares = np.asarray(item_prior, np.float32)
    if shares.shape != (len(vectors), COLUMNS):
        raise BundleError(f"{files.ITEM_PRIOR}: must be [{len(vectors)}, {COLUMNS}], got {list(shares.shape)}")
    np.save(directory / files.ITEM_PRIOR, shares, allow_pickle=False)
    if kind != "float32" or not weighs(prior):
        advance(len(vectors))
        return
    shape = len(vectors), vectors.shape[1] + COLUMNS
    path = directory / files.RECALL_VECTORS
    write_blocks(path, shape, lambda part: recall_vectors(vectors[part], shares[part], prior), advance)


def write_blocks(
    path: Path,
    shape: tuple[int, ...],
    rows: Callable[[slice], NDArray[Any]],
    advance: Advance = lambda _: None,
    dtype: DTypeLike = np.float32,
) -> None:
    """Writes an array of `shape`, a block of `rows` at a time; `advance` gets the rows of each."""
    descr = np.dtype(dtype).newbyteorder("<").str
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
        for start in range(0, shape[0], files.BLOCK_ROWS):
            block = np.ascontiguousarray(rows(slice(start, start + files.BLOCK_ROWS)), descr)
            block.tofile(file)
            advance(len(block))
