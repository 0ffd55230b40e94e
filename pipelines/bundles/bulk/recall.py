"""`towers recall`: writes the items of every user, or of listed users, to one Parquet file, or one per shard.

The columns are user_id (String), rank (UInt32, from 1), item_id (String), score (Float32) and source (String: "user" or
"popular"), one row per item, in the order of the users. `pipelines.bundles.bulk.parts` makes a killed run resume.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import polars as pl

from pipelines.bundles.bulk.parts import (
    Shard,
    digest_of_rows,
    job_of,
    part_files,
    parts_beside,
    refuse_taken,
    remove_parts,
    write_parquet,
)
from pipelines.console import Advance, amount, phases, progress, say
from pipelines.errors import DataError
from pipelines.ingest.id_files import read_users
from pipelines.service.verify import VERIFY, query_ids, refuse_changed, verify
from serving.bundle.reader import Bundle
from serving.client.address import shown_place
from serving.files.staging import staged
from serving.recall.loading import missing_index, open_index
from serving.recall.recaller import Recaller
from serving.search.index import Floats, Rows

SEARCH, WRITE = "search", "write"
PART_ROWS = 1_000_000
SEARCH_USERS = 1_024
# While one search is in ScaNN, which uses all cores, the others rescore. Measured on two cores: 3 is faster than 2, and
# more is no faster.
AT_A_TIME = 3


def run(
    bundle: Path,
    k: int,
    out: Path,
    *,
    users: Path | str | None = None,
    shard: str | None = None,
    overwrite: bool = False,
) -> int:
    """Recalls k unseen items for many users, in bounded memory.

    Args:
        bundle: the bundle directory.
        k: items per user.
        out: the Parquet file to write; with `shard` the folder of the files of all shards.
        users: a file with a column `user_id` (csv, tsv, parquet, jsonl, or txt with one id per line; also packed as
            .gz, or a URL); None takes every user of the bundle. Unknown users get the popular items, and are counted.
        shard: "I/N" writes part I of N; a finished one is left as it is.
        overwrite: replace an existing `out`, or the file of the shard.

    Returns:
        The number of users, of the shard if there is one.

    Raises:
        BusyError: another process works on the same file.
        DataError: k, the shard or the file of users is wrong, or the folder holds shards of another N or other inputs.
        BundleError: the bundle is damaged.
        OutputExistsError: `out` exists, or is a file that this command reads or never writes.
    """
    if k < 1:
        raise DataError(f"--k must be at least 1, got {k}")
    part = None if shard is None else Shard.parse(shard)
    if part is None:
        refuse_taken(out, overwrite=overwrite, inputs=[users, *bundle.glob("*.parquet")])
    else:
        part.refuse(out)
    phases("recall", VERIFY, SEARCH, WRITE)
    return write_all(open_searcher(bundle), k, out, users=users, shard=part, overwrite=overwrite)


def open_searcher(bundle: Path, *, all_users: bool = True) -> Recaller:
    """Opens a bundle for recall, after a check of every file.

    Args:
        bundle: the bundle directory.
        all_users: whether the column of its users' ids is needed, too, which takes memory.

    Raises:
        BundleError: the bundle is damaged.
        DataError: it was trained for the similarity of items.
    """
    (opened,) = verify(bundle)
    if opened.manifest.is_similarity:
        raise DataError(f"{bundle}: task = 'similarity' finds items for items, not for users; serve it: POST /similar")
    if warning := missing_index(opened):
        say(f"warning: {warning}")
    # The ids are read now, while they are those of the vectors: another bundle may lie here when the search ends.
    _ = opened.item_ids, all_users and opened.query_ids
    refuse_changed(opened)
    return Recaller(opened, open_index(opened))


def write_all(
    recaller: Recaller,
    k: int,
    out: Path,
    *,
    users: Path | str | None = None,
    shard: Shard | None = None,
    overwrite: bool = False,
) -> int:
    """Does the work of `run` with a bundle that is already open."""
    bundle = recaller.bundle
    user_ids = query_ids(bundle) if users is None else _listed(users, bundle)
    most = min(k, bundle.manifest.items)  # a longer list costs memory and time, and holds no more
    block = block_of(most)
    job = job_of("recall", bundle.manifest, users=digest_of_rows(user_ids), k=k, blocks=f"{block}x{PART_ROWS}")
    chosen = (shard or Shard(1, 1)).rows(len(user_ids), block)
    if shard is not None:
        out = shard.join(out, job)
        if out.exists() and not overwrite:
            remove_parts(out)
            say(f"{out}: complete already; --overwrite makes it again")
            return len(chosen)
    names = user_ids.slice(chosen.start, len(chosen))
    rows = np.arange(chosen.start, chosen.stop) if users is None else rows_of(bundle, names)
    size = max(1, PART_ROWS // (most * block)) * block
    with parts_beside(out, job, "recall") as parts:
        with (
            progress(SEARCH, total=len(rows), unit="users") as advance,
            ThreadPoolExecutor(AT_A_TIME, "recall") as pool,
        ):
            done = part_files(
                parts,
                len(rows),
                size,
                lambda some: numbers_of(recaller, pool, rows, some, most, block, advance),
                advance,
            )
        numbers = pl.scan_ipc(done, glob=False)
        total = numbers.select(pl.len()).collect().item()
        with progress(WRITE, total=total, unit="rows") as advance, staged(out, overwrite=overwrite) as staging:
            write_parquet(names_of(numbers, names, bundle.item_ids, advance), staging)
    short = f", or those that are left: {amount(total, 'rows')}" if total < k * len(rows) else ""
    say(f"{out}: {amount(len(rows), 'users')}, the best {amount(k, 'items')} of each{short}")
    return len(rows)


def _listed(users: Path | str, bundle: Bundle) -> pl.Series:
    """Reads the users of all shards, and says how many of them the bundle does not know: all may be new."""
    listed, known = read_users(users), query_ids(bundle)
    strange = listed.filter(~listed.is_in(known.implode()))
    if len(strange):
        counts = f"{len(strange):,} of its {amount(len(listed), 'users')}"
        ids = f"{strange[0]!r} for one" + (f" (the bundle has {known[0]!r})" if len(known) else "")
        say(f"warning: {shown_place(users)}: {counts}, {ids}, are not in {bundle.path}: they get the popular items")
    return listed


def first_user(out: Path) -> str:
    """Returns the id of the first user of a finished recall, a file or a folder of shards; "" if it holds none."""
    file = min(out.glob("part-*.parquet")) if out.is_dir() else out
    return "".join(pl.scan_parquet(file, glob=False).select("user_id").head(1).collect()["user_id"])


def block_of(k: int) -> int:
    """Users that are searched together, counted from the first of all shards; also bounds memory for a large k."""
    return max(1, min(SEARCH_USERS, PART_ROWS // k))


def rows_of(bundle: Bundle, users: pl.Series) -> Rows:
    """The rows of users in a bundle, -1 for unknown users."""
    return np.array([*map(bundle.query_rows.find, users)], np.int64)


def numbers_of(
    recaller: Recaller, pool: ThreadPoolExecutor, rows: Rows, some: slice, k: int, block: int, advance: Advance
) -> pl.DataFrame:
    """Recalls `some` users, `block` at a time, in order; memory holds a few searches and the result."""
    popular = recaller.bundle.popular_rows[:k]
    common = popular, recaller.bundle.popular_counts[popular].astype(np.float32)
    starts = range(some.start, max(some.stop, some.start + 1), block)
    ends = [min(start + block, some.stop) for start in starts]
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


def names_of(numbers: pl.LazyFrame, user_ids: pl.Series, item_ids: pl.Series, advance: Advance) -> pl.LazyFrame:
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
