"""The contract of every journal: it equals a dict for any ids and threads, and keeps nothing of what it refuses."""

import logging
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from serving.catalogue.journal import Impression, ItemChange, Journal, JournalError, UserEvent
from tests.support.journals import JournalPlace, PostgresPlace, SqlitePlace

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
EVENTS = st.builds(UserEvent, IDS, IDS, IDS, TIMES, st.sampled_from(["event", "click"]) | IDS)
IMPRESSIONS = st.builds(Impression, IDS, IDS, IDS, st.lists(IDS, max_size=3).map(tuple), TIMES)


class JournalIsADict(RuleBasedStateMachine):
    """Items by id in the order of their last change, events and impressions by id in the order of adding."""

    make_place: ClassVar[Callable[[], JournalPlace]]

    def __init__(self) -> None:
        super().__init__()
        self.place = self.make_place()
        self.journal = self.place.open()
        self.items: dict[str, tuple[int, bool, Any, Any]] = {}  # the number of the operation comes first
        self.events: dict[str, UserEvent] = {}
        self.impressions: dict[str, Impression] = {}
        self.last = [0]  # the last sequence number after each operation

    def teardown(self) -> None:
        self.journal.close()
        self.place.remove()

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
        self.journal = self.place.open()
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


class SqliteIsADict(JournalIsADict):
    make_place = SqlitePlace


class PostgresIsADict(JournalIsADict):
    make_place = PostgresPlace


class TestSqliteIsADict(SqliteIsADict.TestCase):
    settings = settings(max_examples=25, stateful_step_count=12)


@pytest.mark.long
class TestPostgresIsADict(PostgresIsADict.TestCase):
    settings = settings(max_examples=25, stateful_step_count=12, deadline=None)


@pytest.fixture(params=[SqlitePlace, pytest.param(PostgresPlace, marks=pytest.mark.long)])
def place(request: pytest.FixtureRequest) -> Iterator[JournalPlace]:
    made: JournalPlace = request.param()
    yield made
    made.remove()


@pytest.fixture
def journal(place: JournalPlace) -> Iterator[Journal]:
    opened = place.open()
    yield opened
    opened.close()


def test_the_log_tells_of_a_new_journal_alone(place: JournalPlace, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    place.open().close()
    place.open().close()
    [told] = [each.getMessage() for each in caplog.records]
    assert re.fullmatch(r"\S+: a new journal, without any live change", told)


def test_the_version_tells_what_any_connection_changed(journal: Journal, place: JournalPlace) -> None:
    other = place.open()
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


def test_a_user_who_is_forgotten_leaves_no_type_and_a_dry_run_changes_nothing(journal: Journal) -> None:
    journal.add_events([UserEvent(f"e{n}", f"u{n % 2}", "i", n, "click") for n in range(6)])
    before = journal.numbers()
    assert journal.forget("u1", dry_run=True) == {"events": 3, "impressions": 0} and journal.numbers() == before
    assert journal.forget("u1") == {"events": 3, "impressions": 0}
    with journal._reads(f"SELECT seq FROM {journal._schema}event_types ORDER BY seq") as rows:
        assert [seq for (seq,) in rows] == [seq for seq, _ in journal.events_since(0)]
    assert [event.type for _, event in journal.events_since(0)] == ["click"] * 3


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


def test_a_reader_that_asks_for_what_is_new_misses_nothing(place: JournalPlace) -> None:
    """Numbers that are given before a commit become visible in another order, if nothing holds the commits back."""

    def write(writer: int) -> None:
        with closing(place.open()) as journal:
            for n in range(60):
                journal.add_events([UserEvent(f"{writer}-{n}-{part}", "u", "i", n) for part in range(3)])
                journal.put_items([(f"{writer}-{n}", {}, {})])

    events: list[tuple[int, UserEvent]] = []
    items: list[ItemChange] = []
    with closing(place.open()) as journal, ThreadPoolExecutor(4) as threads:
        writers = [threads.submit(write, writer) for writer in range(4)]
        ended = False
        while not ended:
            ended = all(writer.done() for writer in writers)
            events += journal.events_since(events[-1][0] if events else 0)
            items += journal.items_since(items[-1].seq if items else 0)
        for writer in writers:
            writer.result()
    names = [f"{writer}-{n}" for writer in range(4) for n in range(60)]
    assert sorted(each.item_id for each in items) == sorted(names)
    assert sorted(each.event_id for _, each in events) == sorted(
        f"{name}-{part}" for name in names for part in range(3)
    )


def test_what_cannot_be_kept_is_not_kept_by_half(journal: Journal) -> None:
    journal.put_items([("a", {"x": 1}, {})])
    with pytest.raises(TypeError):
        journal.put_items([("a", {"x": 2}, {}), ("b", {"x": object()}, {})])
    with pytest.raises((OverflowError, JournalError)):
        journal.add_events([UserEvent("e", "u", "i", 1), UserEvent("f", "u", "i", 2**63)])
    assert journal.items_since(0) == [ItemChange(1, "a", False, {"x": 1}, {})]
    assert journal.events_since(0) == []
    assert journal.add_events([UserEvent("e", "u", "i", 1)]) == 1


def test_a_closed_journal_is_told(journal: Journal) -> None:
    journal.close()
    journal.close()
    for use in (journal.version, lambda: journal.put_items([("a", {}, {})]), lambda: journal.add_events([])):
        with pytest.raises(JournalError, match="closed"):
            use()
