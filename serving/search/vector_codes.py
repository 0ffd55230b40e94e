"""Item vectors as float16 or int8: half or a quarter of the memory, decoded to float32 wherever they are read.

int8 has one float32 scale per item: number = code times scale. A scale has 17 significant bits and a code 7, so their
product is a float32 without rounding. Hence encoding what was decoded gives the same codes again: vectors do not drift
from fold to fold.
"""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Arrays = tuple[NDArray[Any], ...]
VectorType = Literal["float32", "float16", "int8"]
DTYPES: dict[VectorType, type[np.generic]] = {"float32": np.float32, "float16": np.float16, "int8": np.int8}
MOST_HALF = float(np.finfo(np.float16).max)
_MOST_CODE, _LEAST_SCALE = 127, np.finfo(np.float32).tiny
_BITS_17 = np.uint32(0xFFFFFF80)
# Of a float16 moved into the places of a float32: the sign and all that is not a copy of it.
_HALF_BITS = np.array(0x8FFFE000, np.uint32).view(np.int32)
# Numbers decoded at a time for a matrix product: they stay in a core's cache.
_PIECE_NUMBERS = 524_288


class CodedVectors:
    """[N, D] vectors that decode as they are read: to a reader float32, like a memory-mapped array.

    Args:
        decode: gets the same rows of each array; returns float32 [..., D].
        dimension: D.
        arrays: N rows each, may be memory-mapped.
    """

    def __init__(self, decode: Callable[..., Floats], dimension: int, *arrays: NDArray[Any]) -> None:
        self._decode, self.arrays = decode, arrays
        self.shape = len(arrays[0]), dimension
        self.size = len(arrays[0]) * dimension

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Floats:
        return self._decode(*(array[rows] for array in self.arrays))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[:].astype(dtype or np.float32, copy=False)

    def take(self, rows: NDArray[np.int64], axis: Literal[0] = 0, mode: Literal["clip"] = "clip") -> Floats:
        """The vectors [..., D] of rows [...]; a negative row reads row 0."""
        return self._decode(*(array.take(rows, axis=axis, mode=mode) for array in self.arrays))

    def joined(self, columns: NDArray[Any], join: Callable[[Floats, Any], Floats], more: int) -> "CodedVectors":
        """These vectors with `more` columns, which `join` makes of them and of the same rows of `columns`."""

        def decode(*arrays: Any) -> Floats:
            return join(self._decode(*arrays[:-1]), arrays[-1])

        return CodedVectors(decode, self.shape[1] + more, *self.arrays, columns)


Vectors = Floats | CodedVectors


def encode(vectors: Floats, kind: VectorType) -> Arrays:
    """Codes [M, D], and for int8 scales [M], of vectors [M, D].

    float16 rounds each number to the nearest, and those beyond 65,504 to that. int8 is at most half a scale off, and a
    scale is a 127th of the vector's greatest number, or 2**-126. Only int8 keeps NaN and infinity, in the scale.
    """
    if kind == "float32":
        return (vectors,)
    if kind == "float16":
        return (np.clip(vectors, -MOST_HALF, MOST_HALF).astype(np.float16),)
    scales = np.maximum(np.abs(vectors).max(axis=1) / _MOST_CODE, _LEAST_SCALE).astype(np.float32)
    # Rounded down, so that 127 times the scale does not overflow.
    scales = (scales.view(np.uint32) & _BITS_17).view(np.float32)
    with np.errstate(invalid="ignore"):
        return np.rint(vectors / scales[:, np.newaxis]).astype(np.int8), scales


def decoded(kind: VectorType, arrays: Arrays) -> Vectors:
    """The vectors of what `encode` returned, decoded as they are read."""
    if kind == "float32":
        plain: Floats = arrays[0]
        return plain
    return CodedVectors(_of_halves if kind == "float16" else _of_codes, arrays[0].shape[1], *arrays)


def arrays_of(vectors: Vectors) -> Arrays:
    """The arrays that `decoded` was given."""
    return vectors.arrays if isinstance(vectors, CodedVectors) else (vectors,)


def rounded(vectors: Floats, kind: VectorType) -> Floats:
    """Vectors [M, D] as they come back from a bundle of this kind."""
    return vectors if kind == "float32" else np.asarray(decoded(kind, encode(vectors, kind)))


def products(queries: Floats, vectors: Vectors, first: int, last: int) -> Floats:
    """The matrix product [B, last - first] of queries [B, D] and the vectors of rows `first` to `last`."""
    if isinstance(vectors, np.ndarray):
        return queries @ vectors[first:last].T
    found = np.empty((len(queries), last - first), np.float32)
    step = max(1, _PIECE_NUMBERS // queries.shape[1])
    for start in range(first, last, step):
        end = min(start + step, last)
        np.matmul(queries, vectors[start:end].T, out=found[:, start - first : end - first])
    return found


def _of_codes(codes: NDArray[np.int8], scales: Floats) -> Floats:
    vectors = codes.astype(np.float32)
    vectors *= scales[..., np.newaxis]
    return vectors


def _of_halves(codes: NDArray[np.float16]) -> Floats:
    # The bits moved to their places in a float32, times the ratio of the two exponents' biases: a third of the time of
    # a cast, which NumPy does one number at a time. A float16 below 2**-14 becomes a subnormal float32 on the way.
    bits = codes.view(np.int16).astype(np.int32)
    bits <<= 13
    bits &= _HALF_BITS
    vectors = bits.view(np.float32)
    vectors *= np.float32(2.0**112)
    return vectors
