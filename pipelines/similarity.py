"""`task = "similarity"` over a data set: its checks, and what its training is made of.

In: a settled recipe and a data set. Out: the towers, their task, batches and validation, or a `ConfigError`.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from pipelines.dataset import Dataset
from pipelines.labels import VALIDATION, Labels, questions, read_labels
from pipelines.popularity import Counting
from pipelines.tables import build_tables
from pipelines.vocabulary import learn_features
from towers.catalogue import Catalogue, ItemFeatures
from towers.config import Config
from towers.events import Events, Int32s
from towers.model import TwoTower
from towers.relations import ByClass, counts
from towers.similar_items import batches
from towers.similarity import NeighbourValidation, Similarity
from towers.tables import Tables
from towers.training_parts import Batches, Task, Validation
from towers.untrained import silence_untrained


class Training(NamedTuple):
    """What `pipelines.stage` trains, of either task.

    Attributes:
        task: the towers with their loss.
        batches: of one epoch after the other.
        validation: what chooses the epoch; None trains them all.
        examples: how many there are.
        counting: which popularity the prior counts; None without a prior.
        users: numbers of the held-out users of `validation`; None where it asks about items.
    """

    task: Task
    batches: Batches
    validation: Validation | None
    examples: int
    counting: Counting | None = None
    users: Int32s | None = None


def similarity_training(config: Config, data: Dataset, directory: Path) -> Training:
    """Builds the training of a settled recipe; writes what the features learnt to `directory`.

    Raises:
        ConfigError, DataError: as `pipelines.labels.read_labels`.
    """
    labels = read_labels(config, data)
    items, relation = labels.training()
    # To the features an example is an event: an id that never trains gets no row, a row that none reads stays silent.
    events = Events(np.zeros(len(items), np.int32), items, np.array([0, len(items)], np.int64))
    learnt = learn_features(config, data, events, None, directory)
    model = TwoTower(learnt.query, learnt.candidate, config)
    tables = build_tables(model, data, None)
    silence_untrained(model, tables, events)
    features = ItemFeatures(tables.items, Catalogue.of(items, data.manifest.items))
    against = config.similarity.against
    centres = int(relation.labels.shape[1]) if against == "centres" and isinstance(relation, ByClass) else 0
    task = Similarity(model, config, features, centres)
    order = batches(relation, against, config.train.batch_size, config.train.seed)
    return Training(task, order, _validation(config, labels, tables), relation.examples())


def _validation(config: Config, labels: Labels, tables: Tables) -> NeighbourValidation | None:
    """The validation items, or a seeded sample, among the training items and themselves; None without held-out ones."""
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
