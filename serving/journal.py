"""The journal of live changes: items put and deleted, events of users; kept before anything is acknowledged.

In: changes, from any thread of any process. Out: what changed since a sequence number. One SQLite file in WAL mode,
flushed to the disk with every commit. It must lie on a disk of this machine: WAL and file locks need shared memory.
"""

import fcntl
import json
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from serving.staging import flush

FILE = "journal.sqlite"
LOCK = "journal.lock"
# "twr1" tells this file from any other SQLite database; the version is that of the tables below.
APPLICATION = 0x74777231
SCHEMA_VERSION = 1
# AUTOINCREMENT: a number is never given twice, not even after the row that had it was replaced. Ids are
# bytes: text in SQLite would end at a NUL for its functions, and takes no lone surrogate.
SCHEMA = (
    "CREATE TABLE journal (identity TEXT NOT NULL)",
    "CREATE TABLE items (seq INTEGER PRIMARY KEY AUTOINCREMENT, item_id BLOB NOT NULL UNIQUE,"
    " deleted INTEGER NOT NULL, features TEXT NOT NULL, attributes TEXT NOT NULL)",
    "CREATE TABLE events (seq INTEGER PRIMARY KEY AUTOINCREMENT, event_id BLOB NOT NULL UNIQUE,"
    " user_id BLOB NOT NULL, item_id BLOB NOT NULL, time INTEGER NOT NULL)",
    f"PRAGMA application_id = {APPLICATION}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)
LAST_ITEM = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'items'"
LONGEST_WAIT_S = 10.0
POLL_S = 0.001


class JournalError(Exception):
    """The journal cannot be opened, read or written; what was being written is not in it. Names path and reason."""


@dataclass(frozen=True)
class ItemChange:
    """The latest state of one item; one that is deleted has neither features nor attributes."""

    seq: int
    item_id: str
    deleted: bool
    features: dict[str, Any]
    attributes: dict[str, Any]


@dataclass(frozen=True)
class UserEvent:
    """One user took one item; `time` in whole seconds since 1970, UTC."""

    event_id: str
    user_id: str
    item_id: str
    time: int


class Journal:
    """An open journal. Any thread may use it; another process, also a fork, opens its own."""

    identity: str  # random, written at creation: sequence numbers mean something only within one identity

    def __init__(self, path: Path, lock: IO[bytes]) -> None:
        """Use `Journal.open`."""
        self.path = path
        self._lock = lock
        # Two connections: a reader never waits for a commit, which waits for the disk.
        self._writer, self._writing = _connect(path), threading.Lock()
        self._reader, self._reading = _connect(path), threading.Lock()

    @classmethod
    def open(cls, directory: Path) -> "Journal":
        """Opens the journal of a directory; makes both where they are not there.

        Raises:
            JournalError: the file is no journal of this version, or cannot be written.
        """
        path = directory / FILE
        with _telling(path):
            directory.mkdir(parents=True, exist_ok=True)
            lock = (directory / LOCK).open("ab")
            try:
                with _locked(lock):
                    _create(path)
                journal = cls(path, lock)
            except BaseException:
                lock.close()
                raise
            (journal.identity,) = journal._reader.execute("SELECT identity FROM journal").fetchone()
        return journal

    def put_items(self, items: Sequence[tuple[str, Mapping[str, Any], Mapping[str, Any]]]) -> int:
        """Puts items: all of them or none, in their order. They are on the disk when it returns.

        Args:
            items: (item id, features, attributes) each; values are what JSON can hold.

        Returns:
            The sequence number of the last change of an item.

        Raises:
            JournalError: nothing was put.
        """
        return self._change([(_key(item), 0, json.dumps(features), json.dumps(rest)) for item, features, rest in items])

    def delete_items(self, item_ids: Sequence[str]) -> int:
        """Deletes items, also ones that the journal does not know; otherwise as `put_items`."""
        return self._change([(_key(item), 1, "{}", "{}") for item in item_ids])

    def add_events(self, events: Sequence[UserEvent]) -> int:
        """Adds events: all of them or none, in their order; an event id that was ever added is passed over.

        Returns:
            How many were new.

        Raises:
            JournalError: nothing was added.
        """
        rows = [(_key(each.event_id), _key(each.user_id), _key(each.item_id), each.time) for each in events]
        with self._transaction() as connection:
            return connection.executemany(
                "INSERT INTO events (event_id, user_id, item_id, time) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (event_id) DO NOTHING",
                rows,
            ).rowcount

    def items_since(self, seq: int) -> list[ItemChange]:
        """The latest state of every item whose last change has a greater number than `seq`, in the order of changes."""
        with self._reads("SELECT * FROM items WHERE seq > ? ORDER BY seq", seq) as rows:
            return [
                ItemChange(number, _text(item), bool(deleted), json.loads(features), json.loads(attributes))
                for number, item, deleted, features, attributes in rows
            ]

    def events_since(self, seq: int) -> list[tuple[int, UserEvent]]:
        """Every event with a greater number than `seq`, in the order of adding; items have numbers of their own."""
        with self._reads("SELECT * FROM events WHERE seq > ? ORDER BY seq", seq) as rows:
            return [
                (number, UserEvent(_text(event), _text(user), _text(item), at))
                for number, event, user, item, at in rows
            ]

    def version(self) -> int:
        """A number that grows with every change of items or events by any process, and is the same in all of them."""
        with self._reads("SELECT coalesce(sum(seq), 0) FROM sqlite_sequence WHERE seq > ?", 0) as ((total,),):
            return int(total)

    def close(self) -> None:
        """Closes the file; a second time does nothing."""
        with self._writing, self._reading:
            self._reader.close()
            self._writer.close()
            self._lock.close()

    def _change(self, rows: Sequence[tuple[bytes, int, str, str]]) -> int:
        with self._transaction() as connection:
            # REPLACE removes the row of the item's last change, so that the new one gets the next number.
            connection.executemany(
                "INSERT OR REPLACE INTO items (item_id, deleted, features, attributes) VALUES (?, ?, ?, ?)", rows
            )
            ((last,),) = connection.execute(LAST_ITEM).fetchall()
        return int(last)

    @contextmanager
    def _reads(self, statement: str, seq: int) -> Iterator[list[Any]]:
        with _telling(self.path):
            with self._reading:
                rows = self._reader.execute(statement, (seq,)).fetchall()
            yield rows

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Commits at the end, or rolls back whatever was raised."""
        with _telling(self.path), self._writing, _locked(self._lock):
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self._writer.execute("COMMIT")
            except BaseException:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, LONGEST_WAIT_S, isolation_level=None, check_same_thread=False)
    try:
        # Both are of the connection, not of the file. The second makes macOS flush the disk's own cache, too.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA fullfsync = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _create(path: Path) -> None:
    """Makes the tables where the file is new or empty, and refuses what is no journal; the caller holds the lock."""
    new = not path.exists()
    with closing(_connect(path)) as connection:
        ((application,),) = connection.execute("PRAGMA application_id").fetchall()
        ((version,),) = connection.execute("PRAGMA user_version").fetchall()
        ((tables,),) = connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
        if (application, version, tables) != (0, 0, 0):
            if application != APPLICATION:
                raise JournalError(f"{path}: an SQLite database, but no journal; name another directory")
            if version != SCHEMA_VERSION:
                raise JournalError(f"{path}: a journal of version {version}; this program reads {SCHEMA_VERSION}")
        ((mode,),) = connection.execute("PRAGMA journal_mode = WAL").fetchall()
        if mode != "wal":
            raise JournalError(f"{path}: SQLite cannot keep a write-ahead log here (journal mode {mode})")
        if tables == 0:
            connection.execute("BEGIN IMMEDIATE")
            for statement in SCHEMA:
                connection.execute(statement)
            connection.execute("INSERT INTO journal VALUES (?)", (secrets.token_hex(16),))
            connection.execute("COMMIT")
    if new:
        # The names of file and directory must last as long as what will be in them.
        flush(path.parent)
        flush(path.parent.absolute().parent)


@contextmanager
def _locked(lock: IO[bytes]) -> Iterator[None]:
    """Holds the lock file alone. A kill gives it back.

    SQLite's own lock would let a checkpoint run beside a commit of another process; up to version 3.51.2 that can, very
    rarely, corrupt the file (https://sqlite.org/wal.html#walresetbug). Here every commit is alone, with the checkpoint
    that it may end with. Two processes that make one new journal at once need it, too.
    """
    until = time.monotonic() + LONGEST_WAIT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > until:
                raise OSError(f"another process has been writing for {LONGEST_WAIT_S:.0f} s") from None
            time.sleep(POLL_S)
    try:
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)


@contextmanager
def _telling(path: Path) -> Iterator[None]:
    """Turns what SQLite or the system refuses, and rows that cannot be read, into one error."""
    try:
        yield
    except (sqlite3.Error, OSError, ValueError) as error:
        # SQLite's words are few: "disk I/O error" is many things, its name for it is one.
        name = getattr(error, "sqlite_errorname", None)
        reason = getattr(error, "strerror", None) or str(error)
        raise JournalError(f"{path}: {reason}" + (f" ({name})" if name else "")) from error


def _key(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _text(key: bytes) -> str:
    return key.decode("utf-8", "surrogatepass")
