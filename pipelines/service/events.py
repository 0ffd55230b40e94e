"""`towers events export`: writes a journal's events and impressions as files that `towers prepare` reads.

`events.parquet`: one row per event with weight 1, then one per item that was shown and never taken with weight 0: an
impression without a response. `impressions.parquet`: one row per item shown, with the request and the position.
"""

from pathlib import Path

import polars as pl

from pipelines.console import amount, phase, phases, say
from pipelines.service.state import open_journal
from serving.files.staging import staged

EVENTS = "events.parquet"
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


def run(state: Path, out: Path, *, overwrite: bool = False) -> None:
    """Exports a journal; a service may go on writing to it.

    Args:
        state: the service's state directory.
        out: the directory to write.
        overwrite: replace an earlier export.

    Raises:
        DataError: there is no journal, or it cannot be read.
        OutputExistsError: `out` exists.
    """
    with open_journal(state) as journal:
        phases("events export", "read", "write")
        with phase("read"):
            events = [(each.user_id, each.item_id, each.time, "event", 1.0) for _, each in journal.events_since(0)]
            shown = [
                (each.impression_id, each.request_id, each.user_id, item_id, position, each.time)
                for _, each in journal.impressions_since(0)
                for position, item_id in enumerate(each.item_ids, start=1)
            ]
            taken = pl.DataFrame(events, EVENT_COLUMNS, orient="row")
            impressions = pl.DataFrame(shown, IMPRESSION_COLUMNS, orient="row")
    with phase("write"), staged(out, overwrite=overwrite, marker=EVENTS) as directory:
        # `towers prepare` keeps one event per user and item, by default the first: it must be the one that was taken.
        missed = impressions.join(taken, on=["user_id", "item_id"], how="anti", maintain_order="left")
        missed = missed.select(
            "user_id", "item_id", "timestamp", event_type=pl.lit("impression"), weight=pl.lit(0.0, pl.Float32)
        )
        directory.mkdir()
        pl.concat([taken, missed]).write_parquet(directory / EVENTS)
        impressions.write_parquet(directory / "impressions.parquet")
    told = f"{amount(impressions.height, 'items')} shown, {missed.height:,} of them never taken"
    say(f"{out}: {amount(taken.height, 'events')}, {told}")
