"""`towers query`: prints one user's items with id, title and score, from a bundle or a running service."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
from rich.table import Column, Table
from rich.text import Text

from pipelines.console import printable, results, say
from pipelines.errors import DataError
from pipelines.service.answer import Answer, ask
from serving.bundle.reader import Bundle
from serving.catalogue.item_columns import title_name
from serving.recall.loading import missing_index, open_recaller
from serving.recall.query import RecallQuery
from serving.settings import Settings

# Fits a readable table: the default limit of a service.
MOST: int = Settings.model_fields["max_k"].default


def run(user: str, *, bundle: Path | None = None, url: str | None = None, k: int = 10) -> None:
    """Prints the items recalled for a user; an unknown user gets the popular items and a line that says so.

    Args:
        user: the user's id.
        bundle: query this bundle in this process; with `url` it only provides the titles.
        url: query this service, with the key in TOWERS_API_KEY if set; it provides titles, too.
        k: number of items; from a bundle at most `MOST`, from a service what it allows.

    Raises:
        DataError: neither is given, k is out of range, or the service does not answer.
        BundleError: the bundle is damaged.
    """
    if k < 1:
        raise DataError(f"--k must be at least 1, got {k}")
    if url is not None:
        answer = ask(url, user, k, titled=bundle is None)
        if bundle is not None:
            answer = replace(answer, titles=_titles(Bundle.open(bundle), [item_id for item_id, _ in answer.items]))
    elif bundle is not None:
        if k > MOST:
            instead = f"towers recall --bundle {shlex.quote(str(bundle))} --k {k} --out FILE"
            raise DataError(
                f"--k must be at most {MOST}, got {k}; `{instead}` writes any number of items for every user"
            )
        answer = _asked_here(bundle, user, k)
    else:
        raise DataError("give --bundle BUNDLE or --url URL")
    if answer.source == "popular":
        say(f"this model has no vector of user {user!r}: these are the most popular items, with their counts")
    _show(user, answer)


def _asked_here(path: Path, user: str, k: int) -> Answer:
    recaller = open_recaller(path, tower=False)
    if warning := missing_index(recaller.bundle):
        say(f"warning: {warning}")
    recalled = recaller.recall(RecallQuery(user_id=user, k=k))
    items = list(zip(recalled.ids, recalled.scores.tolist(), strict=True))
    return Answer(items, recalled.source, _titles(recaller.bundle, recalled.ids))


def _titles(bundle: Bundle, item_ids: Sequence[str]) -> list[Any] | None:
    titles = title_column(bundle.item_attributes)
    if titles is None:
        return None
    rows = [bundle.item_rows.get(item_id) for item_id in item_ids]
    return [None if row is None else titles[row] for row in rows]


def _show(user: str, answer: Answer) -> None:
    console = results()
    console.print(Text(printable(f"recalled for user {user} (source: {answer.source})")))
    title = [] if answer.titles is None else ["title"]
    # Whole also on a narrow terminal: an id that ends in … is of no use.
    ids = Column("id", overflow="fold")
    table = Table(Column("#", justify="right"), ids, *title, Column("score", justify="right"))
    for place, (item_id, score) in enumerate(answer.items):
        words = [] if answer.titles is None else [Text(printable(_in_words(answer.titles[place])))]
        table.add_row(str(place + 1), Text(printable(item_id)), *words, f"{score:.4f}")
    console.print(table)


def title_column(attributes: pl.DataFrame) -> pl.Series | None:
    """Returns the column of readable item titles, as strings, or None if there is none."""
    name = title_name(attributes.columns)
    if name is None:
        return None
    titles = attributes[name]
    # RecBole stores a title as a list of words.
    return titles.list.join(" ") if titles.dtype == pl.List else titles.cast(pl.String)


def _in_words(title: Any) -> str:
    """Formats a JSON title: null becomes empty, and a list of words is joined."""
    if isinstance(title, list):
        return " ".join(map(str, title))
    return "" if title is None else str(title)
