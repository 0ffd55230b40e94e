"""A finished run of `towers train`, read back."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from pipelines.dataset.dataset import Dataset
from pipelines.dataset.digests import refuse_changes
from pipelines.dataset.feature_lookup import build_tables
from pipelines.dataset.vocabulary import load_features
from pipelines.errors import DataError
from serving.bundle.manifest import DATASET_FILE, MANIFEST
from towers.config.recipe import Config, load_config
from towers.data.feature_tables import FeatureTables
from towers.model.graphs import connect_graphs
from towers.model.two_tower import TwoTower
from towers.training.checkpoints import refuse_pattern

KNOWN_SPLITS = ("train", "valid")  # what a service may know; the test events are for the report only


@dataclass(frozen=True)
class Run:
    """Its directory, recipe and summary, the data set, the model with trained weights, and looked-up tables."""

    path: Path
    config: Config
    summary: dict[str, Any]
    dataset: Dataset
    model: TwoTower
    tables: FeatureTables

    def cut(self, dimension: int) -> None:
        """Makes both towers serve only the first numbers of their vectors.

        Raises:
            DataError: it did not train `dimension`.
        """
        widths = [*self.config.loss.matryoshka, self.config.model.dimension]
        if dimension not in widths:
            remedy = "; loss.matryoshka trains smaller ones, too" if len(widths) == 1 else ""
            raise DataError(f"--dimension {dimension}: {self.path} trained {', '.join(map(str, widths))}{remedy}")
        self.model.query_tower.dimension = self.model.candidate_tower.dimension = dimension


def load_run(run: Path, dataset_path: Path | None = None) -> Run:
    """Reads a finished run and its data set, from where the run expects it or from another place.

    Raises:
        DataError: a part is missing or damaged, or the data set is not the one it was trained on.
        ConfigError: TensorFlow reads nothing at this path.
    """
    if not (run / "summary.json").is_file():
        raise DataError(f"{run}: not a finished run{_instead(run)}")
    refuse_pattern(run)
    with _whole(run / "summary.json"):
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
        # Relative to the run, so both may move together.
        place, wanted = dataset_path or (run / summary["dataset_path"]).resolve(), summary["dataset"]
    if dataset_path is None and not (place / DATASET_FILE).is_file():
        raise DataError(f"{run}: expects its data set at {place}, and none is there; --dataset names another place")
    dataset = Dataset.open(place)
    if (found := dataset.manifest.fingerprint) != wanted:
        reason = "it was prepared again since, or is another one"
        if wanted in dataset.manifest.before_forget:
            reason = "a user was forgotten in it since; train again"
        raise DataError(f"{place}: fingerprint {found[:12]}, but {run} was trained on {wanted[:12]}; {reason}")
    refuse_changes(dataset)
    config = load_config(run / "config.toml")
    with _whole(run / "features.json"):
        learnt = load_features(run)
    model = TwoTower(learnt.query, learnt.candidate, config)
    tables = build_tables(model, dataset, None)
    connect_graphs(model, tables, [dataset.events(split) for split in KNOWN_SPLITS[: 2 if config.data.refit else 1]])
    # A forward pass creates the weights of the hidden layers, which the checkpoint then fills.
    if model.query_tower.encoders:
        first = np.zeros(1, np.int32), np.zeros(2, np.int64), np.zeros(0, np.int32)
        model.query_tower(_constants(tables.of_users(*first)))
    model.candidate_tower(_constants({name: rows[:1] for name, rows in tables.items.items()}))
    tf.train.Checkpoint(model=model).read(str(run / "checkpoints" / "final")).assert_existing_objects_matched()
    return Run(run, config, summary, dataset, model, tables)


def _instead(path: Path) -> str:
    """What a directory without a summary is, and what to do."""
    if (path / DATASET_FILE).is_file():
        return f", but a data set; `towers train --dataset {path} --config RECIPE --out RUN` makes a run"
    if (path / MANIFEST).is_file():
        return f", but a bundle that was exported already; `towers serve --bundle {path}` serves it"
    return f" (no summary.json); `towers train --out {path}` makes one"


@contextmanager
def _whole(file: Path) -> Iterator[None]:
    """Names a file of a run in which a key or a value is missing, or which is no JSON."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        told = f"{type(error).__name__}: {error}".splitlines()[0]
        raise DataError(f"{file}: damaged ({told}); `towers train --overwrite` makes the run again") from None


def _constants(features: dict[str, Any]) -> dict[str, tf.Tensor]:
    return {name: tf.constant(values) for name, values in features.items()}
