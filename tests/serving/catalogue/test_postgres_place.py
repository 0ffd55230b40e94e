"""Databases that lack the last changes: restored, copied, promoted. Readers have seen the numbers of the lost ones."""

import logging
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from serving.catalogue.journal import Journal, JournalError
from serving.catalogue.journal_place import journal_at
from serving.files.database_url import DatabaseUrl
from tests.support.journals import PostgresPlace
from tests.support.paths import ROOT
from tests.support.processes.postgres_cluster import PASSWORD, PostgresCluster

pytestmark = pytest.mark.long


def put(journal: Journal, item: str) -> int:
    return journal.put_items([(item, {}, {})])


def items(journal: Journal, since: int = 0) -> list[str]:
    return [each.item_id for each in journal.items_since(since)]


def dump(place: PostgresPlace) -> Callable[[], None]:
    kept = place.cluster.dump(place.database)

    def restore() -> None:
        place.cluster.execute("DROP SCHEMA towers CASCADE", place.database)
        place.cluster.load(kept, place.database)

    return restore


def template(place: PostgresPlace) -> Callable[[], None]:
    name = place.database
    end = f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '{name}'"
    place.cluster.execute(end)
    place.cluster.execute(f"CREATE DATABASE {name}_saved TEMPLATE {name}")

    def restore() -> None:
        place.cluster.execute(f"DROP DATABASE {name} WITH (FORCE)")
        place.cluster.execute(f"ALTER DATABASE {name}_saved RENAME TO {name}")

    return restore


@pytest.mark.parametrize("save", [dump, template])
def test_after_a_restore_of_a_dump_or_a_copy_readers_miss_no_new_change(
    place: PostgresPlace, save: Callable[[PostgresPlace], Callable[[], None]]
) -> None:
    with closing(place.open()) as journal:
        assert put(journal, "a") == 1
        restore = save(place)
        assert put(journal, "b") == 2
    restore()
    with closing(place.open()) as journal:
        assert put(journal, "c") > 2
        assert (items(journal, 2), items(journal)) == (["c"], ["a", "c"])


def test_of_files_put_back_the_page_names_the_statement_after_which_readers_miss_no_new_change() -> None:
    statement = "UPDATE towers.journal SET place = ''"
    assert statement in (ROOT / "docs/service/operations.md").read_text()
    cluster = PostgresCluster()
    try:
        place = PostgresPlace(cluster)
        with closing(place.open()) as journal:
            assert put(journal, "a") == 1
            cluster.save()
            assert put(journal, "b") == 2
            cluster.start_saved()
            cluster.execute(statement, place.database)
            last = put(journal, "c")
            assert last > 2
            assert (items(journal, 2), items(journal)) == (["c"], ["a", "c"])
            cluster.kill()
            cluster.start()
            cluster.execute("VACUUM FULL towers.journal", place.database)
            assert put(journal, "d") == last + 1
    finally:
        cluster.remove()


def test_a_standby_is_read_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    cluster = PostgresCluster()
    try:
        place = PostgresPlace(cluster)
        with closing(place.open()) as journal:
            put(journal, "a")
        # A standby has no such transactions.
        cluster.execute(f"ALTER DATABASE {place.database} RESET default_transaction_isolation")
        # As an earlier release left it: the standby cannot add what is missing.
        cluster.execute("ALTER TABLE towers.journal DROP COLUMN place", place.database)
        cluster.save()
        cluster.start_saved(standby=True)
        with closing(journal_at(DatabaseUrl(f"{place.state}?target_session_attrs=any"), must_exist=True)) as journal:
            assert items(journal) == ["a"]
        assert not caplog.records
    finally:
        cluster.remove()


@pytest.fixture
def roles(place: PostgresPlace) -> Iterator[dict[str, DatabaseUrl]]:
    """Users with grants on the tables as an earlier release left them, which has put "a"."""
    with closing(place.open()) as journal:
        put(journal, "a")
    place.cluster.execute("ALTER TABLE towers.journal DROP COLUMN place", place.database)
    grants = {"reads": "SELECT", "writes": "SELECT, INSERT, UPDATE, DELETE"}
    for name, granted in grants.items():
        place.cluster.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{PASSWORD}'")
        place.cluster.execute(
            f"GRANT USAGE ON SCHEMA towers TO {name}; GRANT {granted} ON ALL TABLES IN SCHEMA towers TO {name}",
            place.database,
        )
    yield {name: DatabaseUrl(place.cluster.url(place.database, name)) for name in grants}
    for name in grants:
        place.cluster.execute(f"DROP OWNED BY {name}", place.database)
        place.cluster.execute(f"DROP ROLE {name}")


def test_users_need_no_more_than_grants_on_the_tables(
    place: PostgresPlace, roles: dict[str, DatabaseUrl], caplog: pytest.LogCaptureFixture
) -> None:
    reads, writes = roles["reads"], roles["writes"]
    risk = "after a promotion or a restore changes may get the numbers of lost ones"

    def warnings() -> list[str]:
        told = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
        caplog.clear()
        return told

    with closing(journal_at(reads)) as journal:
        assert items(journal) == ["a"]
        with pytest.raises(JournalError, match="permission denied"):
            put(journal, "x")
    assert warnings() == [f"{reads}: {risk}: must be owner of table journal"]
    with closing(journal_at(writes)) as journal:
        assert put(journal, "b") == 2
    assert warnings() == [f"{writes}: {risk}: must be owner of table journal"]
    place.open().close()
    with closing(journal_at(writes)) as journal:
        assert put(journal, "c") == 3
    place.cluster.execute("UPDATE towers.journal SET place = 'another'", place.database)
    with closing(journal_at(reads)) as journal:
        assert items(journal, 2) == ["c"]
    assert warnings() == [f"{reads}: {risk}: permission denied for table journal"]
    with closing(journal_at(writes)) as journal:
        assert put(journal, "d") > 4
    with closing(journal_at(reads)) as journal:
        assert items(journal, 3) == ["d"]
    assert not warnings()
    place.cluster.execute("REVOKE EXECUTE ON FUNCTION pg_walfile_name(pg_lsn) FROM PUBLIC", place.database)
    for _ in range(2):
        journal_at(writes).close()
    assert warnings() == [f"{writes}: {risk}: permission denied for function pg_walfile_name"]
