"""The finals: trains the best trial and each family's most promising one for longer, and the best two with a rate that
falls to zero.

A trial's share is too short to show how far a recipe gets. Each training is a trial of one more study in the search's
file.
"""

import math
from dataclasses import dataclass
from statistics import median

from optuna.trial import Trial
from pydantic import BaseModel

from pipelines.console import Advance, amount, say
from pipelines.tuning.search import MOST_EPOCHS, ROOM, Search
from pipelines.tuning.study import PLAN, RUN, Tried, ended, open_study, run_of, waits
from pipelines.tuning.training import Run, Share
from pipelines.tuning.traits import Raw

LONGER, MOST_LONGER = 2.5, 5  # up to how many shares, and how many trials: the best and the most promising of families
# With a rate that falls to zero: how many of the best, for how many times their best epochs, and the fewest epochs for
# which that makes sense. Late epochs of a small rate go on improving where those of a constant one no longer do.
FALLING, STRETCH, LEAST_FALLING = 2, 1.5, 4
MOST_TRAININGS = MOST_LONGER + FALLING


class Plan(BaseModel, frozen=True):
    """A training of the finals.

    Attributes:
        of: the number of the trial whose recipe it trains.
        most: what it may cost.
        falling: epochs over which the rate falls to zero, from scratch; 0 to resume the trial.
    """

    of: int
    most: float = math.inf
    falling: int = 0


@dataclass(frozen=True)
class Finalist:
    """A trial and the run that shows how good it is.

    Attributes:
        tried: the trial.
        run: the longest with a constant rate, or that with a falling one.
        falling: epochs over which the rate falls to zero; 0 for a constant rate.
    """

    tried: Tried
    run: Run
    falling: int = 0

    @property
    def best_epoch(self) -> int:
        """How many epochs it should train: with a falling rate all of them."""
        return self.falling or self.run.best_epoch

    @property
    def value(self) -> float:
        """The metric after the best epoch."""
        return self.run.epochs[self.best_epoch - 1].metric

    @property
    def rising(self) -> bool:
        """Whether its best epoch is the last one it could train."""
        return not self.falling and self.run.end != "converged" and self.best_epoch == len(self.run.epochs)


class Finals:
    """The finals of a search that has ended; `growth` is of the final training: its examples per example of a trial."""

    def __init__(self, search: Search, growth: float) -> None:
        self.search, self.growth = search, growth
        self.study = open_study(search.work / "study.db", "finals")

    def best(self) -> Finalist | None:
        """The best so far, without further training; None if no trial has finished."""
        return max(self._all(), key=lambda each: each.value, default=None)

    def run(self, advance: Advance) -> None:
        """Trains as many of the finals as fit the budget, at most `MOST_TRAININGS`; calls `advance` for each."""
        self._advance = advance
        if waits(self.study):  # the process ended during it
            self._train_waiting()
        self._train_longer()
        fixed = self.search.fixed.raw
        # A fixed patience might end it before the rate has fallen.
        if "schedule" not in fixed.get("optimizer", {}) and "patience" not in fixed.get("train", {}):
            self._train_with_falling_rate()

    def epoch_s(self, finalist: Finalist, *, validated: bool) -> float:
        """Seconds that an epoch of its recipe takes, also in the final training; `validated` if the first one is."""
        epochs = finalist.run.epochs
        first = median(each.seconds for each in epochs) if validated else 0.0
        steps = median(each.train_seconds for each in epochs)
        return first + (self.growth * steps if self.growth > 1 or not validated else 0.0)

    def epochs_that_fit(self, finalist: Finalist, *, validated: bool) -> int:
        """Returns how many epochs the recipe may train; see `epoch_s`."""
        return max(1, int(ROOM * self.search.asked.train_s / self.epoch_s(finalist, validated=validated)))

    def sections(self, tried: Tried, *, falling: bool) -> Raw:
        """Returns a trial's recipe sections, with a falling rate or as it was."""
        raw = self.search.sections(tried.family, tried.point)
        if falling:
            raw["optimizer"]["schedule"] = "cosine"
        return raw

    def _trained(self) -> list[tuple[Plan, Run]]:
        return [(Plan.model_validate(each.user_attrs[PLAN]), run_of(each)) for each in ended(self.study)]

    def _all(self) -> list[Finalist]:
        """The candidates and the best trials with their stored runs, and those with a falling rate."""
        tried = {each.number: each for each in self.search.tried()}
        entered = (*self.search.candidates(), *self.search.ranked()[:FALLING])
        runs = {(each.number, 0): each.run for each in entered}
        for plan, run in self._trained():
            before = runs.get((plan.of, plan.falling), tried[plan.of].run)
            if run.end == "diverged":
                continue  # a longer training of the same recipe and seed would, too
            if run.end == "converged" if plan.falling else len(run.epochs) >= len(before.epochs):
                runs[plan.of, plan.falling] = run
        return [Finalist(tried[of], run, falling) for (of, falling), run in runs.items()]

    def _most_epochs(self, finalist: Finalist) -> int:
        """As many as the recipe may train."""
        return self.epochs_that_fit(finalist, validated=self.growth == 1.0)

    def _train_longer(self) -> None:
        """Resumes the most promising candidates where they were stopped."""
        before = {plan.of for plan, _ in self._trained() if not plan.falling}
        waiting = {each.number for each in self.search.candidates()} - before
        short = [each for each in self._all() if each.tried.number in waiting and each.run.end == "share"]
        for each in sorted(short, key=lambda each: -each.run.promise)[: MOST_LONGER - len(before)]:
            run = each.run
            fits = self._most_epochs(each) * run.cost / len(run.epochs)
            most = min(LONGER * max(self.search.share, run.cost), fits)
            if most > run.cost:
                self._train(Plan(of=each.tried.number, most=most), most - run.cost, run)

    def _train_with_falling_rate(self) -> None:
        """Trains the best from scratch with a rate that falls to zero, if there is time for longer than they took."""
        before = {plan.of for plan, _ in self._trained() if plan.falling}
        constant = sorted((each for each in self._all() if not each.falling), key=lambda each: -each.value)
        fixed = self.search.fixed.raw.get("train", {}).get("epochs", MOST_EPOCHS)
        for each in constant[:FALLING]:
            most, cost = min(self._most_epochs(each), fixed), each.run.cost / len(each.run.epochs)
            epochs = int(min(STRETCH * each.best_epoch, most, ROOM * self.search.clock.left() / cost))
            if epochs >= max(LEAST_FALLING, min(each.best_epoch, most)) and each.tried.number not in before:
                self._train(Plan(of=each.tried.number, falling=epochs), epochs * cost, Run())

    def _train(self, plan: Plan, cost: float, before: Run) -> None:
        """Runs one training as a trial of the study, if there is time for this cost."""
        if cost <= self.search.clock.left():
            self.study.enqueue_trial({}, {PLAN: plan.model_dump(), RUN: before.model_dump()})
            self._train_waiting()

    def _train_waiting(self) -> None:
        self.study.optimize(self._objective, n_trials=1)
        plan, run = self._trained()[-1]
        self._advance(1)
        kind = f", rate falling over {amount(plan.falling, 'epochs')}" if plan.falling else ""
        say(
            f"final: trial {plan.of}{kind}: {self.search.asked.metric} {run.value:.4f} "
            f"at epoch {run.best_epoch} of {len(run.epochs)} ({run.end})"
        )

    def _objective(self, trial: Trial) -> float:
        plan, search = Plan.model_validate(trial.user_attrs[PLAN]), self.search
        leader = max(each.value for each in self._all())
        raw = self.sections(search.tried()[plan.of], falling=plan.falling > 0)
        if plan.falling:
            raw["train"] |= {"epochs": plan.falling, "patience": plan.falling}

        def behind(run: Run, most: float) -> bool:
            trial.set_user_attr(RUN, run.model_dump())
            return not plan.falling and run.promise < leader

        directory = search.checkpoints(plan.of, "-falling" if plan.falling else "")
        return search.train(trial, raw, directory, Share(plan.most, search.clock, behind)).value
