"""The finals: trains the best trials for longer, with a falling rate and with other seeds, until one is chosen.

Returns `Finalist`s, each with one run per seed. A trial's share is too short to show how far a recipe gets, and the
best of many trials on one sample of users is partly luck; other seeds show how much.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

from pipelines.console import Advance, amount, say
from pipelines.training.prior import DECIMALS
from pipelines.tuning.search import ROOM, Search
from pipelines.tuning.study import FinishedTrial
from pipelines.tuning.traits import Raw
from pipelines.tuning.trial import Run, Share, train
from serving.files.staging import remove

LONGER = ((2.5, 3), (5.0, 1))  # (shares, how many of the best that had not converged)
SURVIVORS = (4, 3, 2, 2)  # finalists of each round of seeds
LUCK = 1.5  # a converged trial may cost this many times as much with another seed
MOST_TRAININGS = sum(count for _, count in LONGER) + 1 + sum(SURVIVORS)  # one with a falling rate
WEIGHTS = ("now", "past", "length")  # of a prior
LEAST_FALLING = 4  # fewest epochs for which a falling rate makes sense


@dataclass(frozen=True)
class Finalist:
    """A trial and the runs that show how good it is.

    Attributes:
        tried: the trial.
        falling: epochs over which its rate falls to zero; 0 for a constant rate.
        runs: one per seed, the search's own first.
    """

    tried: FinishedTrial
    falling: int
    runs: tuple[Run, ...]

    @property
    def curve(self) -> list[float]:
        """The metric after each epoch, averaged over the seeds."""
        length = min(len(run.epochs) for run in self.runs)
        return [fmean(run.epochs[place].metric for run in self.runs) for place in range(length)]

    @property
    def best_epoch(self) -> int:
        """How many epochs it should train: with a falling rate all of them."""
        curve = self.curve
        return len(curve) if self.falling else curve.index(max(curve)) + 1

    @property
    def value(self) -> float:
        """The metric at the best epoch."""
        return self.curve[self.best_epoch - 1]

    def ahead(self, other: "Finalist") -> bool:
        """Whether it is better on average over the seeds that both have."""
        both = min(len(self.runs), len(other.runs))
        return replace(self, runs=self.runs[:both]).value > replace(other, runs=other.runs[:both]).value

    @property
    def rising(self) -> bool:
        """Whether its best epoch is the last one it could train."""
        ends = any(run.end != "converged" for run in self.runs)
        return not self.falling and ends and self.best_epoch == len(self.curve)

    @property
    def train_seconds(self) -> float:
        """Median seconds of an epoch's steps."""
        return median(each.train_seconds for run in self.runs for each in run.epochs)

    @property
    def seconds(self) -> float:
        """Median seconds of an epoch with its validation."""
        return median(each.seconds for run in self.runs for each in run.epochs)

    @property
    def norm_exponent(self) -> float:
        """The norm exponent at the best epoch, averaged over the seeds."""
        return round(fmean(run.epochs[self.best_epoch - 1].norm_exponent for run in self.runs), 2)

    @property
    def prior(self) -> dict[str, Any] | None:
        """The prior at the best epoch, its weights averaged over the seeds; None if the data have no times."""
        priors = [run.epochs[self.best_epoch - 1].prior for run in self.runs]
        there = [each for each in priors if each is not None]
        if not there:
            return None
        # Another sample of validation users may choose another counting, whose weights are not comparable.
        there = [each for each in there if _counting(each) == _counting(there[0])]
        return there[0] | {key: round(fmean(each[key] for each in there), DECIMALS) for key in WEIGHTS}


def _counting(prior: dict[str, Any]) -> tuple[Any, Any]:
    return prior.get("days"), prior.get("users_alike")


class Finals:
    """The finals of a search.

    Args:
        search: a finished search.
        growth: examples of the final training per example of a trial.
    """

    def __init__(self, search: Search, growth: float) -> None:
        self.search, self.growth = search, growth

    def best(self) -> Finalist | None:
        """The best so far, without further training; None if no trial has finished."""
        return best_of(self._all())

    def run(self, advance: Advance) -> None:
        """Trains as many of the finals as fit the budget, at most `MOST_TRAININGS`; calls `advance` for each."""
        self._advance = advance
        for shares, count in LONGER:
            unfinished = [each for each in self._all() if not each.falling and each.runs[0].end == "share"]
            for each in sorted(unfinished, key=lambda each: -each.runs[0].value)[:count]:
                self._longer(each, shares)
        best = self.best()
        if best is not None and not best.falling and best.best_epoch >= LEAST_FALLING:
            self._train(replace(best, falling=best.best_epoch), seed=0)
        for seed, survivors in enumerate(SURVIVORS, start=1):
            # Among those with equally many seeds so far, the best get one more.
            level = [each for each in self._all() if len(each.runs) >= seed]
            for each in sorted(level, key=lambda each: -fmean(run.value for run in each.runs[:seed]))[:survivors]:
                if len(each.runs) == seed:
                    self._train(each, seed)

    def _all(self) -> list[Finalist]:
        """The best trials and their variants, with their stored runs."""
        found = []
        for tried in self.search.trials.ranked()[: SURVIVORS[0] + 2]:
            first = self._kept(tried.number, 0, 0)
            found.append(self._with_seeds(Finalist(tried, 0, (first or tried.run,))))
            falling = self.search.trials.recall(f"falling {tried.number}")
            run = self._kept(tried.number, falling, 0) if falling else None
            if run is not None:
                found.append(self._with_seeds(Finalist(tried, int(falling), (run,))))
        return [each for each in found if all(run.epochs for run in each.runs)]

    def _with_seeds(self, finalist: Finalist) -> Finalist:
        runs = list(finalist.runs)
        while (run := self._kept(finalist.tried.number, finalist.falling, len(runs))) is not None:
            runs.append(run)
        return replace(finalist, runs=tuple(runs))

    def _kept(self, number: int, falling: int, seed: int) -> Run | None:
        raw: Any = self.search.trials.recall(f"final {number} {falling} {seed}")
        return None if raw is None else Run.from_json(raw)

    def _longer(self, finalist: Finalist, shares: float) -> None:
        """Resumes a trial where it was stopped."""
        search, run = self.search, finalist.runs[0]
        most = min(shares * search.share, self.most_cost(finalist))
        if most <= run.cost or (search.clock.timed and most - run.cost > search.clock.left()):
            return
        raw = search.sections(finalist.tried.family, finalist.tried.point)
        directory = search.directory(finalist.tried.number)
        run = train(search.config(raw), search.data, directory, Share(most, search.clock))
        self._advance(1)
        self._finish(finalist, 0, run)

    def _train(self, finalist: Finalist, seed: int) -> None:
        """Trains a finalist from scratch, with another seed or a falling rate."""
        search = self.search
        most = max(run.cost for run in finalist.runs)
        if search.clock.timed and most > search.clock.left():
            return
        raw = self.settings(finalist)
        if finalist.falling:
            raw["train"] = raw["train"] | {"epochs": finalist.falling, "patience": finalist.falling}
            search.trials.remember(f"falling {finalist.tried.number}", finalist.falling)
        config = search.config(raw)
        config = config.model_copy(update={"train": config.train.model_copy(update={"seed": config.train.seed + seed})})
        directory = search.work / "trials" / f"{finalist.tried.number:04}-{finalist.falling}-{seed}"
        # A falling rate ends by itself; a converged trial may take a little longer with another seed.
        longest = math.inf if finalist.falling else most * (LUCK if finalist.runs[0].end == "converged" else 1.0)
        run = train(config, search.data, directory, Share(longest, search.clock))
        self._advance(1)
        remove(directory)
        if run.end in ("converged", "share"):
            self._finish(finalist, seed, run)

    def _finish(self, finalist: Finalist, seed: int, run: Run) -> None:
        number, falling, search = finalist.tried.number, finalist.falling, self.search
        search.trials.remember(f"final {number} {falling} {seed}", run.as_json())
        kind = f"rate falling over {amount(falling, 'epochs')}, " if falling else ""
        say(
            f"final: trial {number}, {kind}seed {search.asked.seed + seed}: {search.asked.metric} {run.value:.4f} "
            f"at epoch {run.best_epoch} of {len(run.epochs)}"
        )

    def settings(self, finalist: Finalist) -> Raw:
        """Returns a finalist's recipe sections."""
        raw = self.search.sections(finalist.tried.family, finalist.tried.point)
        if finalist.falling:
            raw["optimizer"] = raw["optimizer"] | {"schedule": "cosine"}
        return raw

    def epochs_that_fit(self, finalist: Finalist, *, chosen: bool, refit: bool) -> int:
        """Returns how many epochs the recipe may train.

        Args:
            finalist: provides the seconds per epoch.
            chosen: training chooses the epoch on validation.
            refit: training uses train + validation, after choosing the epoch if it does.
        """
        epoch_s = finalist.seconds if chosen else 0.0
        if refit or not chosen:
            epoch_s += finalist.train_seconds * (self.growth if refit else 1.0)
        return max(1, int(ROOM * self.search.asked.train_s / epoch_s))

    def most_cost(self, finalist: Finalist) -> float:
        """The highest cost of a run that is no longer than the recipe's training."""
        fits = self.epochs_that_fit(finalist, chosen=self.growth == 1.0, refit=self.growth > 1.0)
        return fits * (finalist.seconds if self.search.clock.timed else 1.0)


def best_of(finalists: Sequence[Finalist]) -> Finalist | None:
    """Returns the best, comparing each pair on the seeds both have: a better one may have lacked time for more."""
    best = None
    # Those with more seeds come first: they were the best so far, and their mean owes less to luck.
    for each in sorted(finalists, key=lambda each: (-len(each.runs), -each.value)):
        if best is None or each.ahead(best):
            best = each
    return best
