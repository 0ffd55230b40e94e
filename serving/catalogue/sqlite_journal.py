"""The journal of one machine: one SQLite file in WAL mode, flushed to disk with every commit.

It must be on a local disk: WAL and file locks need shared memory.
"""

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from serving.catalogue.journal import Journal, JournalError, Numbers
from serving.catalogue.journal_file import FILE, LOCK, connect, create, locked, telling_errors
from serving.catalogue.journal_rows import Row, id_bytes

LAST = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = ?"
ADD = {
    "events": "INSERT INTO events (event_id, user_id, item_id, time) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (event_id) DO NOTHING",
    "impressions": "INSERT INTO impressions (impression_id, request_id, user_id, item_ids, time)"
    " VALUES (?, ?, ?, ?, ?) ON CONFLICT (impression_id) DO NOTHING",
}
ADD_TYPE = "INSERT INTO event_types SELECT seq, ?2 FROM events WHERE event_id = ?1 AND seq > ?3"
FORGET_TYPES = "DELETE FROM event_types WHERE seq IN (SELECT seq FROM events WHERE user_id = ?)"


class SqliteJournal(Journal):
    """An open SQLite file; the methods are those of `Journal`."""

    def __init__(self, path: Path, lock: IO[bytes]) -> None:
        """Use `SqliteJournal.open`."""
        self.path = path.absolute()
        self._lock = lock
        # Two connections: readers must not wait for a commit, which waits for the disk.
        self._writer, self._writing = connect(path), threading.Lock()
        self._reader, self._reading = connect(path), threading.Lock()
        (self.identity,) = self._reader.execute("SELECT identity FROM journal").fetchone()
        self._opened = self._files()  # all three exist from the first read on

    @classmethod
    def open(cls, directory: Path) -> "SqliteJournal":
        """Opens the journal in a directory; creates both if missing.

        Raises:
            JournalError: the file is not a journal of this version, or cannot be written.
        """
        path = directory / FILE
        with telling_errors(path):
            directory.mkdir(parents=True, exist_ok=True)
            lock = (directory / LOCK).open("ab")
            try:
                with locked(lock):
                    create(path)
                journal = cls(path, lock)
            except BaseException:
                lock.close()
                raise
        return journal

    def forget(self, user_id: str, *, dry_run: bool = False) -> dict[str, int]:
        """Deletes a user also from the file's free space and its write-ahead log: `Journal.forget`."""
        key = (id_bytes(user_id),)
        with self._transaction() as connection:
            found = {
                table: int(connection.execute(f"SELECT count(*) FROM {table} WHERE user_id = ?", key).fetchone()[0])
                for table in ("events", "impressions")
            }
            if any(found.values()) and not dry_run:
                connection.execute(FORGET_TYPES, key)
                for table in found:
                    connection.execute(f"DELETE FROM {table} WHERE user_id = ?", key)
                connection.execute("INSERT INTO forgotten DEFAULT VALUES")
                connection.execute("DELETE FROM forgotten")
        if not dry_run:
            with telling_errors(self.path), self._writing, locked(self._lock):
                ((busy, _, _),) = self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                if busy:
                    raise OSError("the user is deleted, but a reader keeps the old write-ahead log; forget once more")
        return found

    def numbers(self) -> Numbers:
        """The file's own table of last numbers: `Journal.numbers`."""
        with self._reads("SELECT name, seq FROM sqlite_sequence WHERE seq > ?", 0) as rows:
            last = dict(rows)
        return Numbers(*(last.get(name, 0) for name in Numbers._fields))

    def load(self, identity: str, numbers: Numbers, blocks: Iterable[tuple[str, Sequence[tuple[Any, ...]]]]) -> None:
        """One transaction: `Journal.load`."""
        with self._transaction() as connection:
            if any(self.numbers()):
                raise JournalError(f"{self.path}: has held changes; only a new journal takes over another")
            for table, rows in blocks:
                for row in rows:
                    connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
            connection.execute("DELETE FROM sqlite_sequence")
            connection.executemany("INSERT INTO sqlite_sequence VALUES (?, ?)", numbers._asdict().items())
            connection.execute("UPDATE journal SET identity = ?", (identity,))
        self.identity = identity

    def close(self) -> None:
        """Closes the file: `Journal.close`."""
        with self._writing, self._reading:
            self._reader.close()
            self._writer.close()
            self._lock.close()

    def _files(self) -> list[tuple[int, int]]:
        """Which files have the names of the database, of its write-ahead log and of the index of that."""
        found = []
        for end in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                found.append(Path(f"{self.path}{end}").stat())
        return [(each.st_dev, each.st_ino) for each in found]

    def _change(self, rows: Sequence[Row]) -> int:
        with self._transaction() as connection:
            # REPLACE removes the item's old row, so that the new one gets the next number.
            connection.executemany(
                "INSERT OR REPLACE INTO items (item_id, deleted, features, attributes) VALUES (?, ?, ?, ?)", rows
            )
            ((last,),) = connection.execute(LAST, ("items",)).fetchall()
        return int(last)

    def _add(self, table: str, rows: Sequence[Row], types: Sequence[Row] = ()) -> int:
        with self._transaction() as connection:
            ((last,),) = connection.execute(LAST, (table,)).fetchall()
            added = connection.executemany(ADD[table], rows).rowcount
            connection.executemany(ADD_TYPE, [(*each, last) for each in types])
            return added

    @contextmanager
    def _reads(self, statement: str, *values: int | bytes) -> Iterator[list[Any]]:
        with telling_errors(self.path):
            with self._reading:
                rows = self._reader.execute(statement, values).fetchall()
            yield rows

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Commits at the end, or rolls back on any exception."""
        with telling_errors(self.path), self._writing, locked(self._lock):
            # The system keeps a removed file for those who have it open, and SQLite writes on: to nowhere.
            if self._files() != self._opened:
                raise OSError(
                    "it, its -wal or its -shm was removed or replaced since it was opened; restart the service"
                )
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self._writer.execute("COMMIT")
            except BaseException:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise
