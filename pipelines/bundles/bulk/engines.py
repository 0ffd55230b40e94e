"""What Ray and Spark call in each of their processes (docs/service/bulk.md): one searcher, parts, and tables.

A batch of user ids flows in; the rows that `towers recall` writes for these users flow out.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import polars as pl

from pipelines.bundles.bulk import recall
from pipelines.bundles.bulk.parts import Shard
from pipelines.console import amount, no_bar
from pipelines.errors import DataError
from pipelines.ingest.formats.table import plain_numbers
from serving.bundle.manifest import read_manifest
from serving.recall.recaller import Recaller

__all__ = ["Shard", "searcher", "table"]


def searcher(bundle: Path) -> Recaller:
    """Opens a bundle once in a process, however often it is called, and again if another one is at this path.

    Args:
        bundle: the bundle directory.

    Raises:
        BundleError: the bundle is damaged.
    """
    return _searcher(bundle, read_manifest(bundle).model_dump_json())


def table(recaller: Recaller, users: pl.Series, k: int) -> pl.DataFrame:
    """Recalls k unseen items for each of some users.

    Args:
        recaller: from `searcher`.
        users: ids, as strings or whole numbers; unknown users get the popular items.
        k: items per user.

    Returns:
        The columns of `towers recall`, the users in the order of `users`, a user's items in that of their ranks.

    Raises:
        DataError: k is below 1, or `users` holds something else, or no id in some row.
    """
    if k < 1:
        raise DataError(f"k must be at least 1, got {k}")
    plain = plain_numbers(users)
    if not (plain.dtype == pl.String or plain.dtype.is_integer()):
        raise DataError(f"user ids must be strings or whole numbers, got {users.dtype}")
    names = plain.cast(pl.String)
    if empty := names.null_count() + int((names == "").sum()):
        raise DataError(f"no user id in {amount(empty, 'rows')} of {len(users):,}; leave them out")
    bundle, rows = recaller.bundle, recall.rows_of(recaller.bundle, names)
    k = min(k, bundle.manifest.items)
    with ThreadPoolExecutor(recall.AT_A_TIME, "recall") as pool:
        every = slice(0, len(rows))
        numbers = recall.numbers_of(recaller, pool, rows, every, k, recall.block_of(k), no_bar)
    return recall.names_of(numbers.lazy(), names, bundle.item_ids, no_bar).collect()


@lru_cache(maxsize=1)
def _searcher(bundle: Path, _manifest: str) -> Recaller:
    return recall.open_searcher(bundle, all_users=False)
