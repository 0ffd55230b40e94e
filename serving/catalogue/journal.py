"""The journal: puts and deletes of items, users' events and what they were shown, stored before it is acknowledged.

Any thread of any process can add changes and read those after a sequence number. One SQLite file in WAL mode, flushed
to disk with every commit. It must be on a local disk: WAL and file locks need shared memory.
"""

import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from serving.catalogue.journal_file import FILE, LOCK, connect, create, locked, telling_errors

LAST_ITEM = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'items'"


@dataclass(frozen=True)
class ItemChange:
    """The latest state of one item; a deleted one has neither features nor attributes."""

    seq: int
    item_id: str
    deleted: bool
    features: dict[str, Any]
    attributes: dict[str, Any]


@dataclass(frozen=True)
class UserEvent:
    """One user's interaction with one item; `time` in whole seconds since 1970, UTC."""

    event_id: str
    user_id: str
    item_id: str
    time: int


@dataclass(frozen=True)
class Impression:
    """The items that one user was shown together, in order, and the id of the request that recalled them."""

    impression_id: str
    request_id: str
    user_id: str
    item_ids: tuple[str, ...]
    time: int


class Journal:
    """An open journal. Thread-safe; another process, also a fork, must open its own."""

    identity: str  # random, written at creation: sequence numbers are valid only within one identity

    def __init__(self, path: Path, lock: IO[bytes]) -> None:
        """Use `Journal.open`."""
        self.path = path
        self._lock = lock
        # Two connections: readers must not wait for a commit, which waits for the disk.
        self._writer, self._writing = connect(path), threading.Lock()
        self._reader, self._reading = connect(path), threading.Lock()

    @classmethod
    def open(cls, directory: Path) -> "Journal":
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
            (journal.identity,) = journal._reader.execute("SELECT identity FROM journal").fetchone()
        return journal

    def put_items(self, items: Sequence[tuple[str, Mapping[str, Any], Mapping[str, Any]]]) -> int:
        """Puts items, all or none, in order. They are on disk when it returns.

        Args:
            items: (item id, features, attributes) each; values must be valid JSON.

        Returns:
            The sequence number of the last item change.

        Raises:
            JournalError: nothing was put.
        """
        return self._change([(_key(item), 0, json.dumps(features), json.dumps(rest)) for item, features, rest in items])

    def delete_items(self, item_ids: Sequence[str]) -> int:
        """Deletes items, including ones unknown to the journal; otherwise like `put_items`."""
        return self._change([(_key(item), 1, "{}", "{}") for item in item_ids])

    def add_events(self, events: Sequence[UserEvent]) -> int:
        """Adds events, all or none, in order; skips every event id that was ever added before.

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

    def add_impressions(self, impressions: Sequence[Impression]) -> int:
        """Adds impressions as `add_events` adds events."""
        rows = [
            (_key(each.impression_id), _key(each.request_id), _key(each.user_id), json.dumps(each.item_ids), each.time)
            for each in impressions
        ]
        with self._transaction() as connection:
            return connection.executemany(
                "INSERT INTO impressions (impression_id, request_id, user_id, item_ids, time) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT (impression_id) DO NOTHING",
                rows,
            ).rowcount

    def items_since(self, seq: int) -> list[ItemChange]:
        """The latest state of every item whose last change has a number above `seq`, in order of change."""
        with self._reads("SELECT * FROM items WHERE seq > ? ORDER BY seq", seq) as rows:
            return [
                ItemChange(number, _text(item), bool(deleted), json.loads(features), json.loads(attributes))
                for number, item, deleted, features, attributes in rows
            ]

    def events_since(self, seq: int, most: int = -1) -> list[tuple[int, UserEvent]]:
        """Every event with a number above `seq`, or the first `most`, in order of adding; items have own numbers."""
        with self._reads("SELECT * FROM events WHERE seq > ? ORDER BY seq LIMIT ?", seq, most) as rows:
            return [
                (number, UserEvent(_text(event), _text(user), _text(item), at))
                for number, event, user, item, at in rows
            ]

    def impressions_since(self, seq: int, most: int = -1) -> list[tuple[int, Impression]]:
        """Every impression with a number above `seq`, or the first `most`; impressions have their own numbers."""
        with self._reads("SELECT * FROM impressions WHERE seq > ? ORDER BY seq LIMIT ?", seq, most) as rows:
            return [
                (number, Impression(_text(impression), _text(request), _text(user), tuple(json.loads(items)), at))
                for number, impression, request, user, items, at in rows
            ]

    def counts(self) -> tuple[int, ...]:
        """How many changed items, events and impressions it holds."""
        tables = ("items", "events", "impressions")
        with self._reads(" UNION ALL ".join(f"SELECT count(*) FROM {table}" for table in tables)) as rows:
            return tuple(count for (count,) in rows)

    def version(self) -> int:
        """A number that grows with every change that answers depend on, by any process; the same in all of them."""
        statement = "SELECT coalesce(sum(seq), 0) FROM sqlite_sequence WHERE seq > ? AND name != 'impressions'"
        with self._reads(statement, 0) as ((total,),):
            return int(total)

    def forgotten(self) -> int:
        """How often a user was forgotten: events that a reader holds may be gone once this has grown."""
        statement = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE seq > ? AND name = 'forgotten'"
        with self._reads(statement, 0) as ((number,),):
            return int(number)

    def forget(self, user_id: str, *, dry_run: bool = False) -> dict[str, int]:
        """Deletes all events and impressions of a user, also from the file's free space and its write-ahead log.

        Args:
            user_id: the user.
            dry_run: only count them.

        Returns:
            How many there were.

        Raises:
            JournalError: nothing was deleted, or the write-ahead log still holds it: call it again.
        """
        key = (_key(user_id),)
        with self._transaction() as connection:
            found = {
                table: int(connection.execute(f"SELECT count(*) FROM {table} WHERE user_id = ?", key).fetchone()[0])
                for table in ("events", "impressions")
            }
            if any(found.values()) and not dry_run:
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

    def close(self) -> None:
        """Closes the file; a second call does nothing."""
        with self._writing, self._reading:
            self._reader.close()
            self._writer.close()
            self._lock.close()

    def _change(self, rows: Sequence[tuple[bytes, int, str, str]]) -> int:
        with self._transaction() as connection:
            # REPLACE removes the item's old row, so that the new one gets the next number.
            connection.executemany(
                "INSERT OR REPLACE INTO items (item_id, deleted, features, attributes) VALUES (?, ?, ?, ?)", rows
            )
            ((last,),) = connection.execute(LAST_ITEM).fetchall()
        return int(last)

    @contextmanager
    def _reads(self, statement: str, *values: int) -> Iterator[list[Any]]:
        with telling_errors(self.path):
            with self._reading:
                rows = self._reader.execute(statement, values).fetchall()
            yield rows

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Commits at the end, or rolls back on any exception."""
        with telling_errors(self.path), self._writing, locked(self._lock):
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self._writer.execute("COMMIT")
            except BaseException:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise


def _key(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _text(key: bytes) -> str:
    return key.decode("utf-8", "surrogatepass")
