"""`towers recall`: the items of every user, or of the listed ones, as one Parquet file.

In: BUNDLE, k, maybe a file of user ids. Out: Parquet with the columns user_id (String), rank (UInt32, from 1), item_id
(String), score (Float32), source (String: "user" or "popular"), one row per item, in the order of the users. Users are
done in parts that lie in a hidden directory beside the output until all are there: a killed run goes on where it was.
One process at a time works on an output: it holds a lock on that directory.
"""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import polars as pl

from pipelines.alone import alone
from pipelines.errors import DataError
from pipelines.progress import progress, say
from pipelines.users_file import read_users
from serving.filtering import popular
from serving.index import Floats, Rows
from serving.manifest import MANIFEST
from serving.opening import missing_index, open_recaller
from serving.recall import Recaller
from serving.staging import refuse_existing, remove, staged

PART_ROWS = 1_000_000
SEARCH_USERS = 1_024
# While one search is in ScaNN, which uses all processors, another one rescores.
AT_A_TIME = 2
HASHED_USERS = 100_000


def run(bundle: Path, k: int, out: Path, *, users: Path | None = None, overwrite: bool = False) -> int:
    """Recalls k unseen items for many users, in bounded memory.

    Args:
        bundle: the bundle directory.
        k: items per user.
        out: the Parquet file to write.
        users: a file with a column `user_id` (csv, parquet, jsonl, or txt with one id a line); None takes every user of
            the bundle. Unknown users get the popular items.
        overwrite: replace what is at `out`.

    Returns:
        The number of users.

    Raises:
        DataError: k or the file of users is wrong, or another process works on `out`.
        BundleError: the bundle is not whole.
        OutputExistsError: `out` is taken.
    """
    _refuse(k, out, overwrite=overwrite)
    recaller = open_recaller(bundle, tower=False)
    if warning := missing_index(recaller.bundle):
        say(f"warning: {warning}")
    return write_all(recaller, k, out, users=users, overwrite=overwrite)


def write_all(recaller: Recaller, k: int, out: Path, *, users: Path | None = None, overwrite: bool = False) -> int:
    """`run` with a bundle that is open already."""
    _refuse(k, out, overwrite=overwrite)
    bundle = recaller.bundle
    user_ids = bundle.query_ids if users is None else read_users(users)
    rows = np.arange(len(user_ids)) if users is None else np.array([*map(bundle.query_rows.find, user_ids)], np.int64)
    hidden = out.absolute().parent / f".{out.name}.parts"
    with alone(hidden, f"{out}: another process is working on it; wait for it, or name another --out"):
        parts = _parts_directory(hidden, _job(bundle.path, k, user_ids))
        done = []
        size = max(1, PART_ROWS // k)
        with (
            progress("recall", total=len(rows), unit="users") as advance,
            ThreadPoolExecutor(AT_A_TIME, "recall") as pool,
        ):
            # At least one part: no users still make a file with the right columns.
            for number, first in enumerate(range(0, max(1, len(rows)), size)):
                part = parts / f"{number:06d}.arrow"
                if not part.exists():
                    with staged(part) as staging:
                        _recall_part(recaller, pool, rows, first, min(first + size, len(rows)), k).write_ipc(staging)
                done.append(part)
                advance(min(size, len(rows) - first))
        with staged(out, overwrite=overwrite) as staging:
            _named(pl.scan_ipc(done, glob=False), user_ids, bundle.item_ids).sink_parquet(
                staging, compression="lz4", statistics=False, maintain_order=True
            )
        remove(hidden)
    return len(user_ids)


def _refuse(k: int, out: Path, *, overwrite: bool) -> None:
    if k < 1:
        raise DataError(f"--k must be at least 1, got {k}")
    refuse_existing(out, overwrite=overwrite)


def _recall_part(
    recaller: Recaller, pool: ThreadPoolExecutor, rows: Rows, first: int, last: int, k: int
) -> pl.DataFrame:
    """The numbers of users `first` to `last`, in their order; memory is that of few searches, and of the result."""
    common = popular(recaller.bundle, k, np.empty(0, np.int64))
    starts = range(first, max(last, first + 1), SEARCH_USERS)
    ends = [min(start + SEARCH_USERS, last) for start in starts]
    frames = pool.map(lambda start, end: _recalled(recaller, rows[start:end], start, k, common), starts, ends)
    return pl.concat(list(frames))


def _recalled(recaller: Recaller, rows: Rows, first: int, k: int, common: tuple[Rows, Floats]) -> pl.DataFrame:
    """What some users get.

    Args:
        recaller: answers.
        rows: [B] the users' rows in the bundle, -1 where it does not know them.
        first: the number of the first of these users.
        k: items per user.
        common: the rows and scores of the popular items, at most k.

    Returns:
        Numbers only, which become names when all are done: `user`, `rank`, `item`, `score`, and whether a stored vector
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


def _named(numbers: pl.LazyFrame, user_ids: pl.Series, item_ids: pl.Series) -> pl.LazyFrame:
    """The table that a person asked for."""

    def gathered(column: str, ids: pl.Series) -> pl.Expr:
        return pl.col(column).map_batches(ids.gather, return_dtype=pl.String, is_elementwise=True)

    return numbers.select(
        gathered("user", user_ids).alias("user_id"),
        "rank",
        gathered("item", item_ids).alias("item_id"),
        "score",
        pl.when("stored").then(pl.lit("user")).otherwise(pl.lit("popular")).alias("source"),
    )


def _job(bundle: Path, k: int, user_ids: pl.Series) -> str:
    """A name for exactly these inputs."""
    key = hashlib.sha256((bundle / MANIFEST).read_bytes())
    key.update(f"{k} {len(user_ids)} {PART_ROWS}".encode())
    for first in range(0, len(user_ids), HASHED_USERS):
        key.update("\n".join(user_ids.slice(first, HASHED_USERS).to_list()).encode("utf-8", "surrogatepass"))
    return key.hexdigest()[:16]


def _parts_directory(hidden: Path, job: str) -> Path:
    """Where the finished parts of exactly this job lie; those of other inputs for the same output are removed."""
    parts = hidden / job
    for other in list(hidden.iterdir()):
        if other != parts:
            say(f"recall: unfinished parts of other inputs removed: {other}")
            remove(other)
    if parts.exists():
        for half in parts.glob(".*.partial"):
            remove(half)
        say(f"recall: going on with {len(list(parts.glob('*.arrow')))} finished parts")
    parts.mkdir(exist_ok=True)
    return parts
