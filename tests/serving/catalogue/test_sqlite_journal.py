"""The journal in an SQLite file: its processes, its disk, the files of earlier releases."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from serving.catalogue.journal import Impression, JournalError, UserEvent
from serving.catalogue.journal_file import APPLICATION, FILE, SCHEMA, SCHEMA_VERSION
from serving.catalogue.sqlite_journal import SqliteJournal
from tests.support.paths import ROOT


@pytest.fixture
def journal(tmp_path: Path) -> Any:
    opened = SqliteJournal.open(tmp_path / "live" / "journal")
    yield opened
    opened.close()


def test_a_forgotten_user_is_in_no_file_of_the_journal(journal: SqliteJournal) -> None:
    reader = SqliteJournal.open(journal.path.parent)  # as another worker: the log outlives the writer
    for n in range(500):
        user = "whom-nobody-knows" if n % 2 else "another-user"
        journal.add_events([UserEvent(f"{user}-event-{n}", user, "i", n)])
        journal.add_impressions([Impression(f"{user}-shown-{n}", "r", user, ("i", "j"), n)])

    def files() -> bytes:
        return b"".join(path.read_bytes() for path in sorted(journal.path.parent.iterdir()))

    assert b"whom-nobody-knows" in files()
    assert journal.forget("whom-nobody-knows") == {"events": 250, "impressions": 250}
    assert b"whom-nobody-knows" not in files() and b"another-user" in files()
    assert reader.events_since(0) == journal.events_since(0) and len(reader.events_since(0)) == 250
    assert journal.forget("whom-nobody-knows") == {"events": 0, "impressions": 0}
    reader.close()


def test_a_journal_of_the_first_release_is_opened_and_keeps_its_events(tmp_path: Path) -> None:
    row = "INSERT INTO events (event_id, user_id, item_id, time) VALUES (x'65', x'75', x'69', 7)"
    database(tmp_path / FILE, *SCHEMA, "INSERT INTO journal VALUES ('first')", row)
    journal = SqliteJournal.open(tmp_path)
    assert (journal.identity, journal.forgotten(), journal.impressions_since(0)) == ("first", 0, [])
    assert journal.events_since(0) == [(1, UserEvent("e", "u", "i", 7))]
    assert journal.add_impressions([Impression("s", "r", "u", ("i",), 8)]) == 1
    assert journal.forget("u") == {"events": 1, "impressions": 1}
    journal.close()


def test_an_earlier_release_reads_and_adds_to_a_journal_with_types(journal: SqliteJournal) -> None:
    journal.add_events([UserEvent("e", "u", "i", 7, "buy"), UserEvent("f", "u", "i", 8)])
    with sqlite3.connect(journal.path) as earlier:
        read = "SELECT * FROM events WHERE seq > ? ORDER BY seq LIMIT ?"
        assert earlier.execute(read, (0, 9)).fetchall() == [(1, b"e", b"u", b"i", 7), (2, b"f", b"u", b"i", 8)]
        earlier.execute("INSERT INTO events (event_id, user_id, item_id, time) VALUES (x'67', x'75', x'69', 9)")
        earlier.execute("DELETE FROM events WHERE seq = 1")  # it forgets a user without knowing of types
    earlier.close()
    journal.add_events([UserEvent("f", "u", "i", 8, "buy"), UserEvent("h", "u", "i", 9, "buy")])
    types = [(event.event_id, event.type) for _, event in journal.events_since(0)]
    assert types == [("f", "event"), ("g", "event"), ("h", "buy")], "the first event of an id counts, with its type"
    journal.forget("u")
    with sqlite3.connect(journal.path) as file:
        assert file.execute("SELECT * FROM event_types WHERE seq > 1").fetchall() == []
    file.close()


WRITER = """
import sys
from pathlib import Path
from serving.catalogue.journal import UserEvent
from serving.catalogue.sqlite_journal import SqliteJournal
me, directory = sys.argv[1], Path(sys.argv[2])
sys.stdin.readline()  # until all are here
for n in range(20):
    journal = SqliteJournal.open(directory / str(n))
    print(journal.identity)
    journal.close()
journal = SqliteJournal.open(directory / "0")
new = 0
for n in range(15):
    journal.put_items([(f"{me}-{n}", {"n": n}, {}), ("shared", {"of": me}, {})])
    new += journal.add_events([UserEvent(f"event-{n}", me, "i", n), UserEvent(f"{me}-{n}", me, "i", n)])
print(new)
"""


def test_processes_that_make_one_journal_at_once_share_it(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(me), str(tmp_path)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for me in range(3)
    ]  # fmt: skip
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    told = [writer.communicate(timeout=120)[0].split() for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert told[0][:-1] == told[1][:-1] == told[2][:-1]
    assert len(set(told[0][:-1])) == 20
    journal = SqliteJournal.open(tmp_path / "0")
    assert journal.identity == told[0][0]
    assert sum(int(new) for *_, new in told) == 15 + 3 * 15
    changes = journal.items_since(0)
    assert {change.item_id for change in changes} == {f"{me}-{n}" for me in range(3) for n in range(15)} | {"shared"}
    assert changes[-1].item_id == "shared"
    for me in range(3):
        own = [change.item_id for change in changes if change.item_id.startswith(f"{me}-")]
        assert own == [f"{me}-{n}" for n in range(15)]
    journal.close()


def test_every_commit_waits_for_the_disk(journal: SqliteJournal) -> None:
    """A killed process loses nothing either way: only a power cut would show it."""
    ((flush,),) = journal._writer.execute("PRAGMA synchronous").fetchall()
    ((mode,),) = journal._writer.execute("PRAGMA journal_mode").fetchall()
    assert (flush, mode) == (2, "wal")


def database(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    files = {
        "file is not a database": lambda path: path.write_text("item_id,title\n" * 100, encoding="utf-8"),
        "no journal; name another directory": lambda path: database(path, "CREATE TABLE theirs (x)"),
        f"a journal of version 7; this program reads {SCHEMA_VERSION}": lambda path: database(
            path, f"PRAGMA application_id = {APPLICATION}", "PRAGMA user_version = 7"
        ),
        "unable to open database file": lambda path: path.mkdir(),
    }
    for place, (reason, make) in enumerate(files.items()):
        directory = tmp_path / str(place)
        directory.mkdir()
        make(directory / FILE)
        before = (directory / FILE).read_bytes() if (directory / FILE).is_file() else b""
        with pytest.raises(JournalError, match=f"{directory / FILE}: .*{reason}"):
            SqliteJournal.open(directory)
        assert not before or (directory / FILE).read_bytes() == before
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match=f"{tmp_path / 'file' / FILE}: "):
        SqliteJournal.open(tmp_path / "file")


def test_a_damaged_row_is_told(journal: SqliteJournal) -> None:
    journal.put_items([("a", {}, {})])
    database(journal.path, "UPDATE items SET features = '{'")
    with pytest.raises(JournalError, match=f"{journal.path}: "):
        journal.items_since(0)


FULL = """
import resource, subprocess, sys
from pathlib import Path
from serving.catalogue.sqlite_journal import SqliteJournal
from serving.catalogue.journal import JournalError
way, directory = sys.argv[1], Path(sys.argv[2])
directory.mkdir(exist_ok=True)
if way == "disk":
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(directory)], check=True)
else:
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
journal = SqliteJournal.open(directory)
def fill():
    n = 0
    try:
        while True:
            journal.put_items([(f"{n}-{part}", {"x": "x" * 2000}, {}) for part in range(3)])
            n += 1
    except JournalError as error:
        print(error)
    found = {change.item_id for change in journal.items_since(0)}
    assert n > 10 and found == {f"{number}-{part}" for number in range(n) for part in range(3)}, (n, found)
fill()
if way == "disk":
    subprocess.run(["mount", "-o", "remount,size=2m", str(directory)], check=True)
else:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
journal.put_items([("with room again", {}, {})])
journal.close()
journal = SqliteJournal.open(directory)
assert journal.items_since(0)[-1].item_id == "with room again"
journal.close()
def refused():
    try:
        SqliteJournal.open(directory)
    except JournalError as error:
        print(error)
if way == "disk":
    try:
        (directory / "else").write_bytes(bytes(3_000_000))
    except OSError:
        refused()
    subprocess.run(["mount", "-o", "remount,ro", str(directory)], check=True)
    refused()
"""


@pytest.mark.parametrize("way", ["disk", "limit"])
def test_a_full_disk_is_told_and_loses_nothing(way: str, tmp_path: Path) -> None:
    own = ["unshare", "-Urm"] if way == "disk" else []
    if own and subprocess.run([*own, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody mount a small file system of their own (unshare -Urm)")
    done = subprocess.run(
        [*own, sys.executable, "-c", FULL, way, str(tmp_path / "full")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    path = tmp_path / "full" / FILE
    full, *at_the_start = done.stdout.splitlines()
    assert full.startswith(f"{path}: ") and ("disk" in full)
    if way == "disk":
        assert full == f"{path}: database or disk is full (SQLITE_FULL)"
        assert at_the_start == [
            f"{path}: database or disk is full (SQLITE_IOERR_SHMSIZE)",
            f"{path}: Read-only file system",
        ]


REPLACED = "/journal.sqlite: it, its -wal or its -shm was removed or replaced since it was opened; restart the service"


@pytest.mark.parametrize("end", ["-wal", "-shm"])
def test_after_its_log_was_removed_a_change_is_refused_and_those_before_are_kept(
    end: str, journal: SqliteJournal
) -> None:
    journal.put_items([("a", {}, {})])
    Path(f"{journal.path}{end}").unlink()
    with pytest.raises(JournalError, match=REPLACED):
        journal.put_items([("b", {}, {})])
    journal.close()
    again = SqliteJournal.open(journal.path.parent)
    assert [each.item_id for each in again.items_since(0)] == ["a"]
    again.close()


def test_a_relative_path_is_that_of_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    journal = SqliteJournal.open(Path("state"))
    monkeypatch.chdir("/")
    journal.put_items([("a", {}, {})])
    assert [each.item_id for each in journal.items_since(0)] == ["a"]
    journal.close()


@pytest.mark.parametrize("other", [False, True])
def test_a_change_is_refused_once_the_file_was_removed_or_replaced(other: bool, journal: SqliteJournal) -> None:
    journal.put_items([("a", {}, {})])
    journal.path.parent.rename(journal.path.parent.with_name("aside"))
    journal.path.parent.mkdir()
    if other:
        SqliteJournal.open(journal.path.parent).close()
    with pytest.raises(JournalError, match=REPLACED):
        journal.put_items([("b", {}, {})])
    with pytest.raises(JournalError, match=REPLACED):
        journal.add_events([UserEvent("e", "u", "i", 1)])
    assert [each.item_id for each in journal.items_since(0)] == ["a"]


def test_while_somebody_reads_the_log_it_still_holds_the_user_and_says_so(journal: SqliteJournal) -> None:
    journal.add_events([UserEvent("e", "u", "i", 1)])
    journal._writer.execute("PRAGMA busy_timeout = 0")
    with closing(sqlite3.connect(journal.path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM events").fetchall()
        with pytest.raises(JournalError, match="forget once more"):
            journal.forget("u")
    assert journal.forget("u") == {"events": 0, "impressions": 0}


def test_a_new_journal_is_in_its_directory_after_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[Path] = []
    fsync = os.fsync

    def note(handle: int) -> None:
        flushed.append(Path(f"/proc/self/fd/{handle}").readlink())
        fsync(handle)

    monkeypatch.setattr(os, "fsync", note)
    SqliteJournal.open(tmp_path / "state").close()
    assert flushed == [tmp_path / "state", tmp_path]
