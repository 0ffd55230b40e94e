"""Shows the result of `towers demo`: one user's recommendations, the verdict, and where the outputs are."""

import json
from collections.abc import Sequence
from itertools import chain, repeat
from pathlib import Path
from shlex import quote
from typing import Any

from rich.markup import escape
from rich.table import Column, Table

from pipelines.cli.demo_service import DemoAnswer
from pipelines.console import next_step, results, towers
from pipelines.service.query import title_column
from serving.bundle.reader import Bundle

LONGEST_BODY = 40
SERVICE, PAGE = "http://127.0.0.1:8000", "/window"  # where `towers serve` listens


def show(
    bundle: Bundle,
    later: set[str],
    user: str,
    answers: Sequence[DemoAnswer],
    report: dict[str, Any],
    out: Path,
    *,
    seconds: float,
) -> None:
    """Prints everything.

    Args:
        bundle: the opened bundle.
        later: ids of the items that the user took after the training period.
        user: the queried user; `answers[0]` is the service's answer for them.
        answers: all requests and answers.
        report: the content of `report.json`.
        out: the directory of the demo.
        seconds: duration of the demo.
    """
    console = results()
    console.print()
    console.print(_user_table(bundle, later, user, answers[0]))
    console.print()
    console.print(_asked_table(answers, _titles(bundle)))
    if "verdict" in report:
        console.print(escape(report["verdict"]["text"]), highlight=False, soft_wrap=True)
    console.print()
    for what, where in (
        ("report", (out / "report" / "report.html").absolute().as_uri()),
        ("bundle", out / "bundle"),
        ("start the service again", f"{towers()} serve --bundle {quote(str(out / 'bundle'))} --window"),
        ("its page", f"{SERVICE}{PAGE}"),
        ("ask it", f"{towers()} query --url {SERVICE} --user {quote(user)}"),
    ):
        # Not wrapped, so these lines can be copied.
        console.print(f"[bold]{what}[/bold]: {escape(str(where))}", soft_wrap=True, highlight=False)
    console.print(f"done in {seconds:.0f} s", highlight=False)
    next_step("serve --bundle", out / "bundle", "--window")


def _titles(bundle: Bundle) -> dict[str, str]:
    """Maps item id to title, escaped for rich; empty if the bundle has no title column."""
    titles = title_column(bundle.item_attributes)
    if titles is None:
        return {}
    pairs = zip(bundle.item_ids, titles.to_list(), strict=True)
    return {item: escape(title) for item, title in pairs if title is not None}


def _user_table(bundle: Bundle, later: set[str], user: str, asked: DemoAnswer) -> Table:
    titles = _titles(bundle)
    items = asked.answer["items"]
    seen = bundle.item_ids.gather(bundle.seen(bundle.query_rows[user])).to_list()[::-1]
    hits = len(later & {item["id"] for item in items})
    shown = Table(
        Column("their history, newest first", style="dim"),
        "recalled",
        Column("score", justify="right"),
        Column("✓", style="green"),
        title=f"User {user}, with median recall@{len(items)} among the test users",
        caption=f"✓ = taken in the test period, which the model never saw: {hits} of {len(later)}",
        title_style="bold",
    )
    for new, old in zip(items, chain(seen, repeat("")), strict=False):
        mark = "✓" if new["id"] in later else ""
        shown.add_row(titles.get(old, old), titles.get(new["id"], new["id"]), f"{new['score']:.3f}", mark)
    return shown


def _asked_table(answers: Sequence[DemoAnswer], titles: dict[str, str]) -> Table:
    ms = Column("ms", justify="right")
    shown = Table("asked by", "source", "first item", ms, title="POST /recall", title_style="bold")
    for asked in answers:
        body = json.dumps({key: value for key, value in asked.body.items() if key != "k"}, ensure_ascii=False)
        body = body if len(body) <= LONGEST_BODY else body[: LONGEST_BODY - 1] + "…"
        first = asked.answer["items"][0]["id"] if asked.answer["items"] else ""
        who = f"{asked.who}\n[dim]{escape(body)}[/dim]"
        shown.add_row(who, asked.answer["source"], titles.get(first, first), f"{asked.milliseconds:.1f}")
    return shown
