"""`towers state move`: everything arrives, under its numbers, or nothing does."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pipelines.errors import DataError
from pipelines.service import state as state_command
from serving.catalogue.journal import Impression, Journal, UserEvent
from serving.catalogue.journal_place import journal_at
from serving.catalogue.sqlite_journal import SqliteJournal
from serving.files.database_url import DatabaseUrl, state_place
from serving.files.staging import OutputExistsError
from tests.support.journals import PostgresPlace

New = Callable[[], Path | DatabaseUrl]


@pytest.fixture
def new(tmp_path: Path) -> Iterator[Callable[[str], Any]]:
    """Makes new places of a kind."""
    databases: list[PostgresPlace] = []
    names = iter(("one", "two"))

    def make(kind: str) -> Any:
        if kind == "directory":
            return tmp_path / next(names)
        databases.append(PostgresPlace())
        return state_place(databases[-1].state)

    yield make
    for each in databases:
        each.remove()


def fill(journal: Journal) -> None:
    journal.put_items([("i1", {"x": 1}, {"y": [2]}), ("a\0\ud800", {}, {"t": "\0é"})])
    journal.put_items([("i1", {"x": 2}, {})])
    journal.delete_items(["i3"])
    journal.add_events(
        [UserEvent(f"e{n}", f"u{n % 2}", "i\ud800", n - 5, ["event", "buy\0"][n % 3 % 2]) for n in range(10)]
    )
    journal.add_impressions([Impression(f"s{n}", "r", "u", ("i", "j\0"), n) for n in range(10)])
    journal.forget("u0")


def content(journal: Journal) -> list[Any]:
    held = [journal.items_since(0), journal.events_since(0), journal.impressions_since(0)]
    return [journal.identity, journal.numbers(), journal.version(), journal.forgotten(), *held]


KINDS = [
    pytest.param(source, target, marks=[] if {source, target} == {"directory"} else [pytest.mark.long])
    for source in ("directory", "database")
    for target in ("directory", "database")
]


@pytest.mark.parametrize(("source", "target"), KINDS)
def test_all_arrives_under_its_numbers(
    new: Callable[[str], Any], source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.service.state.BLOCK_ROWS", 3)
    state, to = new(source), new(target)
    with closing(journal_at(state)) as journal:
        fill(journal)
        expected = content(journal)
    assert [len(held) for held in expected[-3:]] == [3, 5, 10]
    state_command.move(state, to)
    with closing(journal_at(state)) as journal:
        assert content(journal) == expected, "what was moved stays as it was"
    with closing(journal_at(to)) as moved:
        assert content(moved) == expected
        assert moved.put_items([("new", {}, {})]) == expected[1].items + 1
        assert moved.add_events([UserEvent("e1", "u1", "i", 1), UserEvent("new", "u1", "i", 1)]) == 1
        assert [number for number, _ in moved.events_since(expected[1].events)] > [expected[1].events]


@pytest.mark.parametrize(("source", "target"), KINDS)
def test_nothing_arrives_if_the_source_changes_or_the_target_is_used(
    new: Callable[[str], Any], source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, to = new(source), new(target)
    with closing(journal_at(state)) as journal:
        fill(journal)
        block = state_command.impression_block

        def late(shown: Any) -> Any:
            journal.add_events([UserEvent(f"late{len(shown)}", "u", "i", 1)])
            return block(shown)

        with monkeypatch.context() as patched:
            patched.setattr(state_command, "impression_block", late)
            with pytest.raises(DataError, match="it changed meanwhile, nothing was moved"):
                state_command.move(state, to)
    if isinstance(to, Path):
        assert not to.exists()
    else:
        with closing(journal_at(to)) as empty:
            assert empty.counts() == (0, 0, 0) and empty.identity != journal.identity
    with closing(journal_at(to)) as used:
        used.put_items([("theirs", {}, {})])
    with pytest.raises((DataError, OutputExistsError), match=r"has held changes|exists"):
        state_command.move(state, to)
    with closing(journal_at(to)) as used:
        assert [each.item_id for each in used.items_since(0)] == ["theirs"]


def test_a_file_that_has_held_changes_takes_over_none(tmp_path: Path) -> None:
    with closing(SqliteJournal.open(tmp_path / "one")) as one, closing(SqliteJournal.open(tmp_path / "two")) as two:
        fill(one)
        with pytest.raises(Exception, match="has held changes"):
            one.load(two.identity, two.numbers(), [])
        assert len(one.items_since(0)) == 3 and one.identity != two.identity


def test_without_a_journal_there_is_nothing_to_move(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"--state .*: no journal\.sqlite in it"):
        state_command.move(tmp_path, tmp_path / "to")
    assert not (tmp_path / "to").exists()
