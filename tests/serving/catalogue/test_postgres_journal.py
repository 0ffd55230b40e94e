"""The journal in a PostgreSQL database: its disk, its restarts, databases that are not what they should be."""

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from serving.catalogue.journal import JournalError, Numbers, UserEvent
from serving.catalogue.journal_place import journal_at
from serving.files.database_url import DatabaseUrl
from tests.support.journals import PostgresPlace
from tests.support.processes.postgres_cluster import IN_URL, PASSWORD, USER, PostgresCluster

pytestmark = pytest.mark.long


def test_every_commit_waits_for_the_disk_also_where_the_database_says_otherwise(place: PostgresPlace) -> None:
    """A killed process loses nothing either way: only a power cut would show it."""
    for default, expected in (("off", "on"), ("on", "on"), ("remote_apply", "remote_apply")):
        place.cluster.execute(f"ALTER DATABASE {place.database} SET synchronous_commit = {default}")
        with closing(place.open()) as journal:
            connection: Any = journal._writer._wire.connection  # type: ignore[attr-defined]
            assert connection.execute("SHOW synchronous_commit").fetchall() == [(expected,)]


def test_a_lost_connection_is_opened_again_by_the_next_call(place: PostgresPlace) -> None:
    with closing(place.open()) as journal:
        journal.put_items([("a", {}, {})])
        place.cluster.execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{place.database}'"
        )
        assert journal.version() == 1
        assert journal.add_events([UserEvent("e", "u", "a", 1)]) == 1


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server waits half a second for a connection in the middle of a write."""
    told = "SET lock_timeout = '10s'; SET idle_in_transaction_session_timeout = '500ms'"
    monkeypatch.setattr("serving.catalogue.postgres_tables.PATIENCE", told)


@pytest.mark.usefixtures("hurried")
def test_a_service_that_hangs_in_a_write_does_not_stop_the_writes_of_others(place: PostgresPlace) -> None:
    with closing(place.open()) as hangs, closing(place.open()) as other:
        write = hangs._writer.held()  # type: ignore[attr-defined]
        with pytest.raises(JournalError, match="idle-in-transaction"), write as connection, connection.transaction():
            connection.execute("SELECT FROM towers.journal FOR UPDATE")
            assert other.put_items([("a", {}, {})]) == 1
            connection.execute("UPDATE towers.journal SET items = 9")
        assert hangs.put_items([("b", {}, {})]) == 2


@pytest.mark.usefixtures("hurried")
def test_a_move_may_read_slowly_from_where_the_changes_are(place: PostgresPlace) -> None:
    def slowly() -> Iterator[tuple[str, list[tuple[Any, ...]]]]:
        time.sleep(0.8)
        yield "events", [(1, b"e", b"u", b"i", 5)]
        time.sleep(0.8)
        yield "event_types", [(1, b"buy")]

    with closing(place.open()) as journal:
        journal.load("other", Numbers(0, 1, 0, 0), slowly())
        assert [each.event_id for _, each in journal.events_since(0)] == ["e"]


def test_reads_are_planned_for_what_the_tables_hold(place: PostgresPlace) -> None:
    """A plan made for other numbers reads the whole table for each event; PostgreSQL keeps one after some calls."""
    rows: dict[str, list[tuple[Any, ...]]] = {"events": [(1, b"e", b"u", b"i", 5)], "event_types": [(1, b"buy")]}
    with closing(place.open()) as journal:
        journal.load("other", Numbers(0, 1, 0, 0), rows.items())
        # -1: never looked at.
        told = "SELECT relname, reltuples FROM pg_class WHERE relname IN ('events', 'event_types') ORDER BY relname"
        assert place.cluster.execute(told, place.database).splitlines() == ["event_types|1", "events|1"]
        for _ in range(20):
            journal.events_since(0)
        connection: Any = journal._reader._wire.connection  # type: ignore[attr-defined]
        assert connection.execute("SELECT name FROM pg_prepared_statements").fetchall() == []


def test_a_database_without_an_encoding_holds_a_journal_under_its_identity(place: PostgresPlace) -> None:
    """PostgreSQL makes such a one where the system names no locale, as in many a container."""
    name = f"{place.database}_ascii"
    options = "ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
    place.cluster.execute(f"CREATE DATABASE {name} {options}")
    with closing(journal_at(DatabaseUrl(place.cluster.url(name)))) as journal:
        assert journal.identity == place.cluster.execute("SELECT identity FROM towers.journal", name)


def test_another_journal_in_its_place_is_refused(place: PostgresPlace) -> None:
    with closing(place.open()) as journal:
        place.cluster.execute("DROP SCHEMA towers CASCADE", place.database)
        with pytest.raises(JournalError, match=r"relation .towers\.journal. does not exist"):
            journal.put_items([("a", {}, {})])
        place.open().close()
        place.cluster.execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{place.database}'"
        )
        for use in (journal.version, lambda: journal.put_items([("a", {}, {})])):
            with pytest.raises(JournalError, match="holds another journal than before; restart the service"):
                use()
        with closing(place.open()) as fresh:
            assert fresh.items_since(0) == []


def test_a_database_that_is_not_what_it_should_be_is_refused(place: PostgresPlace) -> None:
    def refused(url: str, reason: str, **options: bool) -> None:
        with pytest.raises(JournalError, match=reason) as told:
            journal_at(DatabaseUrl(url), **options)
        assert PASSWORD not in str(told.value) and IN_URL not in str(told.value)
        assert str(told.value).startswith(f"postgresql://{USER}@")

    refused(place.state, "no journal in it", must_exist=True)
    refused(place.state + "x", 'database ".*x" does not exist')
    refused(place.state.replace(IN_URL, "wrong"), "password authentication failed")
    refused(place.state + "?sslmod=require", "not a URL that libpq can read")
    refused(place.state.replace(str(place.cluster.port), "1"), "Connection refused")
    place.open().close()
    place.cluster.execute("UPDATE towers.journal SET schema_version = 7", place.database)
    refused(place.state, "a journal of version 7; this program reads 1")


def test_a_damaged_row_is_told(place: PostgresPlace) -> None:
    with closing(place.open()) as journal:
        journal.put_items([("a", {}, {})])
        place.cluster.execute("UPDATE towers.items SET features = '{'", place.database)
        with pytest.raises(JournalError, match=f"^postgresql://{USER}@"):
            journal.items_since(0)


def test_a_database_that_goes_and_comes_back_is_told_and_loses_nothing() -> None:
    cluster = PostgresCluster()
    try:
        with closing(PostgresPlace(cluster).open()) as journal:
            journal.put_items([("a", {}, {})])
            cluster.kill()
            for use in (journal.version, lambda: journal.put_items([("b", {}, {})])):
                with pytest.raises(JournalError, match="Connection refused") as told:
                    use()
                assert PASSWORD not in str(told.value) and "\n" not in str(told.value)
            cluster.start()
            assert journal.put_items([("c", {}, {})]) == 2
            assert [each.item_id for each in journal.items_since(0)] == ["a", "c"]
    finally:
        cluster.remove()


def test_after_the_promotion_of_a_standby_that_lacks_changes_readers_miss_no_new_one() -> None:
    """They have seen the numbers of the lost ones."""
    cluster = PostgresCluster()
    try:
        with closing(PostgresPlace(cluster).open()) as journal:
            assert [journal.put_items([("a", {}, {})]), journal.add_events([UserEvent("e", "u", "a", 1)])] == [1, 1]
            cluster.save()
            assert journal.put_items([("b", {}, {})]) == 2
            assert journal.add_events([UserEvent("f", "u", "b", 1)]) == 1
            seen = journal.numbers()
            cluster.promote_saved()
            assert journal.put_items([("c", {}, {})]) > seen.items
            assert journal.add_events([UserEvent("g", "u", "c", 1)]) == 1
            assert [each.item_id for each in journal.items_since(seen.items)] == ["c"]
            assert [each.event_id for _, each in journal.events_since(seen.events)] == ["g"]
            assert [each.item_id for each in journal.items_since(0)] == ["a", "c"]
            # Those who hold events read all of them anew, without the lost one.
            assert journal.forgotten() != seen.forgotten
            (last,) = [each.seq for each in journal.items_since(seen.items)]
            cluster.kill()
            cluster.start()
            assert journal.put_items([("d", {}, {})]) == last + 1
    finally:
        cluster.remove()
