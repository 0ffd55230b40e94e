"""The files of a bundle: names, digests, and readers that refuse anything but plain data.

Every fault is a `BundleError` with path and reason.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from serving.background import Rest, no_pause
from serving.bundle.manifest import MANIFEST, FileInfo, Manifest
from serving.bundle.prior import weighs
from serving.errors import BundleError
from serving.search.vector_codes import DTYPES, Vectors, decoded

QUERY_TOWER, CANDIDATE_TOWER, INDEX = "query_tower", "candidate_tower", "index"
ITEM_IDS, ITEM_VECTORS, ITEM_SCALES = "item_ids.parquet", "item_vectors.npy", "item_scales.npy"
ITEM_ATTRIBUTES, POPULARITY = "item_attributes.parquet", "popularity.npy"
QUERY_IDS, QUERY_VECTORS = "query_ids.parquet", "query_vectors.npy"
ITEM_PRIOR, RECALL_VECTORS, POPULAR_COUNTS = "item_prior.npy", "recall_vectors.npy", "popular_counts.npy"
POPULAR_SEGMENTS = "popular_segments.parquet"
PROFILE_BYTES, PROFILE_OFFSETS = "query_profile_bytes.npy", "query_profile_offsets.npy"
PROFILE_ROWS = "query_profile_rows.npy"
SEEN_OFFSETS, SEEN_ITEMS, SEEN_TYPES = "seen_offsets.npy", "seen_items.npy", "seen_types.npy"
FIXED = (
    ITEM_IDS, ITEM_VECTORS, ITEM_ATTRIBUTES, POPULARITY, QUERY_IDS, QUERY_VECTORS, SEEN_OFFSETS, SEEN_ITEMS,
    f"{QUERY_TOWER}/saved_model.pb", f"{CANDIDATE_TOWER}/saved_model.pb",
)  # fmt: skip
OPTIONAL = {
    ITEM_SCALES, ITEM_PRIOR, RECALL_VECTORS, POPULAR_COUNTS, POPULAR_SEGMENTS, PROFILE_BYTES, PROFILE_OFFSETS,
    PROFILE_ROWS, SEEN_TYPES,
}  # fmt: skip
ID_PARTS = ("bytes", "offsets", "slots")  # of the tables of each column of ids, in every bundle since they exist
ID_TABLES = {f"{column}_{part}.npy" for column in ("item_id", "query_id") for part in ID_PARTS}
BLOCK_ROWS = 65_536  # rows of vectors read or written at a time
Number = TypeVar("Number", bound=np.generic)

_PICKLE_SUFFIXES = {".pkl", ".pickle", ".joblib", ".dill"}


def digest(path: Path) -> FileInfo:
    """Size and SHA-256 of a file."""
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return FileInfo(bytes=path.stat().st_size, sha256=sha256)


def digests(root: Path, paths: Iterable[Path], rest: Rest = no_pause) -> dict[str, FileInfo]:
    """Digests of files, in order, keyed by their path relative to `root`; `rest` is called after each."""
    found = {}
    for path in sorted(paths):
        found[path.relative_to(root).as_posix()] = digest(path)
        rest()
    return found


def files_under(directory: Path) -> list[Path]:
    """All files below a directory, sorted."""
    return sorted(path for path in directory.rglob("*") if path.is_symlink() or not path.is_dir())


def verify_files(bundle: Path, manifest: Manifest, *, content: bool, rest: Rest = no_pause) -> None:
    """Compares the directory with the manifest.

    Args:
        bundle: the directory.
        manifest: its manifest.
        content: also compare every SHA-256, which reads every byte.
        rest: called after each file.

    Raises:
        BundleError: a file is missing, of another size or content, a link, a pickle, or not in the manifest although
            it is read.
    """
    required = [*FIXED, *([ITEM_SCALES] if manifest.vectors == "int8" else [])]
    if manifest.prior is not None:
        joined = manifest.vectors == "float32" and weighs(manifest.prior)
        required += [ITEM_PRIOR, *([RECALL_VECTORS] if joined else [])]
    required += [POPULAR_SEGMENTS] if manifest.segmented_by is not None else []
    required += [SEEN_TYPES] if manifest.event_types else []
    for name in required:
        if name not in manifest.files:
            raise BundleError(f"{bundle / MANIFEST}: files: must name {name}, which every such bundle has")
    for name, info in manifest.files.items():
        path = bundle / name
        if not path.is_file():
            raise BundleError(f"{path}: missing")
        size = path.stat().st_size
        if size != info.bytes:
            reason = "truncated" if size < info.bytes else "altered"
            raise BundleError(f"{path}: {reason}: {size} bytes, the manifest says {info.bytes}")
        if content and digest(path).sha256 != info.sha256:
            raise BundleError(f"{path}: altered: its SHA-256 is not the manifest's")
        rest()
    loaded_whole = [QUERY_TOWER, CANDIDATE_TOWER]
    if manifest.index is not None and manifest.index.path is not None:
        loaded_whole.append(manifest.index.path)
    for path in files_under(bundle):
        name = path.relative_to(bundle).as_posix()
        if path.is_symlink():
            raise BundleError(f"{path}: a link; a bundle holds plain files")
        if _is_pickle(path):
            raise BundleError(f"{path}: a pickle; a bundle never holds one, for loading it would run its code")
        read = name in OPTIONAL | ID_TABLES or name.startswith(tuple(f"{each}/" for each in loaded_whole))
        if name not in manifest.files and read:
            raise BundleError(f"{path}: not in the manifest")


def open_array(bundle: Path, name: str, dtype: type[Number], shape: tuple[int | None, ...]) -> NDArray[Number]:
    """Memory-maps a `.npy` file.

    Args:
        bundle: the directory.
        name: the file's name.
        dtype: the element type it must have.
        shape: the shape it must have, None for any length.

    Raises:
        BundleError: it is missing, truncated, unreadable, a pickle, or of another type or shape.
    """
    path = bundle / name
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise BundleError(f"{path}: missing") from None
    except (ValueError, OSError, EOFError) as error:
        # The system's own reasons, such as no free file handle, say nothing about the file.
        reason = getattr(error, "strerror", None)
        told = f"cannot be read: {reason}" if reason else f"truncated or altered: {error}"
        raise BundleError(f"{path}: {told}") from None
    if array.dtype != dtype:
        raise BundleError(f"{path}: must hold {np.dtype(dtype)}, holds {array.dtype}")
    if len(shape) != array.ndim or any(want not in (None, have) for want, have in zip(shape, array.shape, strict=True)):
        wanted = ", ".join("any" if length is None else str(length) for length in shape)
        raise BundleError(f"{path}: must be [{wanted}], is {list(array.shape)}")
    plain: NDArray[Number] = np.asarray(array)  # The same mapping; np.memmap itself is slow to slice.
    return plain


def open_attributes(bundle: Path, items: int) -> tuple[NDArray[np.uint8], pl.Schema]:
    """Memory-maps the Parquet file of the item columns.

    Args:
        bundle: the directory.
        items: how many rows it must have.

    Returns:
        Its bytes; the columns and their types.

    Raises:
        BundleError: it is missing, not Parquet, or of another number of rows; or a column is of a type that no live
            item could have.
    """
    path = bundle / ITEM_ATTRIBUTES
    try:
        content = np.memmap(path, np.uint8, "r")
        frame = pl.scan_parquet(path, glob=False)
        schema, rows = frame.collect_schema(), frame.select(pl.len()).collect().item()
    except (pl.exceptions.PolarsError, OSError, ValueError) as error:
        raise BundleError(f"{path}: cannot be read as Parquet: {error}") from None
    if rows != items:
        raise BundleError(f"{path}: {rows} rows, the manifest says {items} items")
    for name, dtype in schema.items():
        number = dtype.is_float() or (dtype.is_integer() and dtype not in (pl.Int128, pl.UInt128))
        if not (number or dtype in (pl.String, pl.List(pl.String))):
            allowed = "allowed are String, List(String), integers of at most 64 bits and floats"
            raise BundleError(f"{path}: column {name!r} is {dtype}; {allowed}")
    return content, schema


def open_item_vectors(bundle: Path, manifest: Manifest) -> Vectors:
    """Memory-maps the item vectors, [N, D]; see `open_array`."""
    kind, shape = manifest.vectors, (manifest.items, manifest.dimension)
    codes = open_array(bundle, ITEM_VECTORS, DTYPES[kind], shape)
    scales = (open_array(bundle, ITEM_SCALES, np.float32, shape[:1]),) if kind == "int8" else ()
    return decoded(kind, (codes, *scales))


def refuse_not_finite(path: Path, vectors: NDArray[Any]) -> None:
    """Raises BundleError if a row of [M] or [M, D] holds NaN or infinity."""
    for start in range(0, len(vectors), BLOCK_ROWS):
        block = vectors[start : start + BLOCK_ROWS]
        finite = np.isfinite(block).reshape(len(block), -1).all(axis=1)
        if not finite.all():
            raise BundleError(f"{path}: row {start + int(np.argmin(finite))} holds NaN or infinity")


def open_ids(bundle: Path, name: str, column: str, count: int) -> pl.Series:
    """Reads a column of ids: strings, none missing, no duplicates.

    Raises:
        BundleError: the column is anything else, or does not hold `count` ids.
    """
    path = bundle / name
    try:
        ids = pl.read_parquet(path, columns=[column], use_statistics=False, glob=False)[column]
    except FileNotFoundError:
        raise BundleError(f"{path}: missing") from None
    except (pl.exceptions.PolarsError, OSError) as error:
        raise BundleError(f"{path}: cannot be read as Parquet with a column {column!r}: {error}") from None
    if ids.dtype != pl.String:
        raise BundleError(f"{path}: column {column!r} must hold strings, holds {ids.dtype}")
    if len(ids) != count:
        raise BundleError(f"{path}: {len(ids)} ids, the manifest says {count}")
    if ids.null_count():
        raise BundleError(f"{path}: row {ids.is_null().arg_max()} has no id")
    if ids.n_unique() != count:
        # Without the id, which may be a user's: this line goes to the service's log.
        raise BundleError(f"{path}: the id of row {ids.is_duplicated().arg_max()} is that of another row, too")
    return ids


def _is_pickle(path: Path) -> bool:
    if path.suffix.lower() in _PICKLE_SUFFIXES:
        return True
    if path.name == MANIFEST or path.suffix in {".npy", ".parquet"}:
        return False  # Their readers check: `open_array` allows no pickled objects.
    with path.open("rb") as file:
        head = file.read(2)
        if len(head) < 2 or head[0] != 0x80 or not 2 <= head[1] <= 5:
            return False
        file.seek(-1, 2)
        return file.read(1) == b"."


def open_segments(bundle: Path, items: int) -> dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Reads the popular items of each user segment.

    Raises:
        BundleError: a column, a length or an item row is invalid.
    """
    path = bundle / POPULAR_SEGMENTS
    try:
        frame = pl.read_parquet(path, glob=False).cast(
            {"segment": pl.String, "rows": pl.List(pl.Int64), "counts": pl.List(pl.Int64)}
        )
    except (pl.exceptions.PolarsError, OSError) as error:
        raise BundleError(f"{path}: cannot be read as Parquet: {error}") from None
    segments = {}
    for segment, rows, counts in frame.select("segment", "rows", "counts").iter_rows():
        own, number = np.array(rows, np.int64), np.array(counts, np.int64)
        if len(own) != len(number) or (len(own) and (own.min() < 0 or own.max() >= items)):
            raise BundleError(f"{path}: segment {segment!r}: a count for each row, and rows must lie in 0..{items - 1}")
        segments[segment] = own, number
    return segments
