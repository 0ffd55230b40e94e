"""Opens the journal of a directory or of a database."""

from pathlib import Path

from serving.catalogue.journal import Journal, JournalError
from serving.catalogue.sqlite_journal import SqliteJournal
from serving.files.database_url import DatabaseUrl


def journal_at(state: Path | DatabaseUrl, *, must_exist: bool = False) -> Journal:
    """Opens the journal; creates it if missing.

    Args:
        state: a directory on a local disk, or a PostgreSQL database.
        must_exist: refuse a database without a journal.

    Raises:
        JournalError: there is none, it is of another version, or cannot be written.
    """
    if isinstance(state, Path):
        return SqliteJournal.open(state)
    try:
        # Only here: the extra `postgres` is for those who have such a URL.
        from serving.catalogue.postgres_journal import PostgresJournal
    except ImportError as error:
        install = "pip install 'towers-recall[postgres]'"
        raise JournalError(f"{state}: PostgreSQL needs the extra 'postgres': {install} ({error})") from None
    return PostgresJournal(state, must_exist=must_exist)
