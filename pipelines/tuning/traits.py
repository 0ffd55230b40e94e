"""What a data set is like, as far as the search space depends on it."""

from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np

from pipelines.dataset.dataset import Dataset
from pipelines.dataset.derive_features import derive
from pipelines.dataset.manifest import DatasetManifest
from pipelines.dataset.popularity import has_windows
from pipelines.dataset.resolve_features import derived_query, of_event
from towers.config.features import WINDOW
from towers.config.recipe import Config

Raw = dict[str, Any]

MOST_PAIRS = 100_000_000  # of items taken together: every trial factorises them, with 5 GB at the peak
MOST_COUNTED = 500_000_000  # of events beside each other: every trial counts them, in up to half a minute
SMALL_CATALOGUE = 8_000  # most items that full softmax scores within the time of a step
DENSE = 100  # mean events per item above which popularity is well known and overfitting the greater risk
OWN_KINDS = ("id", "history")  # features that the families define themselves


@dataclass(frozen=True)
class Traits:
    """What the search needs to know about a data set.

    Attributes:
        timed: histories are the earlier events, in order.
        clock: times are points in time, not ranks, so windows of days make sense.
        few_pairs: few enough items are taken together, in timed data next to each other, for rows to start from that,
            and without times for any feature or contrast to count it.
        items: number of items.
        density: training events per item, without impressions.
        whole_users: whether a user may be one example: the fixed recipe says so, or the data are dense, the catalogue
            is small, nothing differs from event to event, and it names nothing that does, no loss, no optimizer.
        query, candidate: derived attribute and context features, as in a recipe.
    """

    timed: bool
    clock: bool
    few_pairs: bool
    items: int
    density: float
    whole_users: bool
    query: Raw
    candidate: Raw

    @classmethod
    def of(cls, data: Dataset, config: Config) -> "Traits":
        """Reads the manifest, events and attribute columns, less what the fixed recipe keeps from its features."""
        manifest, query = data.manifest, derived_query(config, data)
        sides = [
            {
                name: feature.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
                for name, feature in derived.items()
                if feature.kind not in OWN_KINDS
            }
            for derived in (query, derive(data, "candidate"))
        ]
        density = len(data.events("train")) / max(1, manifest.items)
        of_events = manifest.timed or any(of_event(name, query[name], data) for name in sides[0])
        return cls(
            timed=manifest.timed,
            clock=has_windows(data),
            few_pairs=_few_pairs(data),
            items=manifest.items,
            density=density,
            whole_users=config.loss.of_users
            or (density > DENSE and manifest.items <= SMALL_CATALOGUE and not of_events and not _fixed(config)),
            query=sides[0],
            candidate=sides[1],
        )


def _fixed(config: Config) -> bool:
    """Whether a recipe fixes what whole users do not go with, or what comes with them."""
    sections = config.model_fields_set & {"features", "loss", "sampler"}
    return bool(sections or config.contrast.weight) or fixes_rate(config) or config.train.differs("weighted")


def fixes_rate(config: Config) -> bool:
    """Whether a recipe fixes the optimizer, its rate or its decay, which are other ones for whole users."""
    return bool(config.optimizer.model_fields_set & {"name", "learning_rate", "weight_decay"})


def _few_pairs(data: Dataset) -> bool:
    """Whether few pairs of items are taken together: within the usual window, without an order by one user."""
    users = np.concatenate([data.events(split).user for split in ("train", "valid")])  # the final training has both
    taken = np.bincount(users).astype(np.int64)
    counted = int((taken * 2 * WINDOW if data.manifest.timed else taken**2).sum())
    return counted <= MOST_COUNTED and min(counted, data.manifest.items**2) <= MOST_PAIRS


def validation(manifest: DatasetManifest) -> str:
    """Says which events validate, for the user."""
    config, kind = manifest.config, manifest.split.kind
    share = f"{config.valid_share:.0%}"
    if kind == "global_time":
        return f"the {share} of all events before the test's, by time"
    if kind == "leave_last_out":
        return "each user's last event before the test's"
    if kind == "given" and config.validation == "last":
        return f"the last {share} of each user's events outside the test"
    files = [name for name in manifest.source.files if "valid" in PurePath(name).name.lower().split(".")]
    if kind == "given" and files and config.validation in ("auto", "given"):
        return f"those of {files[0]}"
    return f"a random {share} of the events{' outside the test' if kind == 'given' else ''}"
