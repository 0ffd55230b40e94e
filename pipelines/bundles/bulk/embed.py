"""`towers embed`: writes vectors of users or items, from a file of raw features, to one Parquet file, or one per shard.

The columns are user_id or item_id (String) and vector (an array of D Float32), one row per row of the file, in order.
`pipelines.bundles.bulk.parts` makes a killed run resume.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl

from pipelines.bundles.bulk.feature_file import FeatureFile, Request
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
from pipelines.bundles.bulk.trained_columns import TrainedColumns
from pipelines.console import Advance, amount, phase, phases, progress, say
from pipelines.dataset.manifest import digest_of
from pipelines.errors import DataError
from pipelines.ingest.formats.copies import local_copies
from pipelines.service.verify import VERIFY, verify
from serving.bundle.encoder import Encoder
from serving.bundle.reader import Bundle
from serving.bundle.request_features import check_features
from serving.files.staging import staged
from serving.recall.histories import Histories
from serving.search.index import Floats

READ, ENCODE, WRITE = "read", "encode", "write"
BLOCK_ROWS = 1_024
PART_ROWS = 64 * BLOCK_ROWS

Encode = Callable[[list[Request]], Floats]


def run(
    bundle: Path,
    out: Path,
    *,
    users: Path | str | None = None,
    items: Path | str | None = None,
    shard: str | None = None,
    overwrite: bool = False,
) -> int:
    """Encodes the rows of a file with a tower of a bundle, in bounded memory.

    Args:
        bundle: the bundle directory.
        out: the Parquet file to write; with `shard` the folder of the files of all shards.
        users: a file with a column `user_id` and columns named like the inputs of the query tower (csv, tsv, parquet or
            jsonl, also packed as .gz, or a URL); inputs without a column are missing in every row.
        items: likewise for the candidate tower, with `item_id`.
        shard: "I/N" writes part I of N; a finished one is left as it is.
        overwrite: replace an existing `out`, or the file of the shard.

    Returns:
        The number of rows, of the shard if there is one.

    Raises:
        BusyError: another process works on the same file.
        DataError: not exactly one of `users` and `items`, a wrong shard or file, or the folder holds shards of another
            N or of other inputs.
        BundleError: the bundle is damaged.
        OutputExistsError: `out` exists, or is a file that this command reads or never writes.
    """
    of_users = items is None
    source = users if of_users else items
    if source is None or (users is not None and items is not None):
        raise DataError("give one file of features: --users or --items")
    part = None if shard is None else Shard.parse(shard)
    if part is None:
        refuse_taken(out, overwrite=overwrite, inputs=[users, items, *bundle.glob("*.parquet")])
    else:
        part.refuse(out)
    phases("embed", VERIFY, READ, ENCODE, WRITE)
    (opened,) = verify(bundle)
    rows_of, column = ("users", "user_id") if of_users else ("items", "item_id")
    tower = Encoder.of_queries(opened) if of_users else Encoder.of_items(opened)
    encode = _of_known_items(tower, opened) if of_users else tower.encode
    with local_copies() as copies:
        with phase(READ):
            trained = TrainedColumns.of(opened, "query" if of_users else "candidate")
            file = FeatureFile(copies.local(source), column, tower.features, copies, trained)
            digest = digest_of_rows(file.ids, digest_of(file.path))
        blocks = f"{BLOCK_ROWS}x{PART_ROWS}"
        job = job_of("embed", opened.manifest, **{rows_of: digest}, blocks=blocks, histories="known")
        chosen = (part or Shard(1, 1)).rows(len(file.ids), BLOCK_ROWS)
        if part is not None:
            out = part.join(out, job)
            if out.exists() and not overwrite:
                remove_parts(out)
                say(f"{out}: complete already; --overwrite makes it again")
                return len(chosen)
        with parts_beside(out, job, "embed") as parts:
            with progress(ENCODE, total=len(chosen), unit="rows") as advance:
                done = part_files(
                    parts,
                    len(chosen),
                    PART_ROWS,
                    lambda some: _embed_part(file, encode, tower.dimension, chosen[some], advance),
                    advance,
                )
            unknown = _write(pl.scan_ipc(done, glob=False), column, len(chosen), out, overwrite=overwrite)
    note = f"; a zero vector for {unknown:,} of them, about whose features training learnt nothing" if unknown else ""
    say(f"{out}: {amount(len(chosen), 'vectors')} of {amount(tower.dimension, 'numbers')}{note}")
    return len(chosen)


def _of_known_items(tower: Encoder, bundle: Bundle) -> Encode:
    """Encodes queries as `POST /embed` does: of a history only what the tower knows counts for its length."""
    histories = Histories(bundle)

    def encode(requests: list[Request]) -> Floats:
        for request in requests:
            check_features(tower.features, request)
            histories.fill(request, histories.known(request, ()), None, ())
        return tower.encode(requests)

    return encode if histories.specs else tower.encode


def _embed_part(file: FeatureFile, encode: Encode, dimension: int, rows: range, advance: Advance) -> pl.DataFrame:
    """Encodes some rows of a file, a block at a time."""
    vectors = np.empty((len(rows), dimension), np.float32)
    for first in range(0, len(rows), BLOCK_ROWS):
        block = slice(first, first + BLOCK_ROWS)
        vectors[block] = file.encoded(rows[block], encode)
        advance(len(rows[block]))
    schema = {file.column: pl.String(), "vector": pl.Array(pl.Float32, dimension)}
    ids = file.ids.slice(rows.start, len(rows))
    return pl.DataFrame([ids, pl.Series("vector", vectors)], schema=schema)


def _write(table: pl.LazyFrame, column: str, rows: int, out: Path, *, overwrite: bool) -> int:
    """Writes a table of ids and vectors, and returns how many of its vectors are zero."""
    vector = pl.col("vector").arr
    zero = ((vector.min() == 0) & (vector.max() == 0)).sum()
    unknown = int(table.select(zero).collect(engine="streaming").item())
    with progress(WRITE, total=rows, unit="rows") as advance, staged(out, overwrite=overwrite) as staging:

        def count(ids: pl.Series) -> pl.Series:
            advance(len(ids))
            return ids

        ids = pl.col(column).map_batches(count, return_dtype=pl.String, is_elementwise=True)
        write_parquet(table.with_columns(ids), staging)
    return unknown
