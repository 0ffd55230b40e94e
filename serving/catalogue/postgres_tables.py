"""The journal in a PostgreSQL database: its connection and tables.

All tables lie in the schema `towers`. This file imports psycopg, the extra `postgres`.
"""

import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from serving.catalogue.journal import JournalError, Numbers
from serving.catalogue.journal_file import higher
from serving.files.database_url import DatabaseUrl
from serving.telemetry.logs import SERVICE

log = logging.getLogger(SERVICE)

SCHEMA_VERSION = 1
# One row of `journal` holds the last number of each kind. Each write locks it first, so that writes come one after the
# other and a number is visible only when every lower one is: a sequence would be faster, and a reader could miss rows.
TABLES = """
CREATE SCHEMA IF NOT EXISTS towers;
CREATE TABLE towers.journal (identity text NOT NULL, schema_version integer NOT NULL, items bigint NOT NULL,
    events bigint NOT NULL, impressions bigint NOT NULL, forgotten bigint NOT NULL);
CREATE UNIQUE INDEX one_journal ON towers.journal ((true));
CREATE TABLE towers.items (seq bigint PRIMARY KEY, item_id bytea NOT NULL UNIQUE, deleted integer NOT NULL,
    features text NOT NULL, attributes text NOT NULL);
CREATE TABLE towers.events (seq bigint PRIMARY KEY, event_id bytea NOT NULL UNIQUE, user_id bytea NOT NULL,
    item_id bytea NOT NULL, time bigint NOT NULL);
CREATE TABLE towers.impressions (seq bigint PRIMARY KEY, impression_id bytea NOT NULL UNIQUE,
    request_id bytea NOT NULL, user_id bytea NOT NULL, item_ids text NOT NULL, time bigint NOT NULL);
"""
# Added later, also to a journal that lacks it: an earlier release ignores it.
LATER = "CREATE TABLE towers.event_types (seq bigint PRIMARY KEY, type bytea NOT NULL)"
# Where the journal was when it was last looked at, and where it is. A standby that is promoted, and a database restored
# to an earlier moment, begin another timeline; what pg_dump or a template made has another oid. Nothing of a standby.
PLACES = """SELECT to_jsonb(journal) ->> 'place', concat_ws(' ', system_identifier,
    left(pg_walfile_name(pg_current_wal_insert_lsn()), 8), pg_database.oid, 'towers.journal'::regclass::oid)
FROM towers.journal, pg_control_system(), pg_database WHERE datname = current_database() AND NOT pg_is_in_recovery()"""
# A column of this table, not a table: who may write the journal, or read it, may do so with this, too.
ADD_PLACE = "ALTER TABLE towers.journal ADD COLUMN IF NOT EXISTS place text"
# Several services may start at once. The number is any that no other program of the database uses: "twr1".
CREATION = "SELECT pg_advisory_xact_lock(x'74777231'::bigint)"
# A database that has gone must be told within seconds, not after the minutes of the system's defaults. Of one that
# stands still nothing here tells: see `serving.catalogue.postgres_link`.
LIMITS: dict[str, Any] = {
    "connect_timeout": "3",
    "keepalives_idle": "3",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "9000",
    "application_name": "towers",
    # A database of encoding SQL_ASCII says nothing of its texts, and they would be read as bytes.
    "client_encoding": "UTF8",
    # Of several hosts the one that takes writes.
    "target_session_attrs": "read-write",
}
# A commit is acknowledged when it is on the disk, also where the server or the database says otherwise.
DURABLE = "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
# A service that hangs, or loses its network, in the middle of a write holds the lock of all others' writes: the server
# ends its connection while they still wait.
PATIENCE = "SET lock_timeout = '10s'; SET idle_in_transaction_session_timeout = '5s'"


def connect(url: DatabaseUrl, **place: Any) -> psycopg.Connection:
    """Opens a connection that commits each statement; any thread may use it. `place` replaces options of the URL."""
    try:
        given = conninfo_to_dict(url.secret)
    except psycopg.Error:
        # libpq's message could quote a part of the password.
        raise JournalError(f"{url}: not a URL that libpq can read") from None
    limits = {name: value for name, value in LIMITS.items() if name not in given}
    return psycopg.connect(url.secret, autocommit=True, **limits, **place)


def prepare(connection: psycopg.Connection) -> None:
    """Sets what every statement of a connection relies on."""
    # Any stricter one, which a database can have as its default, would refuse a write that waited for another.
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    # A plan that is kept does not know how few rows are new, and can read the whole table for them.
    connection.prepare_threshold = None
    connection.execute(DURABLE)
    connection.execute(PATIENCE)


def create(connection: psycopg.Connection, url: DatabaseUrl, *, must_exist: bool) -> str:
    """Creates the tables if there are none.

    Args:
        connection: to the database.
        url: how errors name it.
        must_exist: create nothing.

    Returns:
        The identity of the journal.

    Raises:
        JournalError: there is none but must be, or it is of another version.
    """
    with connection.transaction():
        connection.execute(CREATION)
        new = connection.execute("SELECT to_regclass('towers.journal')").fetchall() == [(None,)]
        if new:
            if must_exist:
                raise JournalError(f"{url}: no journal in it; a service that runs with this --state makes it")
            connection.execute(TABLES)
            connection.execute(
                "INSERT INTO towers.journal VALUES (%s, %s, 0, 0, 0, 0)", (secrets.token_hex(16), SCHEMA_VERSION)
            )
        if connection.execute("SELECT to_regclass('towers.event_types')").fetchall() == [(None,)]:
            connection.execute(LATER)
        _follow_place(connection, url)
        ((identity, version),) = connection.execute("SELECT identity, schema_version FROM towers.journal").fetchall()
    if version != SCHEMA_VERSION:
        raise JournalError(f"{url}: a journal of version {version}; this program reads {SCHEMA_VERSION}")
    if new:
        log.info("%s: a new journal, without any live change", url)
    return str(identity)


def _follow_place(connection: psycopg.Connection, url: DatabaseUrl) -> None:
    """Goes on with higher numbers in another place, which may lack the last changes of the one before.

    Services that run, and folded bundles, have seen their numbers, and would never read other changes under them.
    """
    try:
        with connection.transaction():
            for known, now in connection.execute(PLACES).fetchall():
                if known is None:
                    connection.execute(ADD_PLACE)
                    connection.execute("UPDATE towers.journal SET place = %s", (now,))
                elif known != now:
                    numbers = ", ".join(f"{name} = {higher(name)}" for name in Numbers._fields)
                    connection.execute(f"UPDATE towers.journal SET place = %s, {numbers}", (now,))
    except (psycopg.ProgrammingError, psycopg.InternalError, psycopg.NotSupportedError) as error:
        # A user who may only read, or a server that is not PostgreSQL itself.
        reason = error.diag.message_primary
        _warn(f"{url}: after a promotion or a restore changes may get the numbers of lost ones: {reason}")


@cache
def _warn(text: str) -> None:
    """Once: each connection finds the same."""
    log.warning(text)


@contextmanager
def telling_errors(url: DatabaseUrl) -> Iterator[None]:
    """Turns errors of the database or the network, and unreadable rows, into a `JournalError` of one line."""
    try:
        yield
    except (psycopg.Error, OSError, ValueError) as error:
        raise JournalError(f"{url}: {' '.join(str(error).split())}") from error
