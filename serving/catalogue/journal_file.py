"""The SQLite file of a journal on disk: its connection, schema and the lock around its creation."""

import fcntl
import logging
import secrets
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO

from serving.catalogue.journal import JournalError
from serving.files.staging import flush
from serving.telemetry.logs import SERVICE

log = logging.getLogger(SERVICE)

FILE = "journal.sqlite"
LOCK = "journal.lock"
# "twr1" tells this file from other SQLite databases; the version is that of the tables below.
APPLICATION = 0x74777231
SCHEMA_VERSION = 1
# AUTOINCREMENT: a number is never reused, not even after its row was replaced. Ids are bytes: SQLite's
# functions end a text at a NUL, and text cannot hold a lone surrogate.
SCHEMA = (
    "CREATE TABLE journal (identity TEXT NOT NULL)",
    "CREATE TABLE items (seq INTEGER PRIMARY KEY AUTOINCREMENT, item_id BLOB NOT NULL UNIQUE,"
    " deleted INTEGER NOT NULL, features TEXT NOT NULL, attributes TEXT NOT NULL)",
    "CREATE TABLE events (seq INTEGER PRIMARY KEY AUTOINCREMENT, event_id BLOB NOT NULL UNIQUE,"
    " user_id BLOB NOT NULL, item_id BLOB NOT NULL, time INTEGER NOT NULL)",
    f"PRAGMA application_id = {APPLICATION}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)
# Added later, also to a journal that lacks them: an earlier release reads a journal that has them, and ignores them.
LATER = (
    "CREATE TABLE IF NOT EXISTS impressions (seq INTEGER PRIMARY KEY AUTOINCREMENT, impression_id BLOB NOT NULL UNIQUE,"
    " request_id BLOB NOT NULL, user_id BLOB NOT NULL, item_ids TEXT NOT NULL, time INTEGER NOT NULL)",
    # The types of events, by their numbers: of those that came with one.
    "CREATE TABLE IF NOT EXISTS event_types (seq INTEGER PRIMARY KEY, type BLOB NOT NULL)",
    # Always empty: its last number counts the times that a user was forgotten.
    "CREATE TABLE IF NOT EXISTS forgotten (seq INTEGER PRIMARY KEY AUTOINCREMENT)",
)
# After a restore numbers begin at the clock's nanoseconds / 2^9: no journal gets a change in each 512 ns, so they are
# above those of every earlier restore of the same backup. Until 2116 they are below 2^53: every JSON reader holds them.
CLOCK_BITS = 9
# If the clock is behind the backup: more than any journal gets between a backup and the loss of the original.
RESTORED_STEP = 2**32
LONGEST_WAIT_S = 10.0
POLL_S = 0.001


def connect(path: Path) -> sqlite3.Connection:
    """Opens the file; any thread may use the connection."""
    connection = sqlite3.connect(path, LONGEST_WAIT_S, isolation_level=None, check_same_thread=False)
    try:
        # These are per connection, not per file. The second makes macOS flush the disk's own cache, too.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA fullfsync = ON")
        # What is deleted is overwritten: a forgotten user must not remain in free pages. Not every SQLite's default.
        connection.execute("PRAGMA secure_delete = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def create(path: Path) -> None:
    """Creates the tables if the file is new or empty; refuses anything but a journal. The caller holds the lock."""
    new = not path.exists()
    with closing(connect(path)) as connection:
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
        connection.execute("BEGIN IMMEDIATE")
        if tables == 0:
            for statement in SCHEMA:
                connection.execute(statement)
            connection.execute("INSERT INTO journal VALUES (?)", (secrets.token_hex(16),))
        for statement in LATER:
            connection.execute(statement)
        connection.execute("COMMIT")
    if tables == 0:
        log.info("%s: a new journal, without any live change", path)  # perhaps --state is mistyped
    if new:
        # The directory entries must be as durable as the contents.
        flush(path.parent)
        flush(path.parent.absolute().parent)


def back_up(path: Path, out: Path) -> None:
    """Copies the journal as of one moment, with every earlier commit of any process, while others go on writing.

    Raises:
        JournalError: the journal cannot be read, or the copy is damaged.
    """
    with telling_errors(path):
        # Read-only: closing a connection that may write can start a checkpoint (see `locked`).
        with (
            closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", LONGEST_WAIT_S, uri=True)) as source,
            closing(sqlite3.connect(out)) as copy,
        ):
            source.backup(copy)
            # One file, whatever is copied next: its log would be a second.
            copy.execute("PRAGMA journal_mode = DELETE")
            ((found,),) = copy.execute("PRAGMA quick_check(1)").fetchall()
        if found != "ok":
            raise JournalError(f"{path}: damaged: {found}")


def renumber(path: Path) -> None:
    """Makes a restored journal go on with higher numbers than its lost original, and than any earlier restore, had.

    A folded bundle names the last number that it holds; a new change below that would never be applied to it.
    """
    with telling_errors(path), closing(connect(path)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        for table in ("items", "events", "impressions", "forgotten"):
            connection.execute(
                "INSERT INTO sqlite_sequence SELECT ?, 0 WHERE ? NOT IN (SELECT name FROM sqlite_sequence)",
                (table, table),
            )
        connection.execute(f"UPDATE sqlite_sequence SET seq = {higher('seq')}")
        connection.execute("COMMIT")


def higher(last: str) -> str:
    """SQL of a number above those of lost changes, from the column of the last one that is known."""
    now = time.time_ns() >> CLOCK_BITS
    return f"CASE WHEN {last} < {now} THEN {now} ELSE {last} + {RESTORED_STEP} END"


@contextmanager
def locked(lock: IO[bytes]) -> Iterator[None]:
    """Holds the lock file exclusively. A killed process releases it.

    SQLite's own lock lets a checkpoint run beside a commit of another process; up to version 3.51.2 that can, very
    rarely, corrupt the file (https://sqlite.org/wal.html#walresetbug). Here every commit runs alone, with the
    checkpoint that may end it. Two processes that create the same journal at once need the lock, too.
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
def telling_errors(path: Path) -> Iterator[None]:
    """Turns errors of SQLite or the system, and unreadable rows, into a `JournalError`."""
    try:
        yield
    except (sqlite3.Error, OSError, ValueError) as error:
        # SQLite's messages are vague: "disk I/O error" has many causes, its error name only one.
        name = getattr(error, "sqlite_errorname", None)
        # This one is that of a full disk, if a file beside the database cannot grow.
        told = "database or disk is full" if name == "SQLITE_IOERR_SHMSIZE" else str(error)
        reason = getattr(error, "strerror", None) or told
        raise JournalError(f"{path}: {reason}" + (f" ({name})" if name else "")) from error
