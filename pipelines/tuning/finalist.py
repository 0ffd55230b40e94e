"""What the finals plan and what they compare: a trial of the search with the runs that show how good it is."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from optuna.trial import FrozenTrial, Trial
from pydantic import BaseModel

from pipelines.tuning.study import PLAN, Tried
from pipelines.tuning.training import Run


class Plan(BaseModel, frozen=True):
    """A training of the finals.

    Attributes:
        of: the number of the trial whose recipe it trains.
        directory: of its checkpoints.
        most: what it may cost.
        longer: shares up to which it resumes the trial; 0 from scratch.
        seed: adds to the search's.
        falling: epochs over which the rate falls to zero; 0 for a constant rate, and as many as it may train.
    """

    of: int
    directory: str
    most: float
    longer: float = 0.0
    seed: int = 0
    falling: int = 0


def plan_of(trial: FrozenTrial | Trial) -> Plan:
    """Returns the plan of a trial of the finals."""
    return Plan.model_validate(trial.user_attrs[PLAN])


@dataclass(frozen=True)
class Finalist:
    """A trial and the runs that show how good it is.

    Attributes:
        tried: the trial.
        falling: epochs over which its rate falls to zero; 0 for a constant rate.
        runs: one per seed, the search's own first.
    """

    tried: Tried
    falling: int
    runs: tuple[Run, ...]

    @property
    def curve(self) -> list[float]:
        """The criterion after each epoch, averaged over the seeds."""
        epochs = zip(*(run.epochs for run in self.runs), strict=False)
        return [fmean(each.criterion for each in same) for same in epochs]

    @property
    def best_epoch(self) -> int:
        """How many epochs it should train: with a falling rate all of them."""
        curve = self.curve
        return len(curve) if self.falling else curve.index(max(curve)) + 1

    @property
    def value(self) -> float:
        """The metric after the best epoch, averaged over the seeds."""
        return fmean(run.epochs[self.best_epoch - 1].metric for run in self.runs)

    @property
    def rising(self) -> bool:
        """Whether its best epoch is the last one it could train."""
        ends = any(run.end != "converged" for run in self.runs)
        return not self.falling and ends and self.best_epoch == len(self.curve)

    def at(self, seeds: int) -> float:
        """Returns its value with the first seeds alone."""
        return replace(self, runs=self.runs[:seeds]).value

    def epoch_s(self, growth: float, *, validated: bool) -> float:
        """Seconds that an epoch of a recipe takes.

        Args:
            growth: examples of the final training per example of a trial; 1 if that training is the first one.
            validated: the first training chooses the epoch on validation.
        """
        epochs = [each for run in self.runs for each in run.epochs]
        first = median(each.seconds for each in epochs) if validated else 0.0
        final = growth * median(each.train_seconds for each in epochs) if growth > 1 or not validated else 0.0
        return first + final


def best_of(finalists: Sequence[Finalist]) -> Finalist | None:
    """Returns the best, comparing each pair on the seeds both have: a better one may have lacked time for more."""
    best = None
    # Those with more seeds come first: they were the best so far, and their mean owes less to luck.
    for each in sorted(finalists, key=lambda each: (-len(each.runs), -each.value)):
        if best is None or each.value > best.at(len(each.runs)):
            best = each
    return best
