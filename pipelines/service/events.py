"""`towers events export`: writes a journal's events and impressions as files that `towers prepare` reads.

`events.parquet`: one row per event with weight 1, then one per item that was shown and never taken with weight 0: an
impression without a response. `impressions.parquet`: one row per item shown, with the request and the position.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import polars as pl

from pipelines.console import amount, phases, progress, say
from pipelines.errors import DataError
from pipelines.service.state import in_blocks, open_journal
from serving.catalogue.journal import Impression, Journal, UserEvent
from serving.catalogue.journal_rows import IMPRESSION
from serving.files.database_url import DatabaseUrl
from serving.files.staging import OutputExistsError, refuse_existing, staged

READ, WRITE = "read", "write"
EVENTS, IMPRESSIONS = "events.parquet", "impressions.parquet"  # the latter has no file of raw events beside it
EVENT_COLUMNS = {
    "user_id": pl.String,
    "item_id": pl.String,
    "timestamp": pl.Int64,
    "event_type": pl.String,
    "weight": pl.Float32,
}
IMPRESSION_COLUMNS = {
    "impression_id": pl.String,
    "request_id": pl.String,
    "user_id": pl.String,
    "item_id": pl.String,
    "position": pl.Int64,
    "timestamp": pl.Int64,
}


def run(state: Path | DatabaseUrl, out: Path, *, overwrite: bool = False) -> None:
    """Exports a journal; a service may go on writing to it.

    Args:
        state: the service's state directory or database.
        out: the directory to write.
        overwrite: replace an earlier export.

    Raises:
        DataError: there is no journal, it cannot be read, or a user was forgotten meanwhile; nothing was written.
        OutputExistsError: `out` exists, or holds what no export wrote.
    """
    refuse_existing(out, overwrite=overwrite, marker=IMPRESSIONS)
    if out.is_dir() and (others := sorted({each.name for each in out.iterdir()} - {EVENTS, IMPRESSIONS})):
        raise OutputExistsError(f"{out} holds {others[0]}, which this command did not write; name another --out")
    with open_journal(state) as journal:
        phases("events export", READ, WRITE)
        forgotten = journal.forgotten()
        _, events, shown = journal.counts()
        with progress(READ, total=events + shown, unit="rows") as advance:
            # In this order: of an item that is shown and taken meanwhile the event is read, too.
            impressions = pl.concat(map(_impressions, in_blocks(journal.impressions_since, advance)), how="vertical")
            taken = pl.concat(map(_events, in_blocks(journal.events_since, advance)), how="vertical")
        # What a user took, whenever that was, is no negative of theirs.
        missed = impressions.join(taken, on=["user_id", "item_id"], how="anti", maintain_order="left")
        missed = missed.select(
            "user_id", "item_id", "timestamp", event_type=pl.lit(IMPRESSION), weight=pl.lit(0.0, pl.Float32)
        )
        files = {EVENTS: pl.concat([taken, missed]), IMPRESSIONS: impressions}
        check = partial(_refuse_forgotten, journal, forgotten, state)
        with (
            progress(WRITE, total=sum(map(len, files.values())), unit="rows") as advance,
            staged(out, overwrite=overwrite, marker=IMPRESSIONS, check=check) as directory,
        ):
            directory.mkdir()
            for name, frame in files.items():
                frame.write_parquet(directory / name)
                advance(len(frame))
    told = f"{amount(impressions.height, 'items')} shown, {missed.height:,} of them never taken"
    say(f"{out}: {amount(taken.height, 'events')}, {told}")


def _refuse_forgotten(journal: Journal, before: int, state: Path | DatabaseUrl) -> None:
    """Refuses what was read while a user was forgotten: it may hold the user's impressions alone."""
    if journal.forgotten() != before:
        raise DataError(f"--state {state}: a user was forgotten meanwhile; nothing was written: give the command again")


def _events(block: Sequence[tuple[int, UserEvent]]) -> pl.DataFrame:
    rows = [(each.user_id, each.item_id, each.time, each.type, 1.0) for _, each in block]
    return pl.DataFrame(rows, EVENT_COLUMNS, orient="row")


def _impressions(block: Sequence[tuple[int, Impression]]) -> pl.DataFrame:
    rows = [
        (each.impression_id, each.request_id, each.user_id, item_id, position, each.time)
        for _, each in block
        for position, item_id in enumerate(each.item_ids, start=1)
    ]
    return pl.DataFrame(rows, IMPRESSION_COLUMNS, orient="row")
