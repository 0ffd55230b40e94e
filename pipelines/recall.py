"""`towers recall`: the items of every user, or of the listed ones, as one Parquet file.

In: BUNDLE, k, maybe a file of user ids. Out: Parquet with the columns user_id (String), rank (UInt32, from 1), item_id
(String), score (Float32), source (String: "user" or "popular"), one row per item, in the order of the users. Users are
done in parts that lie in a hidden directory beside the output until all are there: a killed run goes on where it was.
One process at a time works on an output: it holds a lock on that directory.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from pipelines.alone import alone
from pipelines.errors import DataError
from pipelines.progress import progress, say
from pipelines.users_file import read_users
from serving.filtering import popular
from serving.manifest import MANIFEST
from serving.opening import open_recaller
from serving.recall import Recaller
from serving.staging import refuse_existing, remove, staged

PART_ROWS = 1_000_000
SEARCH_USERS = 1_024


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
    if k < 1:
        raise DataError(f"--k must be at least 1, got {k}")
    refuse_existing(out, overwrite=overwrite)
    recaller = open_recaller(bundle, tower=False)
    user_ids = recaller.bundle.query_ids if users is None else read_users(users)
    hidden = out.absolute().parent / f".{out.name}.parts"
    with alone(hidden, f"{out}: another process is working on it; wait for it, or name another --out"):
        parts = _parts_directory(hidden, _job(bundle, k, user_ids))
        done = []
        with progress("recall", total=len(user_ids), unit="users") as advance:
            for number, part_ids in enumerate(_slices(user_ids, max(1, PART_ROWS // k))):
                part = parts / f"{number:06d}.parquet"
                if not part.exists():
                    with staged(part) as staging:
                        pl.concat(list(_recall_part(recaller, part_ids, k))).write_parquet(staging)
                done.append(part)
                advance(len(part_ids))
        with staged(out, overwrite=overwrite) as staging:
            pl.scan_parquet(done, glob=False).sink_parquet(staging, maintain_order=True)
        remove(hidden)
    return len(user_ids)


def _recall_part(recaller: Recaller, user_ids: pl.Series, k: int) -> Iterator[pl.DataFrame]:
    """The rows of some users, in their order; memory is that of one search at a time, and of the result."""
    bundle = recaller.bundle
    common, common_scores = popular(bundle, k, np.empty(0, np.int64))
    for ids in _slices(user_ids, SEARCH_USERS):
        query_rows = np.array([bundle.query_rows.get(user_id, -1) for user_id in ids], np.int64)
        known = query_rows >= 0
        rows = np.full((len(ids), k), -1, np.int64)
        scores = np.full((len(ids), k), -np.inf, np.float32)
        stored = known.copy()
        if known.any():
            stored[known] = bundle.has_vector(query_rows[known])
            rows[known], scores[known] = recaller.recall_users(query_rows[known], k)
        rows[~known, : len(common)], scores[~known, : len(common)] = common, common_scores
        kept = rows >= 0
        owner, place = np.nonzero(kept)
        yield pl.DataFrame(
            {
                "user_id": ids.gather(owner),
                "rank": pl.Series(place + 1, dtype=pl.UInt32),
                "item_id": bundle.item_ids.gather(rows[kept]),
                "score": scores[kept],
                "source": pl.Series(np.where(stored, "user", "popular")).gather(owner),
            }
        )


def _slices(ids: pl.Series, size: int) -> Iterator[pl.Series]:
    # At least one slice: no users still make a file with the right columns.
    return (ids.slice(start, size) for start in range(0, max(1, len(ids)), size))


def _job(bundle: Path, k: int, user_ids: pl.Series) -> str:
    """A name for exactly these inputs."""
    key = hashlib.sha256((bundle / MANIFEST).read_bytes())
    key.update(f"{k} {len(user_ids)} {PART_ROWS}".encode())
    for ids in _slices(user_ids, 100_000):
        key.update("\n".join(ids.to_list()).encode("utf-8", "surrogatepass"))
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
        say(f"recall: going on with {len(list(parts.glob('*.parquet')))} finished parts")
    parts.mkdir(exist_ok=True)
    return parts
