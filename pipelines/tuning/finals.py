"""The finals: trains each family's best trial for longer, the best few with a falling rate and with other seeds.

A trial's share is too short to show how far a recipe gets, and the best of many trials on one sample of users is partly
luck; other seeds show how much. Each training is a trial of a second study in the search's file.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

from optuna import Study, TrialPruned
from optuna.trial import FrozenTrial, Trial

from pipelines.console import Advance, amount, say
from pipelines.training.prior import DECIMALS
from pipelines.tuning.search import ROOM, Search
from pipelines.tuning.study import ENDED, PLAN, RUN, Tried, open_study, run_of, waits
from pipelines.tuning.training import Epoch, Run, Share
from pipelines.tuning.traits import Raw
from serving.files.staging import remove

LONGER = ((2.5, None), (5.0, 1))  # (shares, how many of the most promising that had not converged; None for all)
SURVIVORS = (4, 3, 2, 2)  # finalists of each round of seeds
LUCK = 1.5  # a converged trial may cost this many times as much with another seed
# With a rate that falls to zero: how many of the best, for how many times their best epochs, and the fewest epochs for
# which that makes sense. Late epochs of a small rate go on improving where those of a constant one no longer do.
FALLING, STRETCH, LEAST_FALLING = 3, 1.5, 4
MOST_TRAININGS = 6 + FALLING + sum(SURVIVORS)  # the best and each family's for longer, one still longer


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
        """The metric after each epoch, averaged over the seeds."""
        return [fmean(each.metric for each in same) for same in zip(*(run.epochs for run in self.runs), strict=False)]

    @property
    def best_epoch(self) -> int:
        """How many epochs it should train: with a falling rate all of them."""
        curve = self.curve
        return len(curve) if self.falling else curve.index(max(curve)) + 1

    @property
    def value(self) -> float:
        """The metric at the best epoch."""
        return self.curve[self.best_epoch - 1]

    @property
    def rising(self) -> bool:
        """Whether its best epoch is the last one it could train."""
        ends = any(run.end != "converged" for run in self.runs)
        return not self.falling and ends and self.best_epoch == len(self.curve)

    @property
    def chosen(self) -> Epoch:
        """The best epoch of the first seed; what validation chose for the scores is the mean over the seeds."""
        first, *others = (run.epochs[self.best_epoch - 1] for run in self.runs)
        exponent = fmean(each.norm_exponent for each in (first, *others))
        prior = first.prior
        if prior is not None:
            # Another sample of validation users may choose another counting, whose weights are not comparable.
            alike = [each.prior for each in others if each.prior and counting(each.prior) == counting(prior)]
            prior = prior | {
                key: round(fmean(each[key] for each in (prior, *alike)), DECIMALS) for key in ("now", "past", "length")
            }
        return first.model_copy(update={"norm_exponent": exponent, "prior": prior})

    def ahead(self, other: "Finalist") -> bool:
        """Whether it is better on average over the seeds that both have."""
        both = min(len(self.runs), len(other.runs))
        return replace(self, runs=self.runs[:both]).value > replace(other, runs=other.runs[:both]).value

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


class Finals:
    """The finals of a search.

    Args:
        search: a finished search.
        growth: examples of the final training per example of a trial.
    """

    def __init__(self, search: Search, growth: float) -> None:
        self.search, self.growth = search, growth
        self.study = open_study(search.work / "study.db", "finals")

    def best(self) -> Finalist | None:
        """The best so far, without further training; None if no trial has finished."""
        return best_of(self._all())

    def run(self, advance: Advance) -> None:
        """Trains as many of the finals as fit the budget, at most `MOST_TRAININGS`; calls `advance` for each."""
        self._advance = advance
        if waits(self.study):
            self.study.optimize(self._objective, n_trials=1, callbacks=[self._tell])
        candidates = {each.number for each in self.search.candidates()}
        for shares, count in LONGER:
            entered = [each for each in self._all() if each.tried.number in candidates and not each.falling]
            short = [each for each in entered if each.runs[0].end == "share"]
            for each in sorted(short, key=lambda each: -each.runs[0].promise)[:count]:
                self._longer(each, shares)
        every = self._all()
        known = {each.tried.number for each in every if each.falling}
        for each in sorted((each for each in every if not each.falling), key=lambda each: -each.value)[:FALLING]:
            epochs = min(int(STRETCH * each.best_epoch), self._most_epochs(each))
            if epochs >= LEAST_FALLING and each.tried.number not in known:
                self._again(replace(each, falling=epochs), seed=0)
        for seed, survivors in enumerate(SURVIVORS, start=1):
            # Among those with equally many seeds so far, the best get one more.
            level = [each for each in self._all() if len(each.runs) >= seed]
            for each in sorted(level, key=lambda each: -fmean(run.value for run in each.runs[:seed]))[:survivors]:
                if len(each.runs) == seed:
                    self._again(each, seed)

    def epochs_that_fit(self, finalist: Finalist, *, validated: bool) -> int:
        """Returns how many epochs the recipe may train; see `Finalist.epoch_s`."""
        return max(1, int(ROOM * self.search.asked.train_s / finalist.epoch_s(self.growth, validated=validated)))

    def sections(self, tried: Tried, *, falling: bool) -> Raw:
        """Returns a trial's recipe sections, with a falling rate or as it was."""
        raw = self.search.sections(tried.family, tried.point)
        return raw | {"optimizer": raw["optimizer"] | {"schedule": "cosine"}} if falling else raw

    def _all(self) -> list[Finalist]:
        """The candidates, the best trials and their variants, with their stored runs."""
        kept: dict[int, dict[int, dict[int, Run]]] = defaultdict(lambda: defaultdict(dict))  # trial, falling, seed
        for each in self.study.get_trials(deepcopy=False, states=ENDED):
            plan, run = each.user_attrs[PLAN], run_of(each)
            if run.end in ("converged", "share") or (plan["longer"] and run.epochs):
                kept[plan["of"]][plan["falling"]][plan["seed"]] = run
        search, found = self.search, []
        for tried in {
            each.number: each for each in [*search.candidates(), *search.ranked()[: SURVIVORS[0] + 2]]
        }.values():
            for falling, runs in ({0: {0: tried.run} | kept[tried.number].pop(0, {})} | kept[tried.number]).items():
                found.append(Finalist(tried, falling, tuple(runs[seed] for seed in sorted(runs))))
        return found

    def _most_epochs(self, finalist: Finalist) -> int:
        """As many as the recipe may train."""
        return self.epochs_that_fit(finalist, validated=self.growth == 1.0)

    def _longer(self, finalist: Finalist, shares: float) -> None:
        """Resumes a trial where it was stopped."""
        run, tried = finalist.runs[0], finalist.tried
        fits = self._most_epochs(finalist) * run.cost / len(run.epochs)
        most = min(shares * max(self.search.share, tried.run.cost), fits)
        if most > run.cost:
            plan = {"seed": 0, "most": most, "directory": tried.directory, "longer": True}
            self._train(finalist, most - run.cost, plan, run)

    def _again(self, finalist: Finalist, seed: int) -> None:
        """Trains a finalist from scratch, with another seed or a falling rate."""
        cost = max(run.cost for run in finalist.runs)
        if finalist.falling:
            cost *= finalist.falling / max(len(run.epochs) for run in finalist.runs)
        # A falling rate ends by itself; a converged trial may take a little longer with another seed.
        most = math.inf if finalist.falling else cost * (LUCK if finalist.runs[0].end == "converged" else 1.0)
        directory = f"{finalist.tried.directory}-{finalist.falling}-{seed}"
        self._train(finalist, cost, {"seed": seed, "most": most, "directory": directory, "longer": False}, Run())
        remove(self.search.work / "trials" / directory)

    def _train(self, finalist: Finalist, cost: float, plan: dict[str, Any], before: Run) -> None:
        """Runs one training as a trial of the study, if its cost fits the time left."""
        if not self.search.clock.timed or cost <= self.search.clock.left():
            plan = plan | {"of": finalist.tried.number, "falling": finalist.falling}
            self.study.enqueue_trial({}, {PLAN: plan, RUN: before.model_dump()})
            self.study.optimize(self._objective, n_trials=1, callbacks=[self._tell])

    def _objective(self, trial: Trial) -> float:
        plan, search, leader = trial.user_attrs[PLAN], self.search, self.best()
        raw = self.sections(search.tried()[plan["of"]], falling=plan["falling"] > 0)
        if plan["falling"]:
            raw["train"] = raw["train"] | {"epochs": plan["falling"], "patience": plan["falling"]}

        def behind(run: Run, most: float) -> bool:
            trial.set_user_attr(RUN, run.model_dump())
            return plan["longer"] and leader is not None and run.promise < leader.value

        run = search.train(trial, raw, Share(plan["most"], search.clock, behind), plan["seed"])
        if not run.complete:
            raise TrialPruned
        return run.value

    def _tell(self, study: Study, trial: FrozenTrial) -> None:
        plan, run, asked = trial.user_attrs[PLAN], run_of(trial), self.search.asked
        self._advance(1)
        kind = f"rate falling over {amount(plan['falling'], 'epochs')}, " if plan["falling"] else ""
        say(
            f"final: trial {plan['of']}, {kind}seed {asked.seed + plan['seed']}: {asked.metric} {run.value:.4f} "
            f"at epoch {run.best_epoch} of {len(run.epochs)} ({run.end})"
        )


def counting(prior: dict[str, Any]) -> tuple[Any, Any]:
    """Returns what a prior counts."""
    return prior.get("days"), prior.get("users_alike")


def best_of(finalists: Sequence[Finalist]) -> Finalist | None:
    """Returns the best, comparing each pair on the seeds both have: a better one may have lacked time for more."""
    best = None
    # Those with more seeds come first: they were the best so far, and their mean owes less to luck.
    for each in sorted(finalists, key=lambda each: (-len(each.runs), -each.value)):
        if best is None or each.ahead(best):
            best = each
    return best
