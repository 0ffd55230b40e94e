"""`towers demo`: runs every step on a synthetic world and queries the resulting service over HTTP.

Rewrites `world`, `dataset`, `run`, `bundle` and `report` in its directory, if an earlier demo wrote them, and prints
tables. Each step is the command of that name; `pipelines.cli.demo_service` sends the requests,
`pipelines.cli.demo_view` prints the tables.
"""

import time
from pathlib import Path
from typing import Any

import polars as pl

from pipelines.bundles import build_index, export
from pipelines.cli import demo_view
from pipelines.cli.demo_service import DemoAnswer, ask, running
from pipelines.console import phases, say
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import heldout_users
from pipelines.evaluation import report
from pipelines.ingest import prepare
from pipelines.ingest.synthetic import synth
from pipelines.training import check, train
from serving.bundle.reader import Bundle
from serving.files.local_path import refuse_url
from serving.files.staging import OutputExistsError
from towers.config.recipe import load_config

# Large enough for a ScaNN index and a measured recall, small enough for a few minutes on two cores.
USERS, ITEMS, EVENTS, EPOCHS = 4_000, 21_000, 300_000, 3
# Popularity changes as in a shop: what is popular now matters more than what was popular overall.
FASHION = 1.0
SHOWN = 20  # as in the verdict
OUTPUTS = ("world", "dataset", "run", "bundle", "report")
LOG = "service.log"
MARK = ".towers-demo"  # made first: a directory that holds it is a demo's
HISTORY_LENGTH = 8


def run(
    out: Path, *, users: int = USERS, items: int = ITEMS, events: int = EVENTS, epochs: int = EPOCHS
) -> list[DemoAnswer]:
    """Runs every step and shows the result.

    Args:
        out: the directory to work in; an earlier demo's output is replaced, other files are kept.
        users: number of users of the synthetic world.
        items: number of its items.
        events: approximate number of its events.
        epochs: maximum number of training epochs.

    Returns:
        The requests to the service and its answers.

    Raises:
        OutputExistsError: one of its outputs is there, and no demo wrote it.
    """
    started = time.monotonic()
    refuse_url(out)
    outputs = world, dataset, trained, bundle, judged = [out / name for name in OUTPUTS]
    for each in (*outputs, out / LOG):
        if each.exists() and not (out / MARK).exists():
            raise OutputExistsError(f"{each} already exists, and no demo wrote it; name another --out, or remove it")
    out.mkdir(parents=True, exist_ok=True)
    (out / MARK).touch()
    config = load_config("default", [f"train.epochs={epochs}"])
    phases("demo", "synth", "prepare", "check", "train", "export", "index", "report", "serve")
    _step(1, f"synth: {users:,} users, {items:,} items that come into fashion and go, {events:,} events, truth known")
    synth.run(world, users=users, items=items, events=events, seed=0, fashion=FASHION, overwrite=True)
    _step(2, "prepare: events, items and users to a data set")
    prepare.run(config.data, world, dataset, overwrite=True)
    _step(3, "check: recipe and data set fit, and nothing of the future leaks into a history")
    check.run(config, dataset)
    _step(4, "train: two towers")
    train.run(config, dataset, trained, resume=False, overwrite=True)
    _step(5, "export: towers and vectors to a bundle")
    export.run(trained, bundle, overwrite=True)
    _step(6, "index: built, and tuned until its measured recall reaches the target")
    build_index.run(bundle)
    _step(7, "report: recall on events that the model has not seen")
    content = report.run(bundle, dataset, judged, overwrite=True)
    _step(8, "serve: the service, asked over HTTP")
    opened, data = Bundle.open(bundle, verify=False), Dataset.open(dataset)
    user = _choose_user(opened, data, judged / "per_user.parquet")
    with running(bundle, out / LOG) as url:
        answers = ask(url, _questions(opened, data, user))
    demo_view.show(opened, _later(data, user), user, answers, content, out, seconds=time.monotonic() - started)
    return answers


def _step(number: int, what: str) -> None:
    say(f"[{number}/8] {what}")


def _choose_user(bundle: Bundle, data: Dataset, per_user: Path) -> str:
    """Returns a test user with median recall among those in the bundle: of several, the one whose history fits best."""
    names = data.users["user_id"].gather(heldout_users(data, "test")).to_list()
    recalls = pl.read_parquet(per_user, glob=False)[f"exact_recall@{SHOWN}"].to_list()
    rows = bundle.query_rows
    known = sorted((recall, name) for recall, name in zip(recalls, names, strict=True) if name in rows)
    median = known[len(known) // 2][0]
    alike: list[str] = [name for recall, name in known if recall == median]
    return min(alike, key=lambda name: abs(len(bundle.seen(rows[name])) - HISTORY_LENGTH))


def _questions(bundle: Bundle, data: Dataset, user: str) -> list[tuple[str, dict[str, Any]]]:
    """Returns one request of each kind: known user, features, history, unknown user."""
    row = data.users["user_id"].to_list().index(user)
    known = data.users.row(row, named=True)
    features = {
        spec.name: known[spec.name]
        for spec in bundle.manifest.query_features
        if spec.name in known and spec.kind != "id" and known[spec.name] is not None
    }
    history = bundle.item_ids.gather(bundle.seen(bundle.query_rows[user])).to_list()
    return [
        ("a known user", {"user_id": user, "k": SHOWN}),
        ("a new user with these features", {"features": features, "k": SHOWN}),
        ("a new user with this history", {"history": history, "k": SHOWN}),
        ("an unknown user", {"user_id": "nobody-knows-me", "k": SHOWN}),
    ]


def _later(data: Dataset, user: str) -> set[str]:
    """Returns the ids of the items that the user took in the test period."""
    number = data.users["user_id"].to_list().index(user)
    return set(data.items["item_id"].gather(data.events("test").between(number, number + 1).item).to_list())
