"""The validation of `task = "retrieval"`: held-out users, and the popularity for the prior and for new users."""

import numpy as np

from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import heldout, heldout_users
from pipelines.dataset.popularity import Counting
from pipelines.training.prior import choose_counting, shares_of
from towers.config.recipe import Config
from towers.data.events import Int32s
from towers.data.feature_tables import FeatureTables
from towers.evaluation.validation import Validation
from towers.ops.replicas import ALONE, Replicas


def validation(
    config: Config,
    data: Dataset,
    tables: FeatureTables,
    splits: tuple[str, ...] = ("train",),
    replicas: Replicas = ALONE,
) -> tuple[Validation | None, Counting | None, Int32s | None]:
    """Builds the validation on the held-out users, or on a seeded sample if there are more than the recipe allows.

    Returns it with the counting of the prior, None without a prior, and the users' numbers. All three are None if no
    user has a target, because every validation event repeats a training event.
    """
    users = heldout_users(data, "valid")
    if not len(users):
        return None, None, None
    most = min(config.train.validation_users, len(users))
    rows = np.sort(np.random.default_rng(config.train.seed).choice(len(users), most, replace=False))
    held = heldout(data, "valid", users[rows])
    query = tables.of_users(held.users, held.seen_offsets, held.seen_items, held.seen_times, held.seen_types)
    counting = choose_counting(config, data, held, splits) if config.model.prior != "off" else None
    check = Validation(
        query,
        tables.items,
        held.seen_offsets,
        held.seen_items,
        held.target_offsets,
        held.target_items,
        config.train.metric,
        shares_of(data, splits, splits, counting or Counting()),
        replicas,
    )
    return check, counting, held.users
