"""The journal equals a dict for any ids, threads and processes, and keeps nothing of what it refuses."""

import shutil
import sqlite3
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from serving.catalogue.journal import Impression, ItemChange, Journal, UserEvent
from serving.catalogue.journal_file import APPLICATION, FILE, SCHEMA, SCHEMA_VERSION, JournalError
from tests.support.paths import ROOT

# Lone surrogates and NULs, too; short, so that ids meet again.
IDS = st.text(st.characters(exclude_categories=()), max_size=2) | st.sampled_from(
    ["i1", "i1\0", "\ud800", "?", "é", "e\u0301"]
)
VALUES = st.dictionaries(
    IDS,
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | IDS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(IDS, inner, max_size=3),
        max_leaves=4,
    ),
    max_size=3,
)
TIMES = st.integers(-(2**63), 2**63 - 1)
EVENTS = st.builds(UserEvent, IDS, IDS, IDS, TIMES)
IMPRESSIONS = st.builds(Impression, IDS, IDS, IDS, st.lists(IDS, max_size=3).map(tuple), TIMES)


class JournalIsADict(RuleBasedStateMachine):
    """Items by id in the order of their last change, events and impressions by id in the order of adding."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.journal = Journal.open(self.directory)
        self.items: dict[str, tuple[int, bool, Any, Any]] = {}  # the number of the operation comes first
        self.events: dict[str, UserEvent] = {}
        self.impressions: dict[str, Impression] = {}
        self.last = [0]  # the last sequence number after each operation

    def teardown(self) -> None:
        self.journal.close()
        shutil.rmtree(self.directory)

    def changed(self, last: int, changes: list[tuple[str, bool, Any, Any]]) -> None:
        for item, *state in changes:
            self.items.pop(item, None)
            self.items[item] = (len(self.last), *state)
        assert last > self.last[-1] if changes else last == self.last[-1]
        self.last.append(last)

    @initialize()
    def an_empty_journal_has_nothing(self) -> None:
        assert self.journal.items_since(0) == [] and self.journal.events_since(0) == []

    @rule(items=st.lists(st.tuples(IDS, VALUES, VALUES), max_size=5))
    def put(self, items: list[tuple[str, Any, Any]]) -> None:
        self.changed(self.journal.put_items(items), [(item, False, *rest) for item, *rest in items])

    @rule(items=st.lists(IDS, max_size=3))
    def delete(self, items: list[str]) -> None:
        self.changed(self.journal.delete_items(items), [(item, True, {}, {}) for item in items])

    @rule(events=st.lists(EVENTS, max_size=5))
    def add(self, events: list[UserEvent]) -> None:
        before = len(self.events)
        added = self.journal.add_events(events)
        for event in events:
            self.events.setdefault(event.event_id, event)
        assert added == len(self.events) - before

    @rule(impressions=st.lists(IMPRESSIONS, max_size=5))
    def show(self, impressions: list[Impression]) -> None:
        before, version = len(self.impressions), self.journal.version()
        added = self.journal.add_impressions(impressions)
        for impression in impressions:
            self.impressions.setdefault(impression.impression_id, impression)
        assert added == len(self.impressions) - before
        assert self.journal.version() == version, "no answer depends on what was shown"

    @rule(user=IDS, dry_run=st.booleans())
    def forget(self, user: str, dry_run: bool) -> None:
        rest = [{name: each for name, each in held.items() if each.user_id != user}
                for held in (self.events, self.impressions)]  # fmt: skip
        counts = {"events": len(self.events) - len(rest[0]), "impressions": len(self.impressions) - len(rest[1])}
        before = self.journal.forgotten(), self.journal.version()
        assert self.journal.forget(user, dry_run=dry_run) == counts
        gone = any(counts.values()) and not dry_run
        assert (self.journal.forgotten() > before[0], self.journal.version() > before[1]) == (gone, gone)
        if not dry_run:
            self.events, self.impressions = rest

    @rule()
    def open_again(self) -> None:
        identity, version = self.journal.identity, self.journal.version()
        self.journal.close()
        self.journal = Journal.open(self.directory)
        assert (self.journal.identity, self.journal.version()) == (identity, version)

    @rule(data=st.data())
    def only_what_came_later(self, data: st.DataObject) -> None:
        operation = data.draw(st.integers(0, len(self.last) - 1))
        found = [change.item_id for change in self.journal.items_since(self.last[operation])]
        assert found == [item for item, state in self.items.items() if state[0] > operation]
        numbered = self.journal.events_since(0)
        for number, _ in numbered[:2]:
            assert self.journal.events_since(number) == [each for each in numbered if each[0] > number]
            assert self.journal.events_since(number, 2) == [each for each in numbered if each[0] > number][:2]
        assert self.journal.impressions_since(0, 1) == self.journal.impressions_since(0)[:1]

    @invariant()
    def all_is_there_in_its_order(self) -> None:
        changes = self.journal.items_since(0)
        assert [(each.item_id, each.deleted, each.features, each.attributes) for each in changes] == [
            (item, *state) for item, (_, *state) in self.items.items()
        ]
        numbers = [change.seq for change in changes]
        assert numbers == sorted(set(numbers))
        assert all(self.last[self.items[each.item_id][0]] >= each.seq for each in changes)
        assert [event for _, event in self.journal.events_since(0)] == list(self.events.values())
        assert [each for _, each in self.journal.impressions_since(0)] == list(self.impressions.values())
        assert self.journal.counts() == (len(self.items), len(self.events), len(self.impressions))


JournalIsADict.TestCase.settings = settings(max_examples=25, stateful_step_count=12)
test_the_journal_is_a_dict = JournalIsADict.TestCase


@pytest.fixture
def journal(tmp_path: Path) -> Any:
    opened = Journal.open(tmp_path / "live" / "journal")
    yield opened
    opened.close()


def test_the_version_tells_what_any_connection_changed(journal: Journal) -> None:
    other = Journal.open(journal.path.parent)
    assert other.identity == journal.identity
    seen = [journal.version()]
    for change in (
        lambda: journal.put_items([("a", {}, {})]),
        lambda: other.put_items([("a", {}, {})]),
        lambda: other.delete_items(["a"]),
        lambda: journal.add_events([UserEvent("e", "u", "a", 1)]),
        lambda: other.add_events([UserEvent("f", "u", "a", 1)]),
    ):
        change()
        assert journal.version() == other.version()
        seen.append(journal.version())
    assert seen == sorted(set(seen))
    other.close()


def test_a_forgotten_user_is_in_no_file_of_the_journal(journal: Journal) -> None:
    reader = Journal.open(journal.path.parent)  # as another worker: the log outlives the writer
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
    journal = Journal.open(tmp_path)
    assert (journal.identity, journal.forgotten(), journal.impressions_since(0)) == ("first", 0, [])
    assert journal.events_since(0) == [(1, UserEvent("e", "u", "i", 7))]
    assert journal.add_impressions([Impression("s", "r", "u", ("i",), 8)]) == 1
    assert journal.forget("u") == {"events": 1, "impressions": 1}
    journal.close()


def test_threads_write_and_read_at_once(journal: Journal) -> None:
    def write(thread: int) -> list[int]:
        numbers = []
        for n in range(20):
            numbers.append(journal.put_items([(f"{thread}-{n}", {}, {}), (f"{thread}-{n}-too", {}, {})]))
            journal.add_events([UserEvent(f"e{n}", str(thread), "i", n)])
            assert any(each.item_id == f"{thread}-{n}" for each in journal.items_since(0))
        return numbers

    with ThreadPoolExecutor(4) as threads:
        numbers = [number for each in threads.map(write, range(4)) for number in each]
    assert len(set(numbers)) == 80
    assert len(journal.items_since(0)) == 160
    assert len(journal.events_since(0)) == 20


WRITER = """
import sys
from pathlib import Path
from serving.catalogue.journal import Journal, UserEvent
me, directory = sys.argv[1], Path(sys.argv[2])
sys.stdin.readline()  # until all are here
for n in range(20):
    journal = Journal.open(directory / str(n))
    print(journal.identity)
    journal.close()
journal = Journal.open(directory / "0")
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
    journal = Journal.open(tmp_path / "0")
    assert journal.identity == told[0][0]
    assert sum(int(new) for *_, new in told) == 15 + 3 * 15
    changes = journal.items_since(0)
    assert {change.item_id for change in changes} == {f"{me}-{n}" for me in range(3) for n in range(15)} | {"shared"}
    assert changes[-1].item_id == "shared"
    for me in range(3):
        own = [change.item_id for change in changes if change.item_id.startswith(f"{me}-")]
        assert own == [f"{me}-{n}" for n in range(15)]
    journal.close()


def test_what_cannot_be_kept_is_not_kept_by_half(journal: Journal) -> None:
    journal.put_items([("a", {"x": 1}, {})])
    with pytest.raises(TypeError):
        journal.put_items([("a", {"x": 2}, {}), ("b", {"x": object()}, {})])
    with pytest.raises(OverflowError):
        journal.add_events([UserEvent("e", "u", "i", 1), UserEvent("f", "u", "i", 2**63)])
    assert journal.items_since(0) == [ItemChange(1, "a", False, {"x": 1}, {})]
    assert journal.events_since(0) == []
    assert journal.add_events([UserEvent("e", "u", "i", 1)]) == 1


def test_every_commit_waits_for_the_disk(journal: Journal) -> None:
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
            Journal.open(directory)
        assert not before or (directory / FILE).read_bytes() == before
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match=f"{tmp_path / 'file' / FILE}: "):
        Journal.open(tmp_path / "file")


def test_a_damaged_row_and_a_closed_journal_are_told(journal: Journal) -> None:
    journal.put_items([("a", {}, {})])
    database(journal.path, "UPDATE items SET features = '{'")
    with pytest.raises(JournalError, match=f"{journal.path}: "):
        journal.items_since(0)
    journal.close()
    for use in (journal.version, lambda: journal.put_items([("a", {}, {})]), lambda: journal.add_events([])):
        with pytest.raises(JournalError, match="closed"):
            use()


FULL = """
import resource, subprocess, sys
from pathlib import Path
from serving.catalogue.journal import Journal
from serving.catalogue.journal_file import JournalError
way, directory = sys.argv[1], Path(sys.argv[2])
directory.mkdir(exist_ok=True)
if way == "disk":
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(directory)], check=True)
else:
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
journal = Journal.open(directory)
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
journal = Journal.open(directory)
assert journal.items_since(0)[-1].item_id == "with room again"
journal.close()
if way == "disk":
    subprocess.run(["mount", "-o", "remount,ro", str(directory)], check=True)
    try:
        Journal.open(directory)
    except JournalError as error:
        print(error)
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
    full, *read_only = done.stdout.splitlines()
    assert full.startswith(f"{path}: ") and ("disk" in full)
    if way == "disk":
        assert full == f"{path}: database or disk is full (SQLITE_FULL)"
        assert read_only == [f"{path}: Read-only file system"]
