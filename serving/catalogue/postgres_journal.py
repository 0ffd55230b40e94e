"""The journal of several machines: one PostgreSQL database, in which every commit waits for the disk."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from serving.catalogue.journal import Journal, JournalError, Numbers
from serving.catalogue.journal_rows import Row, id_bytes
from serving.catalogue.postgres_link import Link
from serving.catalogue.postgres_tables import telling_errors
from serving.files.database_url import DatabaseUrl

NUMBERS = ", ".join(Numbers._fields)
PUT = """INSERT INTO towers.items
SELECT * FROM unnest(%s::bigint[], %s::bytea[], %s::integer[], %s::text[], %s::text[])
ON CONFLICT (item_id) DO UPDATE SET (seq, deleted, features, attributes)
= (excluded.seq, excluded.deleted, excluded.features, excluded.attributes)"""
ADD = {
    "events": """INSERT INTO towers.events
SELECT * FROM unnest(%s::bigint[], %s::bytea[], %s::bytea[], %s::bytea[], %s::bigint[])
ON CONFLICT (event_id) DO NOTHING""",
    "impressions": """INSERT INTO towers.impressions
SELECT * FROM unnest(%s::bigint[], %s::bytea[], %s::bytea[], %s::bytea[], %s::text[], %s::bigint[])
ON CONFLICT (impression_id) DO NOTHING""",
}
ADD_TYPES = """INSERT INTO towers.event_types
SELECT seq, type FROM towers.events JOIN unnest(%s::bytea[], %s::bytea[]) AS new(event_id, type) USING (event_id)
WHERE seq > %s"""
FORGET_TYPES = "DELETE FROM towers.event_types WHERE seq IN (SELECT seq FROM towers.events WHERE user_id = %s)"


class PostgresJournal(Journal):
    """An open database; the methods are those of `Journal`."""

    _schema = "towers."

    def __init__(self, url: DatabaseUrl, *, must_exist: bool = False) -> None:
        """Opens the journal of a database; creates its tables if missing, unless it must exist.

        Raises:
            JournalError: the database cannot be reached, or its journal is of another version.
        """
        # Two connections: readers must not wait for a commit, which waits for the disk.
        self._url = url
        self._writer, self._reader = Link(url, must_exist=must_exist), Link(url, must_exist=True)
        try:
            with self._writer.held(), self._reader.held():
                self.identity = self._reader.identity
        except BaseException:
            self.close()
            raise

    def forget(self, user_id: str, *, dry_run: bool = False) -> dict[str, int]:
        """Deletes a user and rewrites the tables' pages: `Journal.forget`.

        The write-ahead log and backups of the server hold the user for as long as the server keeps them.
        """
        key = (id_bytes(user_id),)
        tables = ("events", "impressions")
        with self._writer.held(patient=True) as connection:
            with connection.transaction():
                connection.execute("SELECT FROM towers.journal FOR UPDATE")
                found = {}
                if not dry_run:
                    connection.execute(FORGET_TYPES, key)
                for table in tables:
                    deleted = f"FROM towers.{table} WHERE user_id = %s"
                    statement = f"SELECT {deleted}" if dry_run else f"DELETE {deleted}"
                    found[table] = connection.execute(statement, key).rowcount
                if any(found.values()) and not dry_run:
                    connection.execute("UPDATE towers.journal SET forgotten = forgotten + 1")
            if not dry_run:
                for table in (*tables, "event_types"):
                    connection.execute(f"VACUUM towers.{table}")
        return found

    def numbers(self) -> Numbers:
        """The journal's row: `Journal.numbers`."""
        with self._reads(f"SELECT {NUMBERS} FROM towers.journal") as (row,):
            return Numbers(*row)

    def load(self, identity: str, numbers: Numbers, blocks: Iterable[tuple[str, Sequence[tuple[Any, ...]]]]) -> None:
        """One transaction: `Journal.load`."""
        with self._writer.held(patient=True) as connection, connection.transaction():
            if any(connection.execute(f"SELECT {NUMBERS} FROM towers.journal FOR UPDATE").fetchall()[0]):
                raise JournalError(f"{self._url}: has held changes; only a new journal takes over another")
            # `blocks` may be slow, and nobody else writes here.
            connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            for table, rows in blocks:
                with connection.cursor() as cursor, cursor.copy(f"COPY towers.{table} FROM STDIN") as copy:
                    for row in rows:
                        copy.write_row(row)
            # Else reads are planned for empty tables until the server itself looks, a minute later.
            connection.execute("ANALYZE towers.items, towers.events, towers.event_types, towers.impressions")
            connection.execute(
                f"UPDATE towers.journal SET (identity, {NUMBERS}) = (%s, %s, %s, %s, %s)", (identity, *numbers)
            )
        self.identity = self._writer.identity = self._reader.identity = identity

    def close(self) -> None:
        """Closes both connections: `Journal.close`."""
        self._writer.close()
        self._reader.close()

    def _change(self, rows: Sequence[Row]) -> int:
        with self._writer.held() as connection, connection.transaction():
            last = _last(connection, "items")
            # Of an item that comes twice the last row counts; one statement cannot change a row twice.
            latest = {item_id: (last + place, item_id, *rest) for place, (item_id, *rest) in enumerate(rows, start=1)}
            if latest:
                connection.execute(PUT, _columns(list(latest.values())))
                connection.execute("UPDATE towers.journal SET items = %s", (last + len(rows),))
            return last + len(rows)

    def _add(self, table: str, rows: Sequence[Row], types: Sequence[Row] = ()) -> int:
        with self._writer.held() as connection, connection.transaction():
            last = _last(connection, table)
            if not rows:
                return 0
            numbered = [(last + place, *row) for place, row in enumerate(rows, start=1)]
            added = connection.execute(ADD[table], _columns(numbered)).rowcount
            if added:
                connection.execute(f"UPDATE towers.journal SET {table} = %s", (last + len(rows),))
            if types:
                connection.execute(ADD_TYPES, (*_columns(types), last))
            return added

    @contextmanager
    def _reads(self, statement: str, *values: int | bytes) -> Iterator[list[Any]]:
        with telling_errors(self._url):
            with self._reader.held(patient=True) as connection:
                rows: list[Any] = connection.execute(statement.replace("?", "%s"), values).fetchall()
            yield rows


def _last(connection: psycopg.Connection, table: str) -> int:
    """The last number; locks the journal until the end of the transaction, so that writes are numbered in order."""
    ((last,),) = connection.execute(f"SELECT {table} FROM towers.journal FOR UPDATE").fetchall()
    return int(last)


def _columns(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]
