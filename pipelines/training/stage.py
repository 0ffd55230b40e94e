"""Trains one model: learns the features, looks up the tables, runs the training loop, writes the final weights.

Writes `checkpoints/final`, the vocabularies and `stage.json` to a directory. `towers train` runs one stage, or two with
`data.refit`.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import tensorflow as tf

from pipelines.console import Advance, no_bar, progress, say
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.feature_lookup import build_tables, refuse_empty_histories
from pipelines.dataset.vocabulary import feature_count, learn_features
from pipelines.rankers.ease import ease_factors
from pipelines.training.earlier_run import CHECKPOINTS, FINAL, RANKS, EarlierRun
from pipelines.training.events import training_events, training_examples
from pipelines.training.impressions import impressions_of
from pipelines.training.prior import kept_prior
from pipelines.training.progress import fit
from pipelines.training.similarity.training import Training, similarity_training
from pipelines.training.validation import validation
from serving.files.staging import flush_to_disk, remove, staged
from towers.config.recipe import Config
from towers.config.sections import ContrastConfig, DistillationConfig
from towers.data.events import Events
from towers.data.item_ranks import ItemFeatures, ItemRanks
from towers.data.sequence_examples import example_counts
from towers.evaluation.validation import Validation
from towers.model.graphs import connect_graphs
from towers.model.start_rows import start_rows
from towers.model.two_tower import TwoTower
from towers.model.untrained_rows import scored_items, zero_untrained_rows
from towers.ops.replicas import ALONE, Replicas
from towers.samplers.registry import build_sampler
from towers.tasks.contrast import Contrast
from towers.tasks.retrieval import Retrieval
from towers.tasks.teachers import Factors, Teachers
from towers.training.checkpoints import keep_state
from towers.training.trainer import Trainer

EVENT_FILES = "event_files"  # arrays with one row per event, for training only
VALIDATION = "validation.parquet"  # the metric of each held-out user


class Stage(NamedTuple):
    """One training of a run: its name, the splits that train in time order, whether validation chooses the epoch."""

    name: str
    splits: tuple[str, ...]
    validated: bool


def stages(config: Config, data: Dataset) -> list[Stage]:
    """Returns the stages of a resolved recipe: with `data.refit` one that chooses the epochs, and one on all events."""
    refit = Stage("refit", ("train", "valid"), validated=False)
    if config.data.refit and not config.train.choose_epoch:
        return [refit]
    validated = config.train.choose_epoch and data.manifest.events["valid"] > 0
    first = Stage("train", ("train",), validated)
    return [first, refit] if config.data.refit else [first]


def features_of(name: str) -> str:
    """Names the phase before the first step of a stage: what the features learn from the data is looked up."""
    return f"features for {name}"


def run_stage(
    config: Config,
    data: Dataset,
    stage: Stage,
    directory: Path,
    work: Path,
    warm: EarlierRun | None = None,
    replicas: Replicas = ALONE,
    teachers: Sequence[Path] = (),
) -> dict[str, Any]:
    """Trains one model to the end, resuming where an earlier process stopped.

    Args:
        config: a resolved recipe; `train.epochs` is an upper bound with validation, exact without.
        data: the data set.
        stage: its splits train.
        directory: gets the vocabulary, checkpoints/final and stage.json; the last marks the stage as done.
        work: gets the files that are not part of a stage's result.
        warm: the run to start from.
        replicas: the workers; all but the first write to directories of their own.
        teachers: the checkpoints of models of the same features, from which this one learns.

    Returns:
        The content of stage.json.
    """
    marker = directory / "stage.json"
    text = replicas.from_first(marker.read_text(encoding="utf-8") if marker.exists() else "")
    if not text:
        directory.mkdir(exist_ok=True)
        with progress(features_of(stage.name), total=feature_count(config), unit="features") as advance:
            training, trainer = build_trainer(config, data, stage, directory, work, advance, warm, replicas, teachers)
        summary, towers = fit(stage.name, trainer, training.examples), training.task.towers
        if isinstance(training.validation, Validation) and training.users is not None:
            values = training.validation.values(towers)
            pl.DataFrame({"user": training.users, config.train.metric: values}).write_parquet(work / VALIDATION)
        if not replicas.rank:
            tf.train.Checkpoint(model=towers).write(str(directory / CHECKPOINTS / FINAL))
            flush_to_disk(directory / CHECKPOINTS)
        content = {
            "stage": stage.name,
            "examples": training.examples,
            "batch_size": config.train.batch_size,
            "norm_exponent": round(float(towers.candidate_tower.norm_exponent.numpy()), 6),
            "prior": kept_prior(config, towers, training.counting),
            "optimizer_steps": int(trainer.optimizer.step.numpy()) + trainer.optimizer.earlier_steps,
            **dataclasses.asdict(summary),
        }
        text = json.dumps(content, allow_nan=False)
        with staged(marker) as half:
            half.write_text(text, encoding="utf-8")
    # After the marker, and again on every resume: a kill in between loses neither the training nor the clean-up.
    kept = keep_state(directory / CHECKPOINTS) if config.train.keep_state else None
    for each in (directory / CHECKPOINTS).glob("*"):
        if not each.name.startswith(f"{FINAL}.") and each != kept:
            remove(each)
    if not config.train.keep_state:
        remove(directory / RANKS)
    remove(work / EVENT_FILES)
    return dict(json.loads(text))


def build_trainer(
    config: Config,
    data: Dataset,
    stage: Stage,
    directory: Path,
    work: Path,
    advance: Advance = no_bar,
    warm: EarlierRun | None = None,
    replicas: Replicas = ALONE,
    teachers: Sequence[Path] = (),
) -> tuple[Training, Trainer]:
    """Builds all that a stage has before its first step, for `towers train` and `check` alike; see `run_stage`."""
    splits = stage.splits
    with replicas.scope():
        training = build_training(
            config, data, splits, directory, work, advance, replicas, teachers, validated=stage.validated
        )
        task, check = training.task, training.validation
        start = None if warm is None else warm.start(stage.name, task.towers, directory, config.train.warm_share)
        trainer = Trainer(task, training.batches, config.optimizer, config.train, directory, check, start, replicas)
    warmup, steps = config.optimizer.warmup_steps, config.train.epochs * training.batches.steps
    if warmup >= steps:
        say(f"warning: optimizer.warmup_steps = {warmup:,}: {stage.name} ends below learning_rate, in {steps:,} steps")
    return training, trainer


def build_training(
    config: Config,
    data: Dataset,
    splits: tuple[str, ...],
    directory: Path,
    work: Path,
    advance: Advance = no_bar,
    replicas: Replicas = ALONE,
    teachers: Sequence[Path] = (),
    *,
    validated: bool,
) -> Training:
    """Builds what a `Trainer` trains; writes what the features learnt to `directory`. Arguments as in `run_stage`."""
    if config.task == "similarity":
        return similarity_training(config, data, directory, advance, replicas)
    files = work / EVENT_FILES
    remove(files)
    # Separate folders, because a feature may have the name of an event array.
    of_events, of_features = files / "events", files / "features"
    of_events.mkdir(parents=True)
    of_features.mkdir()
    events, context = training_events(data, splits, of_events, impressions=config.loss.graded)
    learnt = learn_features(config, data, events, context, directory, advance)
    model = TwoTower(learnt.query, learnt.candidate, config)
    tables = build_tables(model, data, context, of_features, advance)
    refuse_empty_histories(config, events, tables)
    # Without an earlier event nothing describes the query of an event.
    alone = bool(tables.sequences) and all(
        each.kind == "sequence" or (each.kind == "history" and each.window == "earlier")
        for each in (config.features.query or {}).values()
    )
    counts = example_counts(events, data.manifest.items, tables) if alone else None
    impressions = impressions_of(data, splits, events, context, files / "impressions", config.loss.sampled)
    scored = scored_items(config, events, counts, impressions)
    zero_untrained_rows(model, tables, events, config.loss.positives, scored)
    start_rows(model, tables, events, replicas)
    connect_graphs(model, tables, [events.past])
    catalogue = ItemRanks.of(events.item, data.manifest.items, counts)
    examples = training_examples(config, events, tables, catalogue, impressions, replicas, alone=alone)
    size = min(config.train.batch_size, len(examples))
    seen = config.train.epochs * examples.steps * size
    sampler = build_sampler(config.negatives, catalogue.counts, size, seen) if config.negatives is not None else None
    if sampler is not None and sampler.learns:
        data.items.select(pl.col("item_id").gather(catalogue.items)).write_parquet(directory / RANKS)
    items = ItemFeatures(tables.items, catalogue)

    def untrained() -> TwoTower:
        new = TwoTower(learnt.query, learnt.candidate, config.of_teachers)
        connect_graphs(new, tables, [events.past])
        return new

    distillation = config.distillation
    factors = _ease(events, catalogue, distillation) if distillation.ease else None
    taught = bool(teachers) or factors is not None
    taught_by = Teachers.read(teachers, untrained, distillation.share, factors) if taught else None
    contrast = _contrast(events, catalogue, config.contrast) if config.contrast.weight else None
    task = Retrieval(model, config, items, len(catalogue), sampler, replicas, taught_by, contrast)
    check, counting, users = validation(config, data, tables, splits, replicas) if validated else (None, None, None)
    return Training(task, replicas.source(examples), check, len(examples), counting, users)


def _contrast(events: Events, catalogue: ItemRanks, settings: ContrastConfig) -> Contrast:
    say(f"counting what is taken together in {len(events):,} events")
    return Contrast.of(events, catalogue, settings.weight, settings.window)


def _ease(events: Events, catalogue: ItemRanks, settings: DistillationConfig) -> Factors:
    """EASE of the training events, its scores times their weight."""
    shape = len(events.offsets) - 1, len(catalogue)
    say(f"fitting EASE on {len(events):,} events")
    users, items = ease_factors(events.user, catalogue.ranks[events.item], shape, settings.ease_penalty)
    return Factors(users, items * np.float32(settings.ease))
