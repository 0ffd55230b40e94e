"""A data set of `benchmarks.quality` with its protocol: what is fitted on what, and measured on whom.

In: the name of a set, the folder of the data. Out: its data set, the held-out users, the figures of a ranker.

The splits of papers (`gowalla`, `ml-1m-split`): settings chosen by fits on train, the figures of fits on train +
validation. Leave one out (`beauty`, `beauty-s3rec`): all fits are on train alone, while the history that the test asks
with includes the validation item, as that of our own model does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.harness.machine import ROOT, load
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import HeldOut, heldout
from pipelines.ingest import prepare
from pipelines.rankers.evaluate import USERS, Ranker
from pipelines.rankers.ranker import KNOWN
from towers.config.recipe import load_config
from towers.evaluation import metrics

VALIDATION_USERS, SEED = 5_000, 0  # of the validation sample


@dataclass(frozen=True)
class Set:
    """A set as our own benchmark has it.

    Attributes:
        events: its file or folder, in the folder of the data.
        format: of the events.
        recipe: of our model, from the root of the project; its `data` says how the events are split.
        result: name of our model's committed result.
        figures: what is measured; the first chooses the settings.
        refit: the figures are of fits on train + validation; otherwise on train.
    """

    events: str
    format: str
    recipe: str
    result: str
    figures: tuple[str, str]
    refit: bool


SPLITS, NEXT = ("recall@20", "ndcg@20"), ("ndcg@10", "hit_rate@10")  # the first is `train.metric` of our recipes
SETS = {
    "gowalla": Set("gowalla", "lightgcn", "towers/recipes/gowalla.toml", "quality_gowalla", SPLITS, True),
    "ml-1m-split": Set("ml-1m-split", "lightgcn", "towers/recipes/ml-1m.toml", "quality_ml_1m_split", SPLITS, True),
    "beauty": Set("beauty/beauty.txt", "pairs", "towers/recipes/beauty.toml", "beauty", NEXT, False),
    "beauty-s3rec": Set(
        "beauty-s3rec/sequences.txt", "sequences", "towers/recipes/beauty.toml", "beauty_s3rec", NEXT, False
    ),
}


@dataclass(frozen=True)
class Task:
    """A set that is ready to be measured.

    Attributes:
        data: the data set.
        figures: names such as ``recall@20``; the first chooses the settings.
        refit: see `Set`.
        valid: the users of the validation sample; known is train.
        test: every user of the test; known are train and validation.
    """

    data: Dataset
    figures: tuple[str, ...]
    refit: bool
    valid: HeldOut
    test: HeldOut

    @classmethod
    def of(cls, data: Dataset, figures: Sequence[str], *, refit: bool) -> "Task":
        """Reads the held-out users."""
        valid = heldout(data, "valid")
        if len(valid.users) > VALIDATION_USERS:
            chosen = np.random.default_rng(SEED).choice(len(valid.users), VALIDATION_USERS, replace=False)
            valid = valid.of_queries(np.sort(chosen))
        return cls(data, tuple(figures), refit, valid, heldout(data, "test"))

    @property
    def fitted_on(self) -> tuple[str, ...]:
        """The splits of the fits that are measured on the test."""
        return KNOWN if self.refit else KNOWN[:1]

    @property
    def k(self) -> int:
        """The length of the lists."""
        return max(int(name.partition("@")[2]) for name in self.figures)

    def validated(self, rank: Ranker) -> float:
        """The figure that chooses, on the validation sample."""
        return figures_of(rank, self.valid, self.figures[:1])[self.figures[0]]

    def tested(self, rank: Ranker) -> dict[str, float]:
        """The figures on the test."""
        return figures_of(rank, self.test, self.figures)


def figures_of(rank: Ranker, held: HeldOut, names: Sequence[str]) -> dict[str, float]:
    """Means over users of some metrics of one ranker, each list made once.

    Args:
        rank: lists of at least as many places as the metrics count.
        held: the users.
        names: ``METRIC@K`` with a metric of `towers.evaluation.metrics`.
    """
    sums = dict.fromkeys(names, 0.0)
    for start in range(0, len(held.users), USERS):
        part = held.of_queries(np.arange(start, min(start + USERS, len(held.users))))
        hits = metrics.hits(rank(part), part.target_offsets, part.target_items)
        for name in names:
            metric, _, k = name.partition("@")
            sums[name] += float(metrics.METRICS[metric](hits, np.diff(part.target_offsets), int(k)).sum())
    return {name: total / len(held.users) for name, total in sums.items()}


def prepared(chosen: Set, data: Path, work: Path) -> Dataset:
    """The data set, split as our recipe says; kept in `work`."""
    out = work / f"dataset_{chosen.result}"
    if not out.exists():
        prepare.run(load_config(ROOT / chosen.recipe).data, data / chosen.events, out, format=chosen.format)
    return Dataset.open(out)


def ours(chosen: Set) -> dict[str, float]:
    """The mean over seeds that our model's committed result has of each figure, all chosen on validation."""
    figures = load(chosen.result)["figures"]
    return {name: figures.get("validation", figures)[name]["mean"] for name in chosen.figures}


def reported_of(chosen: Set, rankers: Sequence[str]) -> dict[str, dict[str, float]]:
    """The figures of some rankers in that result, from `towers report`."""
    runs = load(chosen.result)["runs"]
    metrics_of = (runs["validation"] if isinstance(runs, dict) else runs)[0]["metrics"]
    return {ranker: {name: metrics_of[ranker][name]["value"] for name in chosen.figures} for ranker in rankers}
