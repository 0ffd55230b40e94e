"""Places for a journal, one kind for each database: the tests of the contract run on all of them."""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Protocol

from serving.catalogue.journal import Journal
from serving.catalogue.sqlite_journal import SqliteJournal
from serving.files.database_url import DatabaseUrl
from tests.support.processes.postgres_cluster import PostgresCluster


class JournalPlace(Protocol):
    """A place without a journal at first; `state` is what `--state` names."""

    state: str

    def open(self) -> Journal: ...

    def remove(self) -> None: ...


class SqlitePlace:
    """A directory."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.state = str(self.directory)

    def open(self) -> Journal:
        return SqliteJournal.open(self.directory)

    def remove(self) -> None:
        shutil.rmtree(self.directory)


class PostgresPlace:
    """An empty database, by default of a server that all tests of a process share."""

    def __init__(self, cluster: PostgresCluster | None = None) -> None:
        self.cluster = cluster or shared_cluster()
        self.state = self.cluster.new_database()
        self.url = DatabaseUrl(self.state)
        self.database = self.state.rpartition("/")[2]
        # The strictest default that a database can have.
        self.cluster.execute(f"ALTER DATABASE {self.database} SET default_transaction_isolation = 'serializable'")

    def open(self) -> Journal:
        # The extra `postgres`, which the test of another place need not have.
        from serving.catalogue.postgres_journal import PostgresJournal

        return PostgresJournal(self.url)

    def remove(self) -> None:
        self.cluster.execute(f"DROP DATABASE {self.database} WITH (FORCE)")


@cache
def shared_cluster() -> PostgresCluster:
    """A running server that ends with this process."""
    cluster = PostgresCluster()
    atexit.register(cluster.remove)
    return cluster
