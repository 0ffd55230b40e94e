"""One training of one model: features learnt, tables looked up, the loop run, the final weights written.

In: a settled recipe, a data set and which of its splits train. Out: `checkpoints/final`, the vocabularies and
`stage.json` in a directory. `towers train` runs one stage, or with `data.refit` two.
"""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import tensorflow as tf

from pipelines.dataset import Dataset
from pipelines.heldout import heldout
from pipelines.lists import select_lists
from pipelines.progress import progress, say
from pipelines.similarity import Training, similarity_training
from pipelines.tables import build_tables
from pipelines.vocabulary import LearntFeatures, learn_features
from serving.staging import remove
from towers.catalogue import Catalogue
from towers.config import Config
from towers.events import Events
from towers.examples import Examples
from towers.items import ItemFeatures
from towers.model import TwoTower
from towers.retrieval import Retrieval
from towers.samplers.registry import build_sampler
from towers.tables import Tables
from towers.training import Summary, Trainer
from towers.untrained import silence_untrained
from towers.validation import Validation

REFIT_EVENTS = "refit_events"


def build_model(config: Config, learnt: LearntFeatures) -> TwoTower:
    """The untrained model of a settled recipe."""
    return TwoTower(learnt.query, learnt.candidate, config)


def run_stage(
    name: str, config: Config, data: Dataset, splits: tuple[str, ...], directory: Path, work: Path, *, validated: bool
) -> dict[str, Any]:
    """Trains one model to its end, from where an earlier process left off.

    Args:
        name: what the progress bar shows.
        config: settled; `train.epochs` is an upper bound with validation, exact without.
        data: the data set.
        splits: whose events train, in the order of time.
        directory: gets vocabulary, checkpoints/final and stage.json; the last says that the stage is done.
        work: where files lie that no stage keeps.
        validated: choose the epoch on the validation split.

    Returns:
        The content of stage.json.
    """
    marker = directory / "stage.json"
    if marker.exists():
        done: dict[str, Any] = json.loads(marker.read_text(encoding="utf-8"))
        return done
    directory.mkdir(exist_ok=True)
    if config.task == "similarity":
        training = similarity_training(config, data, directory)
    else:
        training = _retrieval(config, data, _events(data, splits, work), directory, validated=validated)
    summary = _fit(
        name,
        Trainer(training.task, training.batches, config.optimizer, config.train, directory, training.validation),
    )
    tf.train.Checkpoint(model=training.task.towers).write(str(directory / "checkpoints" / "final"))
    result = {
        "stage": name,
        "examples": training.examples,
        "batch_size": config.train.batch_size,
        **dataclasses.asdict(summary),
    }
    # The marker before the clean-up: a kill in between must not cost the training.
    half = directory / "stage.json.partial"
    half.write_text(json.dumps(result, allow_nan=False), encoding="utf-8")
    half.replace(marker)
    for kept in ("latest", "best"):
        remove(directory / "checkpoints" / kept)
    remove(work / REFIT_EVENTS)
    return result


def _retrieval(
    config: Config, data: Dataset, learnt_from: tuple[Events, pl.DataFrame | None], directory: Path, *, validated: bool
) -> Training:
    """Builds the training of `task = "retrieval"`; `learnt_from` are the training events and their own columns."""
    events, context = learnt_from
    if not config.loss.graded:
        context = context if context is None or events.weight is None else context.filter(pl.Series(events.weight > 0))
        events = events.taken()
    model = build_model(config, learn_features(config, data, events, context, directory))
    tables = build_tables(model, data, context)
    silence_untrained(model, tables, events)
    catalogue = Catalogue.of(events.item, data.manifest.items)
    examples = Examples(
        events,
        tables,
        catalogue,
        config.train.batch_size,
        config.train.seed,
        weighted=config.train.weighted,
        positives=config.loss.positives,
        known=getattr(config.loss, "known_positives", 0),
    )
    size = min(config.train.batch_size, len(events))
    seen = config.train.epochs * examples.steps * size
    sampler = build_sampler(config.negatives, catalogue.counts, size, seen) if config.negatives is not None else None
    task = Retrieval(model, config, ItemFeatures(tables.items, catalogue), len(catalogue), sampler)
    return Training(task, examples, _validation(config, data, tables) if validated else None, len(events))


def _validation(config: Config, data: Dataset, tables: Tables) -> Validation | None:
    """The held-out users of the validation split, or a seeded sample where there are more than the recipe allows.

    None where nobody has a target: every validation event repeats one of training.
    """
    held = heldout(data, "valid")
    if not len(held.users):
        return None
    most = min(config.train.validation_users, len(held.users))
    rows = np.random.default_rng(config.train.seed).choice(len(held.users), most, replace=False)
    rows = np.sort(rows).astype(np.int32)
    seen_offsets, seen_items = select_lists(rows, held.seen_offsets, held.seen_items)
    target_offsets, target_items = select_lists(rows, held.target_offsets, held.target_items)
    query = tables.of_users(held.users[rows], seen_offsets, seen_items)
    return Validation(query, tables.items, seen_offsets, seen_items, target_offsets, target_items, config.train.metric)


def _events(data: Dataset, splits: tuple[str, ...], work: Path) -> tuple[Events, pl.DataFrame | None]:
    if len(splits) == 1:
        return data.events(splits[0]), data.context(splits[0])
    remove(work / REFIT_EVENTS)
    return data.merged(splits, work / REFIT_EVENTS), data.merged_context(splits)


def _fit(name: str, trainer: Trainer) -> Summary:
    config = trainer.config
    steps = trainer.examples.steps * config.epochs
    # A run that goes on counts what is left: its rate is this process's own.
    before = trainer.done
    with progress(name, total=(steps - before) * config.batch_size, unit="examples") as advance:
        reached = before

        def on_step(done: int, loss: float) -> None:
            nonlocal reached
            advance((done - reached) * config.batch_size, note="" if math.isnan(loss) else f"loss {loss:.4f}")
            reached = done

        def on_epoch(record: dict[str, float]) -> None:
            shown = f", {config.metric} {record[config.metric]:.4f}" if config.metric in record else ""
            if "margin" in record:
                shown += f", margin {record['margin']:.3f}"
            if record.get("margin_clamped"):
                shown += f" (its bound; the classes are {record['margin_estimate']:.3f} wide)"
            say(f"epoch {record['epoch']:.0f}: loss {record['loss']:.4f}{shown}, {record['train_seconds']:.1f} s")

        return trainer.fit(on_step, on_epoch)
