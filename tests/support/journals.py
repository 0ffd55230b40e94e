"""Places for a journal, one kind for each database: the tests of the contract run on all of them."""

import shutil
import tempfile
from pathlib import Path
from typing import Protocol

from serving.catalogue.journal import Journal
from serving.catalogue.sqlite_journal import SqliteJournal


class JournalPlace(Protocol):
    """A place without a journal at first."""

    def open(self) -> Journal: ...

    def remove(self) -> None: ...


class SqlitePlace:
    """A directory."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp())

    def open(self) -> Journal:
        return SqliteJournal.open(self.directory)

    def remove(self) -> None:
        shutil.rmtree(self.directory)
