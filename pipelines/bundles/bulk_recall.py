"""`towers recall`: writes the items of every user, or of listed users, to one Parquet file.

The columns are user_id (String), rank (UInt32, from 1), item_id (String), score (Float32) and source (String: "user" or
"popular"), one row per item, in the order of the users. Finished parts wait in a hidden directory beside the output, so
a killed run resumes. A lock on that directory admits one process at a time per output.
"""

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import polars as pl

from pipelines.console import Advance, amount, phases, progress, say
from pipelines.errors import DataError
from pipelines.ingest.id_files import read_users
from pipelines.service.verify import VERIFY, verify
from serving.bundle.manifest import MANIFEST
from serving.files.lock import exclusive
from serving.files.staging import refuse_existing, remove, staged
from serving.recall.loading import missing_index, open_index
from serving.recall.recaller import Recaller
from serving.search.index import Floats, Rows

SEARCH, WRITE = "search", "write"
PART_ROWS = 1_000_000
SEARCH_USERS = 1_024
# While one search is in ScaNN, which uses all processors, the other rescores.
AT_A_TIME = 2
HASHED_USERS = 100_000


def run(bundle: Path, k: int, out: Path, *, users: Path | str | None = None, overwrite: bool = False) -> int:
    """Recalls k unseen items for many users, in bounded memory.

    Args:
        bundle: the bundle directory.
        k: items per user.
        out: the Parquet file to write.
        users: a file with a column `user_id` (csv, tsv, parquet, jsonl, or txt with one id per line; also packed as
            .gz, or a URL); None takes every user of the bundle. Unknown users get the popular items.
        overwrite: replace an existing `out`.

    Returns:
        The number of users.

    Raises:
        BusyError: another process works on `out`.
        DataError: k or the file of users is wrong.
        BundleError: the bundle is damaged.
        OutputExistsError: `out` exists.
    """
    _refuse(k, out, overwrite=overwrite)
    phases("recall", VERIFY, SEARCH, WRITE)
    (opened,) = verify(bundle)
    if warning := missing_index(opened):
        say(f"warning: {warning}")
    return write_all(Recaller(opened, open_index(opened)), k, out, users=users, overwrite=overwrite)


def write_all(
    recaller: Recaller, k: int, out: Path, *, users: Path | str | None = None, overwrite: bool = False
) -> int:
    """Does the work of `run` with a bundle that is already open."""
    _refuse(k, out, overwrite=overwrite)
    bundle = recaller.bundle
    user_ids = bundle.query_ids if users is None else read_users(users)
    rows = np.arange(len(user_ids)) if users is None else np.array([*map(bundle.query_rows.find, user_ids)], np.int64)
    hidden = out.absolute().parent / f".{out.name}.parts"
    with exclusive(hidden, f"{out}: another process is working on it; wait for it, or name another --out"):
        parts = _parts_directory(hidden, _job(bundle.path, k, user_ids))
        done = []
        size = max(1, PART_ROWS // k)
        with (
            progress(SEARCH, total=len(rows), unit="users") as advance,
            ThreadPoolExecutor(AT_A_TIME, "recall") as pool,
        ):
            # At least one part, so that a file without users still has the right columns.
            for number, first in enumerate(range(0, max(1, len(rows)), size)):
                part = parts / f"{number:06d}.arrow"
                if not part.exists():
                    with staged(part) as staging:
                        last = min(first + size, len(rows))
                        _recall_part(recaller, pool, rows, first, last, k, advance).write_ipc(staging)
                else:
                    advance(min(size, len(rows) - first))
                done.append(part)
        numbers = pl.scan_ipc(done, glob=False)
        total = numbers.select(pl.len()).collect().item()
        with (
            progress(WRITE, total=total, unit="rows") as advance,
            staged(out, overwrite=overwrite) as staging,
        ):
            _named(numbers, user_ids, bundle.item_ids, advance).sink_parquet(
                staging, compression="lz4", statistics=False, maintain_order=True
            )
        remove(hidden)
    say(f"{out}: {amount(len(user_ids), 'users')}, the best {amount(k, 'items')} of each")
    return len(user_ids)


def first_user(out: Path) -> str:
    """Returns the id of the first user of a finished recall; "" if it holds none."""
    return "".join(pl.scan_parquet(out).select("user_id").head(1).collect()["user_id"])


def _refuse(k: int, out: Path, *, overwrite: bool) -> None:
    if k < 1:
        raise DataError(f"--k must be at least 1, got {k}")
    refuse_existing(out, overwrite=overwrite)


def _recall_part(
    recaller: Recaller, pool: ThreadPoolExecutor, rows: Rows, first: int, last: int, k: int, advance: Advance
) -> pl.DataFrame:
    """Recalls users `first` to `last`, in order; memory holds a few searches and the result."""
    popular = recaller.bundle.popular_rows[:k]
    common = popular, recaller.bundle.popular_counts[popular].astype(np.float32)
    starts = range(first, max(last, first + 1), SEARCH_USERS)
    ends = [min(start + SEARCH_USERS, last) for start in starts]
    frames = []
    for frame, start, end in zip(
        pool.map(lambda start, end: _recalled(recaller, rows[start:end], start, k, common), starts, ends),
        starts,
        ends,
        strict=True,
    ):
        frames.append(frame)
        advance(end - start)
    return pl.concat(frames)


def _recalled(recaller: Recaller, rows: Rows, first: int, k: int, common: tuple[Rows, Floats]) -> pl.DataFrame:
    """Recalls the items of some users.

    Args:
        recaller: searches the bundle.
        rows: [B] the users' rows in the bundle, -1 for unknown users.
        first: the number of the first of these users.
        k: items per user.
        common: rows and scores of the popular items, at most k.

    Returns:
        Numbers, which become names at the end: `user`, `rank`, `item`, `score`, and `stored`, whether a stored vector
        answered.
    """
    known = rows >= 0
    found, scores = np.full((len(rows), k), -1, np.int64), np.full((len(rows), k), -np.inf, np.float32)
    stored = known.copy()
    if known.any():
        stored[known] = recaller.bundle.has_vector(rows[known])
        found[known], scores[known] = recaller.recall_users(rows[known], k)
    found[~known, : len(common[0])], scores[~known, : len(common[0])] = common
    kept = found >= 0
    user, place = np.nonzero(kept)
    return pl.DataFrame(
        {
            "user": (user + first).astype(np.uint32),
            "rank": (place + 1).astype(np.uint32),
            "item": found[kept].astype(np.uint32),
            "score": scores[kept],
            "stored": stored[user],
        }
    )


def _named(numbers: pl.LazyFrame, user_ids: pl.Series, item_ids: pl.Series, advance: Advance) -> pl.LazyFrame:
    """Replaces the numbers by ids: the table that is written, which advances by its rows."""

    def names(rows: pl.Series) -> pl.Series:
        advance(len(rows))
        return item_ids.gather(rows)

    def gathered(column: str, gather: Callable[[pl.Series], pl.Series]) -> pl.Expr:
        return pl.col(column).map_batches(gather, return_dtype=pl.String, is_elementwise=True)

    return numbers.select(
        gathered("user", user_ids.gather).alias("user_id"),
        "rank",
        gathered("item", names).alias("item_id"),
        "score",
        pl.when("stored").then(pl.lit("user")).otherwise(pl.lit("popular")).alias("source"),
    )


def _job(bundle: Path, k: int, user_ids: pl.Series) -> str:
    """Returns a name for exactly these inputs."""
    key = hashlib.sha256((bundle / MANIFEST).read_bytes())
    key.update(f"{k} {len(user_ids)} {PART_ROWS}".encode())
    for first in range(0, len(user_ids), HASHED_USERS):
        key.update("\n".join(user_ids.slice(first, HASHED_USERS).to_list()).encode("utf-8", "surrogatepass"))
    return key.hexdigest()[:16]


def _parts_directory(hidden: Path, job: str) -> Path:
    """Returns the directory of this job's finished parts; removes parts of other inputs for the same output."""
    parts = hidden / job
    for other in list(hidden.iterdir()):
        if other != parts:
            say(f"recall: unfinished parts of other inputs removed: {other}")
            remove(other)
    if parts.exists():
        for half in parts.glob(".*.partial"):
            remove(half)
        say(f"recall: continuing with {amount(len(list(parts.glob('*.arrow'))), 'finished parts')}")
    parts.mkdir(exist_ok=True)
    return parts
