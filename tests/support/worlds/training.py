"""A world with a known answer, small enough to train any loss on in a second, and the trainer of a recipe on it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from towers.config.features import IdFeature
from towers.config.recipe import Config, parse_config
from towers.data.events import Events
from towers.data.examples import Examples
from towers.data.feature_tables import FeatureTables
from towers.data.impressions import NEVER, Impressions
from towers.data.item_ranks import ItemFeatures, ItemRanks
from towers.data.sequence_examples import SequenceExamples
from towers.evaluation.validation import Validation
from towers.features.encoder import FeatureSpec
from towers.model.two_tower import TwoTower
from towers.samplers.registry import build_sampler
from towers.tasks.contrast import Contrast
from towers.tasks.retrieval import Retrieval
from towers.tasks.teachers import Factors, Teachers
from towers.training.trainer import Trainer

USERS, ITEMS, GROUPS = 60, 30, 3


def group_world() -> tuple[Events, FeatureTables, Validation]:
    """Users of group g take items of group g: nine of the ten in training, the tenth is held out.

    Weights are grades 1 to 3; they say nothing of the groups.
    """
    taken = np.array([[i for i in range(ITEMS) if i % GROUPS == u % GROUPS] for u in range(USERS)])
    held = np.arange(USERS) // GROUPS % taken.shape[1]
    train = np.array([np.delete(items, h) for items, h in zip(taken, held, strict=True)], np.int32)
    offsets = np.arange(USERS + 1, dtype=np.int64) * train.shape[1]
    user, item = np.repeat(np.arange(USERS, dtype=np.int32), train.shape[1]), train.ravel()
    events = Events(user, item, offsets, weight=(1 + (user + item // GROUPS) % 3).astype(np.float32))
    tables = FeatureTables(
        {"user_id": np.arange(1, USERS + 1, dtype=np.int32)}, {"item_id": np.arange(1, ITEMS + 1, dtype=np.int32)}
    )
    check = Validation(
        dict(tables.users),
        dict(tables.items),
        offsets,
        item,
        np.arange(USERS + 1),
        taken[np.arange(USERS), held].astype(np.int32),
        "recall@1",
    )
    return events, tables, check


def shown_of_other_groups(events: Events, number: int) -> Impressions | None:
    """Each user was shown one item in two of the other groups, at no known time."""
    if not number:
        return None
    shown = [[item for item in range(user % 2, ITEMS, 2) if (item - user) % GROUPS] for user in range(USERS)]
    ends = np.cumsum([len(items) for items in shown])
    return Impressions(
        np.concatenate(shown).astype(np.int32),
        np.full(ends[-1], NEVER),
        (ends - [len(items) for items in shown])[events.user],
        ends[events.user],
        nearest=False,
        number=number,
    )


def recipe(**sections: dict[str, Any]) -> Config:
    """A recipe for that world; `sections` replace keys of its own."""
    own: dict[str, dict[str, Any]] = {
        "model": {"dimension": 8},
        "optimizer": {"learning_rate": 0.05},
        "train": {"batch_size": 64, "checkpoint_steps": 3, "patience": 99, "seed": 1},
    }
    return parse_config(own | {name: own.get(name, {}) | keys for name, keys in sections.items()})


def towers_of(config: Config, users: int = USERS, items: int = ITEMS) -> TwoTower:
    """Towers over nothing but ids."""
    return TwoTower(
        [FeatureSpec("user_id", IdFeature(kind="id"), size=users, table="u")],
        [FeatureSpec("item_id", IdFeature(kind="id"), size=items, table="i")],
        config,
    )


def task_of(
    config: Config,
    events: Events,
    tables: FeatureTables,
    towers: TwoTower | None = None,
    teachers: Sequence[TwoTower] = (),
    factors: Factors | None = None,
) -> tuple[Retrieval, Examples]:
    """The retrieval task of a recipe, and its batches; without `towers` over nothing but ids."""
    catalogue = ItemRanks.of(events.item, len(tables.items["item_id"]))
    size = config.train.batch_size
    # Over a sequence, batches of whole histories.
    kind = SequenceExamples if tables.sequences else Examples
    examples = kind(
        events,
        tables,
        catalogue,
        size,
        seed=config.train.seed,
        positives=config.loss.positives,
        known=getattr(config.loss, "known_positives", 0),
        impressions=shown_of_other_groups(events, getattr(config.loss, "impressions", 0)),
    )
    seen = config.train.epochs * examples.steps * size
    sampler = build_sampler(config.negatives, catalogue.counts, size, seen) if config.negatives is not None else None
    if towers is None:
        towers = towers_of(config, len(tables.users["user_id"]), len(tables.items["item_id"]))
    items = ItemFeatures(tables.items, catalogue)
    taught_by = Teachers(teachers, config.distillation.share, factors) if teachers or factors else None
    weight, window = config.contrast.weight, config.contrast.window
    contrast = Contrast.of(events, catalogue, weight, window) if weight else None
    task = Retrieval(towers, config, items, len(catalogue), sampler, teachers=taught_by, contrast=contrast)
    return task, examples


def trainer(directory: Path, *, validate: bool = True, **sections: dict[str, Any]) -> Trainer:
    """Trains the group world by a recipe's `sections`."""
    events, tables, check = group_world()
    config = recipe(**sections)
    task, examples = task_of(config, events, tables)
    return Trainer(task, examples, config.optimizer, config.train, directory, check if validate else None)
