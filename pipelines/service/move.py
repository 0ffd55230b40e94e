"""`towers state move`: takes the live changes of a service from a directory to a database, or back."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pipelines.console import Advance, amount, phases, progress, say
from pipelines.errors import DataError
from pipelines.service.state import in_blocks, open_journal, telling
from serving.catalogue.journal import Journal, Numbers
from serving.catalogue.journal_file import FILE
from serving.catalogue.journal_place import journal_at
from serving.catalogue.journal_rows import event_block, impression_block, item_block
from serving.files.database_url import DatabaseUrl
from serving.files.staging import staged

COPY = "copy"


def run(state: Path | DatabaseUrl, to: Path | DatabaseUrl) -> None:
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
        counts = source.counts()
    names = ("changed items", "events", "impressions")
    say(f"{to}: {', '.join(amount(*each) for each in zip(counts, names, strict=True))}; {state} stays as it was")


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
        yield from map(event_block, in_blocks(source.events_since, advance))
        yield from map(impression_block, in_blocks(source.impressions_since, advance))
        if source.numbers() != numbers:
            raise DataError(f"--state {state}: it changed meanwhile, nothing was moved; stop the services that use it")
