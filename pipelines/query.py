"""`towers query`: what one user gets, as a table.

In: a user id, and a bundle (asked in this process) or the address of a service. Out: id, title and score on stdout.
"""

import os
from pathlib import Path

import httpx
import polars as pl
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipelines.errors import DataError
from pipelines.progress import say
from serving.bundle import Bundle
from serving.opening import open_recaller
from serving.query import RecallQuery

TITLES = ("title", "name", "movie_title", "item_title")
TIMEOUT_S = 30.0


def run(user: str, *, bundle: Path | None = None, url: str | None = None, k: int = 10) -> None:
    """Prints the items recalled for a user; an unknown one gets the popular items, and a line that says so.

    Args:
        user: the user's id.
        bundle: ask this bundle; with `url` too, it only gives the titles.
        url: ask this service, with the key in TOWERS_API_KEY where there is one.
        k: how many items.

    Raises:
        DataError: neither or nothing usable is given, or the service does not answer.
        BundleError: the bundle is not whole.
    """
    if k < 1:
        raise DataError(f"--k must be at least 1, got {k}")
    opened: Bundle | None = None
    if url is not None:
        items, source = _ask(url, user, k)
        opened = None if bundle is None else Bundle.open(bundle)
    elif bundle is not None:
        recaller = open_recaller(bundle, tower=False)
        opened = recaller.bundle
        recalled = recaller.recall(RecallQuery(user_id=user, k=k))
        items, source = list(zip(recalled.ids, recalled.scores.tolist(), strict=True)), recalled.source
    else:
        raise DataError("give --bundle BUNDLE or --url URL")
    if source == "popular":
        say(f"this model has no vector of user {user!r}: these are the most popular items, with their event counts")
    titles = None if opened is None else title_column(opened.item_attributes)
    console = Console()
    console.print(Text(f"recalled for user {user} (source: {source})"))
    table = Table()
    table.add_column("#", justify="right")
    table.add_column("id")
    if titles is not None:
        table.add_column("title")
    table.add_column("score", justify="right")
    for rank, (item_id, score) in enumerate(items, start=1):
        row = None if opened is None else opened.item_rows.get(item_id)
        title = [] if titles is None else [Text("" if row is None else titles[row] or "")]
        table.add_row(str(rank), Text(item_id), *title, f"{score:.4f}")
    console.print(table)


def title_column(attributes: pl.DataFrame) -> pl.Series | None:
    """The column that names an item for a person, as strings, or None where there is none."""
    name = next((each for each in TITLES if each in attributes.columns), None)
    if name is None:
        return None
    titles = attributes[name]
    # RecBole keeps a title as the list of its words.
    return titles.list.join(" ") if titles.dtype == pl.List else titles.cast(pl.String)


def _ask(url: str, user: str, k: int) -> tuple[list[tuple[str, float]], str]:
    address = f"{url.rstrip('/').removesuffix('/recall')}/recall"
    try:
        headers = {"authorization": f"Bearer {key}"} if (key := os.environ.get("TOWERS_API_KEY")) else {}
        response = httpx.post(address, json={"user_id": user, "k": k}, headers=headers, timeout=TIMEOUT_S)
        body = response.json()
        if response.is_success:
            return [(item["id"], item["score"]) for item in body["items"]], body["source"]
        reason = body["error"]["message"]
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise DataError(f"{address}: no answer: {error}") from None
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{address}: the answer (status {response.status_code}) is not that of this service") from None
    raise DataError(f"{address}: {reason}")
