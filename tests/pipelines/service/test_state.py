"""A backup holds what was acknowledged before it began; what is restored goes on where nothing can be lost."""

import re
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from pipelines.bundles import fold
from pipelines.errors import DataError
from pipelines.service import state
from serving.bundle.reader import Bundle
from serving.catalogue.journal import Impression, ItemChange, UserEvent
from serving.catalogue.journal_file import FILE
from serving.catalogue.sqlite_journal import SqliteJournal
from serving.files.staging import OutputExistsError
from tests.support.worlds.serving import write_world


def test_a_backup_beside_a_writer_holds_all_that_was_acknowledged(tmp_path: Path) -> None:
    journal = SqliteJournal.open(tmp_path / "state")
    acknowledged, stop = [0], threading.Event()

    def write() -> None:
        while not stop.is_set():
            number = acknowledged[0] + 1
            journal.add_events([UserEvent(f"e{number}", "u", "i", number)])
            acknowledged[0] = number

    writer = threading.Thread(target=write)
    writer.start()
    for copy in range(5):
        before = acknowledged[0]
        state.backup(tmp_path / "state", tmp_path / str(copy))
        assert [path.name for path in (tmp_path / str(copy)).iterdir()] == [FILE]
        state.restore(tmp_path / str(copy), tmp_path / f"restored{copy}")
        restored = SqliteJournal.open(tmp_path / f"restored{copy}")
        kept = [event.event_id for _, event in restored.events_since(0)]
        assert kept == [f"e{number}" for number in range(1, len(kept) + 1)] and len(kept) >= before
        restored.close()
    stop.set()
    writer.join()
    journal.close()


def test_everything_is_restored_with_its_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = SqliteJournal.open(tmp_path / "state")
    journal.put_items([("i1", {"x": 1}, {"y": [2]})])
    journal.delete_items(["i2"])
    journal.add_events([UserEvent("e", "u", "i", 1)])
    journal.add_impressions([Impression("s", "r", "u", ("i", "j"), 2)])
    kept = journal.identity, journal.items_since(0), journal.events_since(0), journal.impressions_since(0)
    state.backup(tmp_path / "state", tmp_path / "backup")
    head, copied, _ = capsys.readouterr().err.splitlines()
    assert head == "state backup: copy" and re.fullmatch(r"copy: [\d.]+ s", copied)
    journal.close()
    state.restore(tmp_path / "backup", tmp_path / "restored")
    head, copied, read, result = capsys.readouterr().err.splitlines()
    assert head == "state restore: copy, read" and re.fullmatch(r"copy: [\d.]+ s", copied)
    assert read.startswith("read: 4 rows in ") and result.endswith("2 changed items, 1 event, 1 impression")
    found = SqliteJournal.open(tmp_path / "restored")
    assert (found.identity, found.items_since(0), found.events_since(0), found.impressions_since(0)) == kept
    found.close()


def test_a_change_after_the_restore_is_not_taken_for_one_that_a_folded_bundle_holds(tmp_path: Path) -> None:
    write_world(tmp_path / "bundle")
    SqliteJournal.open(tmp_path / "state").close()
    state.backup(tmp_path / "state", tmp_path / "backup")
    lost = SqliteJournal.open(tmp_path / "state")
    lost.delete_items(["i1", "i2", "i3"])
    lost.close()
    fold.run(tmp_path / "bundle", tmp_path / "state", tmp_path / "folded")
    state.restore(tmp_path / "backup", tmp_path / "restored")
    restored = SqliteJournal.open(tmp_path / "restored")
    seq = restored.delete_items(["i4"])
    held = Bundle.open(tmp_path / "folded").manifest.live
    assert held is not None and held.journal == restored.identity
    assert restored.items_since(held.items) == [ItemChange(seq, "i4", True, {}, {})]
    restored.close()


@pytest.mark.parametrize("own", [True, False])
def test_a_backup_replaces_no_state_directory(tmp_path: Path, own: bool) -> None:
    """Neither that of the service whose changes it copies nor that of another one."""
    for name in ("state", "other"):
        SqliteJournal.open(tmp_path / name).close()
    with closing(SqliteJournal.open(tmp_path / "state")) as journal:
        out = tmp_path / ("state" if own else "other")
        with pytest.raises(
            OutputExistsError, match=r"is a state directory, or a backup that .* \(journal\.lock is in it\); name an"
        ):
            state.backup(tmp_path / "state", out, overwrite=True)
        journal.delete_items(["i1"])  # its file is still in its place


@pytest.mark.parametrize("drill", [False, True])
def test_a_second_restore_of_one_backup_goes_on_above_the_first(tmp_path: Path, drill: bool) -> None:
    write_world(tmp_path / "bundle")
    SqliteJournal.open(tmp_path / "state").close()
    state.backup(tmp_path / "state", tmp_path / "backup")
    if drill:  # the backup itself is of a journal that was restored a moment ago
        state.restore(tmp_path / "backup", tmp_path / "earlier")
        with closing(SqliteJournal.open(tmp_path / "earlier")) as earlier:
            earlier.delete_items(["i0"])
        state.backup(tmp_path / "earlier", tmp_path / "backup", overwrite=True)
    state.restore(tmp_path / "backup", tmp_path / "first")
    with closing(SqliteJournal.open(tmp_path / "first")) as first:
        first.delete_items(["i1", "i2", "i3"])
        first.add_events([UserEvent(f"e{number}", "u", "i4", number) for number in range(3)])
    fold.run(tmp_path / "bundle", tmp_path / "first", tmp_path / "folded")
    held = Bundle.open(tmp_path / "folded").manifest.live
    state.restore(tmp_path / "backup", tmp_path / "second")
    with closing(SqliteJournal.open(tmp_path / "second")) as second:
        seq = second.delete_items(["i4"])
        second.add_events([UserEvent("other", "u", "i5", 9)])
        assert held is not None and held.journal == second.identity
        assert second.items_since(held.items) == [ItemChange(seq, "i4", True, {}, {})]
        assert [event.event_id for _, event in second.events_since(held.events)] == ["other"]
        assert seq < 2**53


def test_a_restore_goes_on_above_the_backup_also_where_the_clock_is_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SqliteJournal.open(tmp_path / "state").close()
    state.backup(tmp_path / "state", tmp_path / "backup")
    state.restore(tmp_path / "backup", tmp_path / "first")
    with closing(SqliteJournal.open(tmp_path / "first")) as first:
        before = first.delete_items(["i1"])
    state.backup(tmp_path / "first", tmp_path / "later")
    monkeypatch.setattr(time, "time_ns", lambda: 10**18)  # 2001
    state.restore(tmp_path / "later", tmp_path / "second")
    with closing(SqliteJournal.open(tmp_path / "second")) as second:
        assert second.delete_items(["i2"]) > before + 10**9


def test_of_a_backup_with_a_row_that_no_service_can_read_nothing_is_restored(tmp_path: Path) -> None:
    with closing(SqliteJournal.open(tmp_path / "state")) as journal:
        journal.put_items([("i1", {"x": 1}, {})])
    state.backup(tmp_path / "state", tmp_path / "backup")
    with closing(sqlite3.connect(tmp_path / "backup" / FILE)) as connection, connection:
        connection.execute("UPDATE items SET features = '{'")
    told = f"^--backup {tmp_path}/backup: {tmp_path}/backup/{FILE}: Expecting property name"
    with pytest.raises(DataError, match=told):
        state.restore(tmp_path / "backup", tmp_path / "restored")
    assert {path.name for path in tmp_path.iterdir()} == {"state", "backup"}


def test_of_a_journal_with_a_damaged_page_there_is_no_backup(tmp_path: Path) -> None:
    with closing(SqliteJournal.open(tmp_path / "state")) as journal:
        journal.put_items([(f"i{number}", {"text": "x" * 400}, {}) for number in range(200)])
    with closing(sqlite3.connect(tmp_path / "state" / FILE)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        ((page,),) = connection.execute("PRAGMA page_size").fetchall()
        ((root,),) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'items'").fetchall()
    with (tmp_path / "state" / FILE).open("r+b") as file:
        file.seek(page * (root - 1))
        file.write(b"\xff" * page)
    with pytest.raises(DataError, match="damaged"):
        state.backup(tmp_path / "state", tmp_path / "backup")
    assert not (tmp_path / "backup").exists()


def test_what_cannot_be_backed_up_or_restored_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for call in (lambda: state.backup(tmp_path / "empty", tmp_path / "out"),
                 lambda: state.restore(tmp_path / "empty", tmp_path / "out")):  # fmt: skip
        with pytest.raises(DataError, match=r"--(state|backup) .*empty: no journal\.sqlite in it"):
            call()
    SqliteJournal.open(tmp_path / "state").close()
    with pytest.raises(OutputExistsError, match=r"--state .*state: exists; stop the service and move it aside"):
        state.restore(tmp_path / "state", tmp_path / "state")
    (tmp_path / "empty" / FILE).write_text("no database at all, but long enough to be one\n" * 100)
    for call in (lambda: state.backup(tmp_path / "empty", tmp_path / "out"),
                 lambda: state.restore(tmp_path / "empty", tmp_path / "out")):  # fmt: skip
        with pytest.raises(DataError, match="file is not a database"):
            call()
    assert not (tmp_path / "out").exists()
