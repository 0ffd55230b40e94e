"""Is the model better than the strongest baseline? One sentence, with the paired interval of the difference.

In: figures of the model and of the baselines for the same users. Out: a `Verdict`, or for the end of a training its
sentence on validation.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.dataset import Dataset
from pipelines.evaluation.baselines import baselines_of
from pipelines.evaluation.blocks import per_user
from pipelines.evaluation.intervals import Estimate, bootstrap
from pipelines.evaluation.rankers import EXACT
from pipelines.heldout import heldout
from towers.events import Int32s

BETTER, MAYBE_BETTER, MAYBE_WORSE, WORSE = "proven better", "not proven better", "not proven worse", "worse"


@dataclass(frozen=True)
class Verdict:
    """The model beside the strongest baseline.

    Attributes:
        metric: for example ``"recall@20"``.
        value: the model's.
        baseline: name of the strongest baseline.
        baseline_title: what a person calls it.
        baseline_value: its value.
        difference: the model less the baseline, paired by user.
    """

    metric: str
    value: float
    baseline: str
    baseline_title: str
    baseline_value: float
    difference: Estimate

    @property
    def below(self) -> bool:
        """Whether the model is below the baseline."""
        return self.difference["value"] < 0

    @property
    def conclusion(self) -> str:
        """What the interval says: it lies above 0, below 0, or holds 0."""
        if self.difference["low"] > 0:
            return BETTER
        if self.difference["high"] < 0:
            return WORSE
        return MAYBE_WORSE if self.below else MAYBE_BETTER

    @property
    def text(self) -> str:
        """One line for a person; a difference below 0 is told as how far the model is below."""
        value, low, high = (self.difference[name] for name in ("value", "low", "high"))
        if self.below:
            value, low, high = -value, -high, -low
        # No "-0.0000".
        value, low, high = (round(each, 4) + 0.0 for each in (value, low, high))
        side = "below" if self.below else "above"
        return (
            f"{self.metric} {self.value:.4f}: {side} the strongest baseline ({self.baseline_title}: "
            f"{self.baseline_value:.4f}) by {value:.4f} ({low:.4f} to {high:.4f}): {self.conclusion}"
        )

    def content(self) -> dict[str, Any]:
        """What `report.json` says under `verdict`."""
        return asdict(self) | {"conclusion": self.conclusion, "text": self.text}


def report_verdict(content: dict[str, Any], metric: str, strongest: str) -> Verdict:
    """The verdict of a report.

    Args:
        content: its `metrics`, `differences` and `baselines`.
        metric: for example ``"recall@20"``.
        strongest: name of the strongest baseline.
    """
    metrics = content["metrics"]
    return Verdict(
        metric=metric,
        value=metrics[EXACT][metric]["value"],
        baseline=strongest,
        baseline_title=content["baselines"][strongest]["title"],
        baseline_value=metrics[strongest][metric]["value"],
        difference=content["differences"][f"{EXACT}_minus_{strongest}"][metric],
    )


def validation_verdict(data: Dataset, users: Int32s, model_values: NDArray[np.floating[Any]], metric: str) -> str:
    """The sentence for the end of a training: the model beside the strongest baseline, on validation.

    The baselines are fitted on the training events, their settings chosen on these very validation events, and so is
    which of them is strongest: the comparison favours the baseline a little.

    Args:
        data: the data set.
        users: numbers of the users that were asked.
        model_values: [Q] what the model reached for each, in the order of ``heldout(data, "valid", users)``.
        metric: ``recall@k``, ``ndcg@k``, ``precision@k``, ``hit_rate@k`` or ``mrr@k``.

    Raises:
        ValueError: another metric, no user with a validation target, or another number of values than users with one.
    """
    name, _, depth = metric.partition("@")
    if not depth.isdecimal() or not int(depth):
        raise ValueError(f"metric: {metric!r}; expected NAME@K, for example 'recall@20'")
    held = heldout(data, "valid", users)
    if not len(held.users) or len(model_values) != len(held.users):
        raise ValueError(
            f"model_values: {len(model_values)} values for {len(held.users)} users with validation targets"
        )
    baselines = baselines_of(data, ("train",), int(depth))
    values = {EXACT: np.asarray(model_values, np.float64)} | {
        ranker: per_user(rank, held, name, int(depth)) for ranker, rank in baselines.rankers.items()
    }
    strongest = max(baselines.rankers, key=lambda ranker: values[ranker].mean())
    drawn = bootstrap(np.stack([values[EXACT], values[strongest]], axis=1), (EXACT, strongest))
    return Verdict(
        metric=metric,
        value=float(values[EXACT].mean()),
        baseline=strongest,
        baseline_title=str(baselines.settings[strongest]),
        baseline_value=float(values[strongest].mean()),
        difference=drawn.difference(EXACT, strongest),
    ).text
