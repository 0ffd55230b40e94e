"""One recipe trained by the product's own stage, and what its towers find for the held-out users.

In: a recipe and a prepared data set. Out: figures on validation and test, epochs, seconds.
"""

import gc
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from pipelines.dataset.dataset import Dataset
from pipelines.dataset.feature_lookup import build_tables
from pipelines.dataset.heldout import heldout
from pipelines.dataset.vocabulary import load_features
from pipelines.training.check import check_recipe
from pipelines.training.stage import Stage, run_stage
from towers.config.recipe import Config, parse_config
from towers.data.events import select_lists
from towers.data.feature_tables import FeatureTables
from towers.evaluation import metrics
from towers.evaluation.encode import embed_all, informed
from towers.evaluation.top_k import top_k
from towers.model.two_tower import TwoTower

DEPTH = 50
MEASURED = (("recall", 20), ("recall", 50), ("ndcg", 20))


def train_and_measure(recipe: dict[str, Any], data: Dataset, work: Path) -> dict[str, Any]:
    """Trains on the training split, all epochs, and measures the weights on both held-out splits.

    Args:
        recipe: what a recipe's file would hold.
        data: what `towers prepare` wrote.
        work: a folder for what is thrown away afterwards.

    Returns:
        ``valid`` and ``test`` figures, ``epochs``: loss and ``train_seconds`` of each, and ``examples``.

    Raises:
        ConfigError: the recipe and the data set do not fit.
        DivergedError: the loss became NaN or infinite.
    """
    config = check_recipe(parse_config(recipe), data)
    with tempfile.TemporaryDirectory(dir=work) as folder:
        directory = Path(folder) / "run"
        # Without validation: the last epoch's weights, the same budget for all.
        stage = run_stage(config, data, Stage("run", ("train",), validated=False), directory, Path(folder))
        figures = measured(config, data, directory)
    # Hundreds of models come and go in one process.
    tf.keras.backend.clear_session()
    gc.collect()
    return {**figures, "epochs": stage["history"], "examples": stage["examples"]}


def measured(config: Config, data: Dataset, run: Path) -> dict[str, Any]:
    """Figures of a finished stage's weights on both held-out splits."""
    learnt = load_features(run)
    model = TwoTower(learnt.query, learnt.candidate, config)
    tables = build_tables(model, data, None)
    tf.train.Checkpoint(model=model).read(str(run / "checkpoints" / "final")).assert_existing_objects_matched()
    return {split: on_split(model, tables, data, split) for split in ("valid", "test")}


def on_split(model: TwoTower, tables: FeatureTables, data: Dataset, split: str) -> dict[str, float]:
    """Means over a split's users, earlier items masked; and what the lists of 20 hold.

    Returns:
        ``recall@20``, ``recall@50``, ``ndcg@20``, the standard error of the first, the number of ``users``,
        ``coverage`` (share of the catalogue in some list of 20) and ``mean_popularity`` (training events of
        an item that is recommended).
    """
    held = heldout(data, split)
    query = tables.of_users(held.users, held.seen_offsets, held.seen_items)
    queries, items = embed_all(model.query_tower.serve, query), embed_all(model.candidate_tower.serve, tables.items)
    # As in a bundle: an item that training never saw has a vector of zeros, which beats every negative score.
    trained = informed(model.candidate_tower, tables.items)
    row = np.where(trained, np.cumsum(trained) - 1, -1).astype(np.int32)
    seen_offsets, seen_rows = select_lists(np.arange(len(held.users)), held.seen_offsets, row[held.seen_items])
    places = top_k(queries, items[trained], DEPTH, seen_offsets, seen_rows)
    lists = np.where(places >= 0, np.flatnonzero(trained)[places], -1)
    found = metrics.hits(lists, held.target_offsets, held.target_items)
    targets = np.diff(held.target_offsets)
    figures = {f"{name}@{k}": float(np.mean(metrics.METRICS[name](found, targets, k))) for name, k in MEASURED}
    recalls = metrics.recall(found, targets, 20)
    shown = metrics.exposure(lists, len(items), 20)
    return figures | {
        "recall@20 standard error": float(np.std(recalls, ddof=1) / np.sqrt(len(recalls))),
        "users": len(held.users),
        "coverage": metrics.coverage(shown),
        "mean_popularity": float(np.average(data.items["train_count"].to_numpy(), weights=shown)),
    }
