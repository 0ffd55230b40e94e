"""What a service kept, exported: `towers prepare` reads it, and every item shown is there with its request."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from pipelines.dataset.dataset import Dataset
from pipelines.errors import DataError
from pipelines.ingest import prepare
from pipelines.service import events
from serving.catalogue.journal import Impression, UserEvent
from serving.catalogue.sqlite_journal import SqliteJournal
from serving.files.staging import OutputExistsError
from tests.support.pages.programs import program
from towers.config.sections import DataConfig

TAKEN = [("e1", "u1", "i2", 300), ("e2", "u2", "i1", 100), ("e3", "u1", "i3", 50), ("e4", "u1", "i2", 400, "buy")]
SHOWN = [
    ("s1", "r1", "u1", ("i1", "i2", "i3"), 200),  # i3 taken before, i2 after
    ("s2", "r1", "u2", ("i3", "i1"), 250),
    ("s3", "r2", "u3", ("i1", "i1"), 260),  # never took anything
]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    journal = SqliteJournal.open(tmp_path / "state")
    journal.add_events([UserEvent(*each) for each in TAKEN])
    journal.add_impressions([Impression(*each) for each in SHOWN])
    journal.close()
    return tmp_path / "state"


@pytest.mark.parametrize("block", [1, 2, 100])
def test_every_event_and_every_item_shown_is_exported(
    state: Path, tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pipelines.service.state.BLOCK_ROWS", block)
    events.run(state, tmp_path / "out")
    head, read, written, _ = capsys.readouterr().err.splitlines()
    assert head == "events export: read, write"
    assert read.startswith(f"read: {len(TAKEN) + len(SHOWN)} rows in ")
    shown = pl.read_parquet(tmp_path / "out" / "impressions.parquet")
    assert shown.rows() == [
        (name, request, user, item, place, time)
        for name, request, user, items, time in SHOWN
        for place, item in enumerate(items, start=1)
    ]
    took = {(user, item) for _, user, item, *_ in TAKEN}
    expected = [(user, item, time, *(kind or ["event"]), 1.0) for _, user, item, time, *kind in TAKEN]
    expected += [
        (user, item, time, "impression", 0.0) for _, _, user, items, time in SHOWN for item in items
        if (user, item) not in took
    ]  # fmt: skip
    assert pl.read_parquet(tmp_path / "out" / "events.parquet").rows() == expected
    assert written.startswith(f"write: {len(expected) + len(shown)} rows in ")


def test_an_item_shown_and_taken_while_the_export_reads_is_not_exported_as_never_taken(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = SqliteJournal.events_since

    def then_written(journal: SqliteJournal, seq: int, most: int) -> list[tuple[int, UserEvent]]:
        block = read(journal, seq, most)
        if not block:
            journal.add_impressions([Impression("late", "r9", "u9", ("i9",), 500)])
            journal.add_events([UserEvent("late", "u9", "i9", 501)])
        return block

    monkeypatch.setattr(SqliteJournal, "events_since", then_written)
    events.run(state, tmp_path / "out")
    assert "i9" not in pl.read_parquet(tmp_path / "out" / "events.parquet")["item_id"]


@pytest.mark.parametrize("reader", ["events_since", "impressions_since", "staged"])
def test_an_export_while_a_user_is_forgotten_writes_nothing(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    """As of events that are read when the user's are gone: the impressions before would seem to be of untaken items."""
    owner = events if reader == "staged" else SqliteJournal
    real, waiting = getattr(owner, reader), ["u1"]

    def called(*words: Any, **options: Any) -> Any:
        if waiting:
            journal = SqliteJournal.open(state)
            journal.forget(waiting.pop())
            journal.close()
        return real(*words, **options)

    monkeypatch.setattr(owner, reader, called)
    with pytest.raises(DataError) as error:
        events.run(state, tmp_path / "out")
    told = "a user was forgotten meanwhile; nothing was written: give the command again"
    assert str(error.value) == f"--state {state}: {told}"
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    events.run(state, tmp_path / "out")
    for name in ("events", "impressions"):
        assert set(pl.read_parquet(tmp_path / "out" / f"{name}.parquet")["user_id"]) == {"u2", "u3"}


def test_the_program_of_the_page_counts_what_was_taken_by_position(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events.run(state, tmp_path / "events")
    monkeypatch.chdir(tmp_path)
    printed: list[pl.DataFrame] = []
    exec(program("docs/service/serving.md", "impressions.parquet"), {"print": printed.append})
    counts: dict[int, list[int]] = {}
    for _, _, user, items, time in SHOWN:
        for place, item in enumerate(items, start=1):
            took = any((who, what) == (user, item) and when >= time for _, who, what, when, *_ in TAKEN)
            counts.setdefault(place, [0, 0])
            counts[place][0] += 1
            counts[place][1] += took
    (table,) = printed
    assert table.columns == ["position", "shown", "hits"]
    assert table.fill_null(0).rows() == [(place, *each) for place, each in sorted(counts.items())]
    assert [hits for _, hits in counts.values()] == [0, 1, 0]


def test_prepare_reads_it_and_no_impression_hides_an_event(state: Path, tmp_path: Path) -> None:
    events.run(state, tmp_path / "out")
    prepare.run(DataConfig(split="random", valid_share=0, test_share=0), tmp_path / "out", tmp_path / "dataset")
    data = Dataset.open(tmp_path / "dataset")
    parts = [data.events(part) for part in data.parts("train")]
    users, items = data.users["user_id"].to_list(), data.items["item_id"].to_list()
    rows = [row for part in parts for row in zip(part.user, part.item, np.asarray(part.weight), strict=True)]
    assert {(users[user], items[item], int(weight)) for user, item, weight in rows} == {
        ("u1", "i2", 1), ("u1", "i3", 1), ("u2", "i1", 1), ("u1", "i1", 0), ("u2", "i3", 0), ("u3", "i1", 0),
    }  # fmt: skip
    assert data.manifest.event_columns == {}, "a request's id or an item's place would tell the label"


def test_an_empty_journal_is_exported_and_none_is_refused(tmp_path: Path) -> None:
    SqliteJournal.open(tmp_path / "state").close()
    events.run(tmp_path / "state", tmp_path / "out")
    assert pl.read_parquet(tmp_path / "out" / "events.parquet").is_empty()
    with pytest.raises(OutputExistsError):
        events.run(tmp_path / "state", tmp_path / "out")
    events.run(tmp_path / "state", tmp_path / "out", overwrite=True)
    with pytest.raises(DataError, match=r"--state .*elsewhere: no journal\.sqlite in it"):
        events.run(tmp_path / "elsewhere", tmp_path / "other")
    assert not (tmp_path / "elsewhere").exists() and not (tmp_path / "other").exists()


def test_an_export_replaces_no_folder_that_holds_more(state: Path, tmp_path: Path) -> None:
    events.run(state, tmp_path / "out")
    events.run(state, tmp_path / "out", overwrite=True)
    (tmp_path / "out" / "items.csv").write_text("item_id\ni1\n")
    with pytest.raises(OutputExistsError, match=r"out holds items\.csv, which this command did not write"):
        events.run(state, tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "items.csv").exists()


def test_an_export_replaces_no_folder_of_raw_events(state: Path, tmp_path: Path) -> None:
    raw = tmp_path / "events"
    raw.mkdir()
    (raw / "events.parquet").write_bytes(b"all of 2025")
    with pytest.raises(OutputExistsError, match=r"is no directory with impressions\.parquet"):
        events.run(state, raw, overwrite=True)
    assert [each.name for each in raw.iterdir()] == ["events.parquet"]
