"""`towers state`: backs up the state directory of a service, which may go on running, and restores it; takes the live
changes of a service from a directory to a database, or back.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from pipelines.console import Advance, amount, phase, phases, progress, say
from pipelines.errors import DataError
from serving.catalogue.journal import Journal, JournalError, Numbers
from serving.catalogue.journal_file import FILE, LOCK, back_up, renumber
from serving.catalogue.journal_place import journal_at
from serving.catalogue.journal_rows import event_blocks, impression_block, item_block
from serving.catalogue.sqlite_journal import SqliteJournal
from serving.files.database_url import DatabaseUrl
from serving.files.staging import OutputExistsError, staged

COPY, READ = "copy", "read"
BLOCK_ROWS = 65_536

Row = TypeVar("Row")


def backup(state: Path | DatabaseUrl, out: Path, *, overwrite: bool = False) -> None:
    """Writes a copy with every change acknowledged before the call.

    Args:
        state: the service's state directory.
        out: the directory to write.
        overwrite: replace an earlier backup.

    Raises:
        DataError: there is no journal, it is damaged, or it is in a database.
        OutputExistsError: `out` exists, or is a state directory.
    """
    if not isinstance(state, Path):
        raise DataError(f"--state {state}: a database is backed up by its own means, such as pg_dump")
    if (out / LOCK).exists():
        told = f"is a state directory, or a backup that a command has opened as one ({LOCK} is in it)"
        raise OutputExistsError(f"{out} {told}; name another --out, or remove that backup first")
    # The copy stays one closed file: opening it as a journal would add a log and a lock.
    with open_journal(state), staged(out, overwrite=overwrite, marker=FILE) as directory:
        phases("state backup", COPY)
        directory.mkdir()
        with phase(COPY):
            back_up(state / FILE, directory / FILE)
    say(f"{out}: {(out / FILE).stat().st_size:,} bytes, with every change acknowledged before this command began")


def restore(saved: Path, state: Path) -> None:
    """Makes a state directory from a backup.

    Args:
        saved: what `backup` wrote.
        state: the state directory, which must not exist yet: a service may be writing to an existing one.

    Raises:
        DataError: there is no backup, or it is damaged.
        OutputExistsError: `state` exists.
    """
    _refuse_none("--backup", saved)
    if state.exists():
        raise OutputExistsError(
            f"--state {state}: exists; stop the service and move it aside, or name another directory"
        )
    with staged(state, marker=FILE) as directory:
        phases("state restore", COPY, READ)
        directory.mkdir()
        with telling("--backup", saved):
            with phase(COPY):
                back_up(saved / FILE, directory / FILE)
                SqliteJournal.open(directory).close()
                renumber(directory / FILE)
            with closing(SqliteJournal.open(directory)) as journal:
                try:
                    _read_all(journal)
                except JournalError as error:  # of the copy, which nobody will see
                    raise JournalError(str(error).replace(str(directory), str(saved))) from None
                told = _rows(journal)
    say(f"{state}: {told}")


def move(state: Path | DatabaseUrl, to: Path | DatabaseUrl) -> None:
    """Copies a journal with its identity and numbers, so that folded bundles still know what they hold of it.

    Args:
        state: where the changes are; it stays as it is. No service may write to it meanwhile.
        to: a directory that does not exist, or a database whose journal has never held anything.

    Raises:
        DataError: there is no journal, it changed meanwhile, or `to` has one; nothing was moved.
        OutputExistsError: the directory exists.
    """
    with open_journal(state) as source:
        phases("state move", COPY)
        if isinstance(to, Path):
            with staged(to, marker=FILE) as directory:
                directory.mkdir()
                _copy(source, state, directory)
        else:
            _copy(source, state, to)
        say(f"{to}: {_rows(source)}; {state} stays as it was")


def _copy(source: Journal, state: Path | DatabaseUrl, to: Path | DatabaseUrl) -> None:
    with telling("--to", to):
        target = journal_at(to)
        try:
            with progress(COPY, total=sum(source.counts()), unit="rows") as advance:
                numbers = source.numbers()
                target.load(source.identity, numbers, _blocks(source, state, numbers, advance))
        finally:
            target.close()


def _blocks(
    source: Journal, state: Path | DatabaseUrl, numbers: Numbers, advance: Advance
) -> Iterator[tuple[str, Sequence[tuple[Any, ...]]]]:
    """All rows; at the end an error if there are newer ones."""
    with telling("--state", state):
        items = source.items_since(0)
        yield item_block(items)
        advance(len(items))
        yield from chain.from_iterable(map(event_blocks, in_blocks(source.events_since, advance)))
        yield from map(impression_block, in_blocks(source.impressions_since, advance))
        if source.numbers() != numbers:
            raise DataError(f"--state {state}: it changed meanwhile, nothing was moved; stop the services that use it")


def _read_all(journal: Journal) -> None:
    """Reads each row as a service will."""
    with progress(READ, total=sum(journal.counts()), unit="rows") as advance:
        advance(len(journal.items_since(0)))
        for _ in in_blocks(journal.events_since, advance):
            pass
        for _ in in_blocks(journal.impressions_since, advance):
            pass


def _rows(journal: Journal) -> str:
    names = ("changed items", "events", "impressions")
    return ", ".join(amount(*each) for each in zip(journal.counts(), names, strict=True))


def in_blocks(since: Callable[[int, int], list[tuple[int, Row]]], advance: Advance) -> Iterator[list[tuple[int, Row]]]:
    """Yields all rows of a journal's table in blocks, in order, and then counts them; the last block is empty.

    Args:
        since: `Journal.events_since` or `Journal.impressions_since`.
        advance: called with the rows of each block.
    """
    last = 0
    while True:
        block = since(last, BLOCK_ROWS)
        yield block
        if not block:
            return
        advance(len(block))
        last = block[-1][0]


@contextmanager
def open_journal(state: Path | DatabaseUrl) -> Iterator[Journal]:
    """Opens the journal of a state directory or a database, which must have one.

    Raises:
        DataError: there is none, or it cannot be read.
    """
    if isinstance(state, Path):
        _refuse_none("--state", state)
    with telling("--state", state):
        journal = journal_at(state, must_exist=True)
        try:
            yield journal
        finally:
            journal.close()


def _refuse_none(option: str, directory: Path) -> None:
    if not (directory / FILE).is_file():
        raise DataError(f"{option} {directory}: no {FILE} in it; a service that runs with --state DIR writes it there")


@contextmanager
def telling(option: str, state: Path | DatabaseUrl) -> Iterator[None]:
    """Turns an error of a journal into a `DataError` that names the option and the directory or database."""
    try:
        yield
    except JournalError as error:
        # Of a database the error names all that there is to name.
        raise DataError(f"{option} {state}: {error}" if isinstance(state, Path) else f"{option} {error}") from None
