"""What EASE brings on MovieLens-1M, cut to few numbers: alone, as rows to start from, beside the recipe; on validation.

In: the folder of the data, a working directory. Out: benchmarks/levers/results/ease.json, its table in
    docs/model/training.md; code 1 where a claim fails.

EASE scores X B, X users by items. With the eigenvectors V of B'X'XB of the largest eigenvalues, X (B V) V' is the
nearest score of that rank: a vector (B V)'x for a user and a row of V for an item. The recipe, `EVENTS`,
trains for few epochs, from random rows and from those vectors. Of the penalties on a ladder, and of three weights of
EASE in the mean, the best on validation counts. One seed.
Claims: from those vectors the recipe finds more in as many epochs; the mean finds more than either.
"""

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.linalg
import tensorflow as tf
from numpy.typing import NDArray

from benchmarks.harness.machine import ROOT
from benchmarks.harness.pages import DOCS
from benchmarks.harness.stages import Stages, arguments
from benchmarks.levers.changes import EVENTS, Row, write_result
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.feature_lookup import build_tables
from pipelines.dataset.heldout import seen
from pipelines.rankers.choice import EASE_LADDER
from pipelines.rankers.ease import ease_weights
from pipelines.rankers.item_knn import history
from pipelines.training.check import check_recipe
from pipelines.training.progress import fit
from pipelines.training.stage import build_trainer, stages
from towers.config.recipe import load_config
from towers.evaluation import metrics
from towers.evaluation.top_k import top_k
from towers.evaluation.validation import Ranking, Validation, scaled

RECIPE, PAGE = Path("towers") / "recipes" / "ml-1m.toml", DOCS / "model" / "training.md"
NAME, METRIC, K = "ease", "recall@20", 20
SETTINGS = ("data.refit=false", *EVENTS, "train.epochs=12", "train.validation_users=1000000")
WIDTH, WIDE, WEIGHTS = 64, 256, (0.2, 0.3, 0.5)

Matrix = NDArray[np.float64]
Pair = tuple[Matrix, Matrix]  # vectors of users and of items, whose products are scores


class Trained(NamedTuple):
    """A training: its best value, the validation, the vectors of held-out users and items then, each epoch."""

    value: float
    check: Validation
    pair: Pair
    history: list[dict[str, float]]


def main(data: Path, work: Path) -> int:
    Stages(work, data).run(
        "prepare",
        "--events",
        str(data),
        "--format",
        "lightgcn",
        "--config",
        str(RECIPE),
        "--out",
        str(work / "dataset"),
    )
    dataset = Dataset.open(work / "dataset")
    taken = history(*seen(dataset, ("train",)), dataset.manifest.items).astype(np.float64)
    gram = (taken.T @ taken).toarray()
    plain = trained(dataset, work / "random", None)
    check = plain.check
    known = history(check.seen_offsets, check.seen_items, dataset.manifest.items)
    whole: list[tuple[float, float]] = []
    cuts: dict[int, list[tuple[float, float, Pair, Pair]]] = {WIDTH: [], WIDE: []}
    for penalty in EASE_LADDER:
        weights = ease_weights(*taken.nonzero(), taken.shape, penalty).astype(np.float64)
        whole.append((value(check, (known @ weights, np.eye(len(weights)))), penalty))
        _, vectors = scipy.linalg.eigh(weights.T @ gram @ weights)
        for width, found in cuts.items():
            side = vectors[:, -width:]
            asked = known @ (weights @ side), side
            found.append((value(check, asked), penalty, asked, (taken @ (weights @ side), side)))
    (narrow, penalty, _, start), (wide, *_, asked, _) = (max(each, key=lambda one: one[0]) for each in cuts.values())
    warm = trained(dataset, work / "warm", start)
    means = [(value(check, each), each) for each in (beside(plain.pair, asked, weight) for weight in WEIGHTS)]
    best, both = max(means, key=lambda one: one[0])
    rows: list[Row] = [
        {"lever": lever, "best": [reached]}
        for lever, reached in (
            ("the recipe, 12 epochs at a rate of 0.001", plain.value),
            (f"the same, from EASE's vectors of {WIDTH} numbers", warm.value),
            (f"EASE, a penalty of {max(whole)[1]:g}", max(whole)[0]),
            (f"EASE cut to {WIDE} numbers", wide),
            (f"EASE cut to {WIDTH} numbers, a penalty of {penalty:g}", narrow),
            (f"mean score of the recipe and EASE cut to {WIDE}, {WIDTH + WIDE} numbers", best),
            (f"that mean cut to {WIDTH} numbers", value(check, cut(both, WIDTH))),
        )
    ]
    claims = {
        "from EASE's vectors more in as many epochs": warm.value > plain.value,
        "the mean finds more than either": best > max(plain.value, wide),
    }
    histories = {"random": plain.history, "from EASE": warm.history}
    return write_result(__file__, NAME, {"claims": claims, "rows": rows, "histories": histories}, PAGE, METRIC)


def trained(dataset: Dataset, folder: Path, start: Pair | None) -> Trained:
    """Trains the recipe, from random rows or from vectors of all users and items."""
    config = check_recipe(load_config(ROOT / RECIPE, SETTINGS), dataset)
    folder.mkdir()
    training, trainer = build_trainer(config, dataset, stages(config, dataset)[0], folder, folder)
    towers, check = training.task.towers, training.validation
    assert isinstance(check, Validation)
    if start is not None:
        tables = build_tables(towers, dataset, None)
        # Both sides get half of each score's size.
        half = np.sqrt(np.linalg.norm(start[0], axis=0))
        place(towers.query_tower.encoders[0].table, tables.users["user_id"], start[0] / half)
        place(towers.candidate_tower.encoders[0].table, tables.items["item_id"], start[1] * half)
    summary = fit("train", trainer, training.examples)
    ranking = Ranking.of(check, towers)
    vectors = scaled(ranking.vectors, float(towers.candidate_tower.norm_exponent.numpy()))
    assert summary.best_metric is not None and len(vectors) == dataset.manifest.items
    pair = ranking.queries.astype(np.float64), vectors.astype(np.float64)
    return Trained(summary.best_metric, check, pair, summary.history)


def place(table: tf.Variable, rows: NDArray[np.int32], vectors: Matrix) -> None:
    """Sets rows of a table to vectors, as long on average as its rows."""
    length = float(tf.reduce_mean(tf.norm(table, axis=1)))
    placed = np.zeros(table.shape, np.float32)
    placed[rows] = vectors / np.linalg.norm(vectors, axis=1).mean() * length
    table.assign(placed)


def value(check: Validation, pair: Pair) -> float:
    """Recall of the products over the held-out users."""
    queries, items = (np.ascontiguousarray(each, np.float32) for each in pair)
    found = top_k(queries, items, K, check.seen_offsets, check.seen_items)
    hits = metrics.hits(found, check.target_offsets, check.target_items)
    return float(np.nanmean(metrics.METRICS["recall"](hits, np.diff(check.target_offsets), K)))


def beside(one: Pair, other: Pair, weight: float) -> Pair:
    """The sum of both scores, the second's times a weight, each divided by how much a query's scores differ."""
    first, second = (each[0] / (each[0] @ each[1].T).std(axis=1).mean() for each in (one, other))
    return np.concatenate([first, weight * second], axis=1), np.concatenate([one[1], other[1]], axis=1)


def cut(pair: Pair, width: int) -> Pair:
    """The nearest scores with vectors of so many numbers."""
    (left, of_left), (right, of_right) = (np.linalg.qr(each) for each in pair)
    one, values, other = np.linalg.svd(of_left @ of_right.T)
    return left @ (one[:, :width] * values[:width]), right @ other[:width].T


if __name__ == "__main__":
    with arguments("benchmarks.levers.ease", "ml-1m-split", __doc__) as (folder, work_directory):
        sys.exit(main(folder, work_directory))
