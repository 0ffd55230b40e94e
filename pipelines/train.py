"""`towers train`: a data set and a recipe to a run.

In: DATASET and a `Config`. Out: RUN with the settled recipe, what the features learnt, the weights and a summary. It
works in a hidden sibling of RUN; one that was cut off stays there, and the same command goes on where it stopped.
"""

import dataclasses
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import tensorflow as tf
import tomli_w

from pipelines.check import check_recipe
from pipelines.dataset import Dataset
from pipelines.errors import DataError
from pipelines.heldout import heldout
from pipelines.leaks import refuse_leaks
from pipelines.lists import select_lists
from pipelines.progress import progress, say
from pipelines.tables import build_tables
from pipelines.vocabulary import LearntFeatures, learn_features
from serving.staging import publish, refuse_existing, remove
from towers.config import Config
from towers.events import Events
from towers.examples import Examples
from towers.model import TwoTower
from towers.samplers import InBatchSampler
from towers.tables import Tables
from towers.training import Summary, Trainer
from towers.validation import Validation

REFIT_EVENTS = "refit_events"


def run(config: Config, dataset: Path, out: Path, *, resume: bool = True, overwrite: bool = False) -> dict[str, Any]:
    """Trains a model.

    Args:
        config: the recipe; feature sides it leaves out are derived from the data set.
        dataset: what `towers prepare` wrote.
        out: RUN.
        resume: go on with an unfinished run of the same recipe and data; False discards it.
        overwrite: replace a finished RUN.

    Returns:
        The content of `summary.json`.

    Raises:
        ConfigError: the recipe and the data set do not fit.
        DataError: the data set is damaged or leaks, or an unfinished run of other settings is in the way.
        OutputExistsError: RUN exists.
        DivergedError: the loss became NaN or infinite.
    """
    refuse_existing(out, overwrite=overwrite)
    data = Dataset.open(dataset)
    config = check_recipe(config, data)
    refuse_leaks(data)
    work = _working_directory(out, config, data, resume=resume)
    started = time.time()
    stages = _train_stages(config, data, work)
    summary = {
        "seconds": round(time.time() - started, 1),
        "dataset": data.manifest.fingerprint,
        # Relative, so that run and data set may move together.
        "dataset_path": os.path.relpath(dataset.absolute(), out.absolute()),
        "refit": config.data.refit,
        "stages": stages,
        "tensorflow": tf.__version__,
    }
    (work / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    publish(work, out.absolute())
    _say_summary(summary, out)
    return summary


def build_model(config: Config, learnt: LearntFeatures) -> TwoTower:
    """The untrained model of a settled recipe."""
    return TwoTower(learnt.query, learnt.candidate, config.model, config.loss, config.train.seed)


def _working_directory(out: Path, config: Config, data: Dataset, *, resume: bool) -> Path:
    work = out.absolute().parent / f".{out.name}.unfinished"
    recipe = tomli_w.dumps(config.model_dump(exclude_none=True, mode="json"))
    key = hashlib.sha256((recipe + data.manifest.fingerprint).encode()).hexdigest()
    if not resume:
        remove(work)
    if work.exists():
        if not (work / "key").exists() or (work / "key").read_text() != key:
            raise DataError(
                f"{out}: an unfinished run of another recipe or data set is in the way; finish it with its own "
                "command, or discard it with --fresh"
            )
        say(f"going on with the unfinished run of {out}")
        return work
    work.mkdir(parents=True)
    (work / "config.toml").write_text(recipe, encoding="utf-8")
    (work / "key").write_text(key)
    return work


def _train_stages(config: Config, data: Dataset, work: Path) -> list[dict[str, Any]]:
    """Trains on the training events; with `data.refit` once more on training + validation, for the chosen epochs."""
    validated = data.manifest.events["valid"] > 0
    if not (config.data.refit and validated):
        return [_stage("train", config, data, ("train",), work, work, validated=validated)]
    choose = work / "choose"
    done = choose / "stage.json"
    if done.exists():
        chosen = json.loads(done.read_text())
    else:
        chosen = _stage("train", config, data, ("train",), choose, work, validated=True)
        done.write_text(json.dumps(chosen))
    best = config.train.model_copy(update={"epochs": chosen["best_epoch"]})
    refit = _stage(
        "refit", config.model_copy(update={"train": best}), data, ("train", "valid"), work, work, validated=False
    )
    remove(choose)
    return [chosen, refit]


def _stage(
    name: str, config: Config, data: Dataset, splits: tuple[str, ...], directory: Path, work: Path, *, validated: bool
) -> dict[str, Any]:
    events, context = _events(data, splits, work)
    learnt = learn_features(config, data, events, directory)
    model = build_model(config, learnt)
    tables = build_tables(model, data, context)
    counts = np.bincount(events.item, minlength=data.manifest.items)
    examples = Examples(
        events,
        tables,
        InBatchSampler(counts, config.train.batch_size),
        config.train.batch_size,
        config.train.seed,
        config.train.weighted,
    )
    validation = None
    if validated:
        validation = _validation(config, data, tables)
    trainer = Trainer(model, examples, config.optimizer, config.train, directory, validation)
    summary = _fit(name, trainer, config, examples)
    tf.train.Checkpoint(model=model).write(str(directory / "checkpoints" / "final"))
    for kept in ("latest", "best"):
        remove(directory / "checkpoints" / kept)
    remove(work / REFIT_EVENTS)
    return {
        "stage": name,
        "examples": len(events),
        "batch_size": config.train.batch_size,
        **dataclasses.asdict(summary),
    }


def _validation(config: Config, data: Dataset, tables: Tables) -> Validation:
    """The held-out users of the validation split, or a seeded sample where there are more than the recipe allows."""
    held = heldout(data, "valid")
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


def _fit(name: str, trainer: Trainer, config: Config, examples: Examples) -> Summary:
    steps = examples.steps * config.train.epochs
    with progress(name, total=steps * config.train.batch_size, unit="examples") as advance:
        reached = 0

        def on_step(done: int, loss: float) -> None:
            nonlocal reached
            advance((done - reached) * config.train.batch_size, note=f"loss {loss:.4f}" if loss == loss else "")
            reached = done

        def on_epoch(record: dict[str, float]) -> None:
            metric = config.train.metric
            shown = f", {metric} {record[metric]:.4f}" if metric in record else ""
            say(f"epoch {record['epoch']:.0f}: loss {record['loss']:.4f}{shown}, {record['train_seconds']:.1f} s")

        return trainer.fit(on_step, on_epoch)


def _say_summary(summary: dict[str, Any], out: Path) -> None:
    last = summary["stages"][-1]
    first = summary["stages"][0]
    chosen = (
        f"; best {first['metric']} {first['best_metric']:.4f} at epoch {first['best_epoch']}" if first["metric"] else ""
    )
    say(f"{out}: {last['epochs']} epochs of {last['examples']:,} examples in {summary['seconds']:.0f} s{chosen}")
