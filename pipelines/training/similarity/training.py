"""Builds the training of `task = "similarity"`: towers, task, batches and validation."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from pipelines.console import Advance, no_bar
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.feature_lookup import build_tables
from pipelines.dataset.popularity import Counting
from pipelines.dataset.vocabulary import learn_features
from pipelines.training.similarity.labels import VALIDATION, Labels, questions, read_labels
from towers.config.margin_losses import MOST_TRIPLETS, Triplet
from towers.config.recipe import Config
from towers.data.events import Events, Int32s
from towers.data.feature_tables import FeatureTables
from towers.data.item_ranks import ItemFeatures, ItemRanks
from towers.data.item_relations import ByClass, counts
from towers.data.similarity_examples import batches
from towers.errors import ConfigError
from towers.model.two_tower import TwoTower
from towers.model.untrained_rows import zero_untrained_rows
from towers.ops.replicas import ALONE, Replicas
from towers.tasks.similarity import NeighbourValidation, Similarity
from towers.training.protocols import Batches, Task, Validation


class Training(NamedTuple):
    """What `pipelines.training.stage` trains, for either task.

    Attributes:
        task: the towers with their loss.
        batches: the batches of each epoch.
        validation: chooses the epoch; None trains all epochs.
        examples: number of examples.
        counting: the popularity that the prior counts; None without a prior.
        users: numbers of the held-out users of `validation`; None if it evaluates items.
    """

    task: Task
    batches: Batches
    validation: Validation | None
    examples: int
    counting: Counting | None = None
    users: Int32s | None = None


def similarity_training(
    config: Config, data: Dataset, directory: Path, advance: Advance = no_bar, replicas: Replicas = ALONE
) -> Training:
    """Builds the training of a resolved recipe; writes what the features learnt to `directory`.

    Raises:
        ConfigError, DataError: as `pipelines.training.similarity.labels.read_labels`.
    """
    labels = read_labels(config, data)
    items, relation = labels.training()
    # For the features each example is an event: ids that never train get no row, and rows that none reads stay silent.
    events = Events(np.zeros(len(items), np.int32), items, np.array([0, len(items)], np.int64))
    learnt = learn_features(config, data, events, None, directory, advance)
    model = TwoTower(learnt.query, learnt.candidate, config)
    tables = build_tables(model, data, None, advance=advance)
    zero_untrained_rows(model, tables, events)
    features = ItemFeatures(tables.items, ItemRanks.of(items, data.manifest.items))
    against = config.similarity.against
    centres = int(relation.labels.shape[1]) if against == "centres" and isinstance(relation, ByClass) else 0
    if centres and isinstance(relation, ByClass):
        _refuse_large_triplets(config, relation, centres)
    task = Similarity(model, config, features, centres, replicas)
    train = config.train
    order = batches(relation, against, train.batch_size, train.seed, replicas.rank, replicas.count)
    return Training(task, replicas.source(order), _validation(config, labels, tables), relation.examples())


def _refuse_large_triplets(config: Config, relation: ByClass, centres: int) -> None:
    loss, batch = config.loss, min(config.train.batch_size, relation.examples())
    if not isinstance(loss, Triplet) or loss.mining == "hardest":
        return
    classes = int(np.diff(relation.labels.indptr).max(initial=1))
    most = MOST_TRIPLETS**3 // (classes * centres)
    if batch > most:
        raise ConfigError(
            f"train.batch_size: loss.mining = {loss.mining!r} compares the classes of each item, up to {classes:,}, "
            f"with all {centres:,}: at most {most:,} items, or loss.mining = 'hardest'; got {batch:,}"
        )


def _validation(config: Config, labels: Labels, tables: FeatureTables) -> NeighbourValidation | None:
    """Ranks a seeded sample of validation items against training and validation items; None without held-out items."""
    if not config.similarity.holdout_share:
        return None
    candidates, asked = questions(labels, VALIDATION)
    most = min(config.train.validation_users, len(asked))
    asked = np.sort(np.random.default_rng(config.train.seed).choice(asked, most, replace=False))
    numbers = labels.items[candidates]
    return NeighbourValidation(
        {name: rows[numbers] for name, rows in tables.items.items()},
        np.searchsorted(candidates, asked).astype(np.int64),
        labels.relation.only(candidates),
        counts(labels.relation, asked, candidates),
        config.train.metric,
    )
