"""What impressions beside the sampled negatives change: a world of pages with a known answer, and MovieLens-100k.

In: the folder of the data. Out: benchmarks/levers/results/impressions.json, its Markdown tables on stdout; code 1
    where the claim fails.

The world: an old system shows pages of ten items by its own idea of what is popular, and each user takes one of a page,
    by a softmax of their wishes over the ten. The answer that is wanted is the softmax over all items. The log can only
    be asked what is taken of the next pages, which the old system chooses again.
MovieLens: a rating of 1 or 2 is an impression that was not taken. No user rates a film twice, so no such film is a
    target; recall is also measured with them masked.
Claim: in the world, a weight of 100 or more finds more of what users want. What that costs is told, not claimed.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import polars as pl
import tensorflow as tf
from numpy.typing import NDArray

from benchmarks.harness.machine import verdict, write
from benchmarks.harness.stages import arguments
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.feature_lookup import build_tables
from pipelines.dataset.heldout import HeldOut, heldout
from pipelines.dataset.vocabulary import load_features
from pipelines.ingest import prepare
from pipelines.training.check import check_recipe
from pipelines.training.stage import Stage, run_stage
from towers.config.recipe import parse_config
from towers.evaluation.encode import embed_all, informed
from towers.model.two_tower import TwoTower

USERS, ITEMS, RANK, DEVIATION = 2_000, 2_000, 4, 1.5
VISITS, PAGE = 30, 10
OFFSET = 10.0  # of the Zipf laws of popularity and exposure
K, SEEDS = 20, 3
WEIGHTS = (1.0, 10.0, 100.0, 1_000.0)
CLAIMED = (100.0, 1_000.0)
IDS = {"features": {"query": {"user_id": {"kind": "id"}}, "candidate": {"item_id": {"kind": "id"}}}}
OF_WORLD = {"model": {"dimension": 16}, "optimizer": {"learning_rate": 0.01}, "epochs": 6, "number": PAGE - 1}
OF_FILMS = {"model": {"dimension": 64}, "optimizer": {"learning_rate": 0.005}, "epochs": 4, "number": 5}

Row = dict[str, Any]
Measure = Callable[[NDArray[np.float32]], dict[str, float]]


def main(data: Path, work: Path) -> int:
    wanted, world = pages(work / "world")
    films = films_of(data, work / "films")
    tables = {
        "world": trained(world, OF_WORLD, lambda scores: found(scores, world) | {"wanted": attained(scores, wanted)}),
        "ml-100k": trained(films, OF_FILMS, lambda scores: found(scores, films)),
    }
    least = tables["world"][0]["wanted"]
    claims = {
        f"world: impressions of weight {row['weight']:g} find more of what users want than none": row["wanted"] > least
        for row in tables["world"]
        if row["weight"] in CLAIMED
    }
    settings = {"users": USERS, "items": ITEMS, "visits": VISITS, "page": PAGE, "k": K, "seeds": SEEDS}
    result = {"claims": claims, "tables": tables, "settings": settings}
    print(write(__file__, "impressions", result))
    for name, rows in tables.items():
        print(f"\n{name}\n{markdown(rows)}")
    return verdict(result)


def pages(folder: Path) -> tuple[NDArray[np.float64], Dataset]:
    """P(item | user) over all items, rows and columns as in the data set; and the events of all pages."""
    rng = np.random.default_rng(1)
    taste = rng.standard_normal((USERS, RANK)) @ rng.standard_normal((RANK, ITEMS)) * DEVIATION / RANK**0.5
    appeal, exposure = (rng.permutation(-np.log(np.arange(ITEMS) + OFFSET)) for _ in range(2))
    wish, shown = taste + appeal, taste / 2 + exposure
    folder.mkdir()
    pl.concat(_visits(rng, wish, shown)).write_parquet(folder / "events.parquet")
    config = parse_config({"data": {"duplicates": "keep", "valid_share": 0.0}}).data
    prepare.run(config, folder / "events.parquet", folder / "dataset")
    data = Dataset.open(folder / "dataset")
    users, items = (frame.to_series(0).cast(pl.Int64).to_numpy() for frame in (data.users, data.items))
    power = np.exp(wish[np.ix_(users, items)])
    return power / power.sum(axis=1, keepdims=True), data


def _visits(rng: np.random.Generator, wish: NDArray[Any], shown: NDArray[Any]) -> Iterator[pl.DataFrame]:
    """One page for each user, and the item that the user takes of it."""
    users = np.arange(USERS)
    for visit in range(VISITS):
        page = np.argpartition(-(shown + rng.gumbel(size=shown.shape)), PAGE, axis=1)[:, :PAGE]
        taken = (np.take_along_axis(wish, page, axis=1) + rng.gumbel(size=page.shape)).argmax(axis=1)
        weight = np.zeros(page.shape, np.int64)
        weight[users, taken] = 1
        rows = {"user_id": np.repeat(users, PAGE), "item_id": page.ravel(), "weight": weight.ravel()}
        yield pl.DataFrame(rows | {"timestamp": np.repeat(1_700_000_000 + 86_400 * visit + users, PAGE)})


def films_of(data: Path, folder: Path) -> Dataset:
    """MovieLens-100k, split at random; a rating of at most 2 has weight 0."""
    frame = pl.read_csv(data / "ml-100k.inter", separator="\t")
    frame.columns = [column.partition(":")[0] for column in frame.columns]
    folder.mkdir()
    frame = frame.select("user_id", "item_id", "timestamp", weight=(pl.col("rating") > 2).cast(pl.Int64))
    frame.write_parquet(folder / "events.parquet")
    prepare.run(parse_config({"data": {"split": "random"}}).data, folder / "events.parquet", folder / "dataset")
    return Dataset.open(folder / "dataset")


def trained(data: Dataset, settings: Row, measure: Measure) -> list[Row]:
    """Without impressions, then with some of each weight; means over the seeds."""
    rows = []
    for weight in (None, *WEIGHTS):
        each = [measure(scores(data, settings, weight, seed)) for seed in range(SEEDS)]
        rows.append({"weight": weight} | {name: round(mean(one[name] for one in each), 4) for name in each[0]})
    return rows


def scores(data: Dataset, settings: Row, weight: float | None, seed: int) -> NDArray[np.float32]:
    """[users, items] of a model trained on the training split; what training never saw has the lowest."""
    loss: Row = {"name": "sampled_softmax"}
    loss |= {} if weight is None else {"impressions": settings["number"], "impression_weight": weight}
    train = {"epochs": settings["epochs"], "batch_size": 512, "seed": seed}
    recipe = IDS | {"loss": loss, "train": train} | {key: settings[key] for key in ("model", "optimizer")}
    config = check_recipe(parse_config(recipe), data)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        run_stage(config, data, Stage("run", ("train",), validated=False), run, Path(folder))
        learnt = load_features(run)
        model = TwoTower(learnt.query, learnt.candidate, config)
        tf.train.Checkpoint(model=model).read(str(run / "checkpoints" / "final")).assert_existing_objects_matched()
    tables = build_tables(model, data, None)
    users, items = (
        embed_all(tower.serve, table)
        for tower, table in ((model.query_tower, tables.users), (model.candidate_tower, tables.items))
    )
    made: NDArray[np.float32] = users @ items.T
    made[:, ~informed(model.candidate_tower, tables.items)] = -np.inf
    return made


def found(scores: NDArray[np.float32], data: Dataset) -> dict[str, float]:
    """Recall of the test events, earlier items masked; and with all that the user was shown masked, too."""
    held, shown = heldout(data, "test"), data.events("train-impressions")
    seen = [held.seen_items[low:high] for low, high in zip(held.seen_offsets, held.seen_offsets[1:], strict=False)]
    both = [
        np.concatenate([own, shown.item[shown.offsets[user] : shown.offsets[user + 1]]])
        for user, own in zip(held.users, seen, strict=True)
    ]
    return {"recall": _recall(scores, held, seen), "recall, shown ones masked": _recall(scores, held, both)}


def _recall(scores: NDArray[np.float32], held: HeldOut, masked: list[NDArray[np.int32]]) -> float:
    recalls = []
    for row, (user, items) in enumerate(zip(held.users, masked, strict=True)):
        own = scores[user].copy()
        own[items] = -np.inf
        targets = held.target_items[held.target_offsets[row] : held.target_offsets[row + 1]]
        recalls.append(np.isin(targets, np.argpartition(-own, K)[:K]).mean())
    return float(np.mean(recalls))


def attained(scores: NDArray[np.float32], wanted: NDArray[np.float64]) -> float:
    """P of each user's K items of highest score, as a share of that of the K most wanted."""
    top = np.argpartition(-scores, K, axis=1)[:, :K]
    best = np.partition(wanted, -K, axis=1)[:, -K:]
    return float((np.take_along_axis(wanted, top, axis=1).sum(axis=1) / best.sum(axis=1)).mean())


def markdown(rows: list[Row]) -> str:
    names = [name for name in rows[0] if name != "weight"]
    lines = [["w", *names], ["---"] * (len(names) + 1)]
    lines += [
        ["none" if row["weight"] is None else f"{row['weight']:g}", *(f"{row[name]:.3f}" for name in names)]
        for row in rows
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    with arguments("benchmarks.levers.impressions", "ml-100k", __doc__) as (folder, work_directory):
        sys.exit(main(folder, work_directory))
