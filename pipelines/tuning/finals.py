"""The finals: trains the best trial and each family's most promising one for longer, and the best two with a rate that
falls to zero; in the time that is left of the budget the next best, too.

A trial's share is too short to show how far a recipe gets. Each training is a trial of one more study in the search's
file; its plan names the trial whose recipe it trains (`of`), the most that it may cost (`most`), and the epochs over
which the rate falls (`falling`), from scratch; with 0 it resumes the trial.
"""

import math
from dataclasses import replace
from statistics import median

from optuna.trial import Trial

from pipelines.console import Advance, amount, say
from pipelines.tuning.search import MOST_EPOCHS, ROOM, Search, first_of_families
from pipelines.tuning.study import PLAN, RUN, Tried, ended, open_study, run_of, waits
from pipelines.tuning.training import Run, Share
from pipelines.tuning.traits import Raw

LONGER, MOST_LONGER = 2.5, 5  # up to how many shares, and how many trials: the best and the most promising of families
# With a rate that falls to zero: how many of the best, for how many times their best epochs, and the fewest epochs for
# which that makes sense. Late epochs of a small rate go on improving where those of a constant one no longer do.
FALLING, STRETCH, LEAST_FALLING = 2, 1.5, 4
MOST_TRAININGS = MOST_LONGER + FALLING


class Finals:
    """The finals of a search that has ended; `growth` is of the final training: its examples per example of a trial."""

    def __init__(self, search: Search, growth: float) -> None:
        self.search, self.growth = search, growth
        self.study = open_study(search.work / "study.db", "finals")

    def best(self) -> Tried | None:
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

    def epoch_s(self, final: Tried, *, validated: bool) -> float:
        """Seconds that an epoch of its recipe takes, also in the final training; `validated` if the first one is."""
        first = median(each.seconds for each in final.run.epochs) if validated else 0.0
        steps = median(each.train_seconds for each in final.run.epochs)
        return first + (self.growth * steps if self.growth > 1 or not validated else 0.0)

    def epochs_that_fit(self, final: Tried, *, validated: bool) -> int:
        """Returns how many epochs the recipe may train; see `epoch_s`."""
        return max(1, int(ROOM * self.search.asked.train_s / self.epoch_s(final, validated=validated)))

    def sections(self, final: Tried) -> Raw:
        """Returns the recipe sections of a trial, with a falling rate if it has one."""
        raw = self.search.sections(final.family, final.point)
        if final.falling:
            raw["optimizer"]["schedule"] = "cosine"
        return raw

    def _trained(self) -> list[Tried]:
        """The trials that were trained here, each with the run that it has here."""
        tried = self.search.tried()
        plans = [(each.user_attrs[PLAN], run_of(each)) for each in ended(self.study)]
        return [replace(tried[plan["of"]], run=run, falling=plan["falling"]) for plan, run in plans]

    def _all(self) -> list[Tried]:
        """The candidates and the best trials with their longest runs, and those with a falling rate."""
        tried, entered = self.search.tried(), (*self.search.candidates(), *self.search.ranked()[:MOST_TRAININGS])
        found = {(each.number, 0): each for each in entered}
        for final in self._trained():
            key, run = (final.number, final.falling), final.run
            if run.end == "diverged" and final.falling:
                continue
            before = found.get(key, tried[final.number]).run
            if run.end == "converged" if final.falling else len(run.epochs) >= len(before.epochs):
                found[key] = final
        return list(found.values())

    def _most_epochs(self, final: Tried) -> int:
        """As many as the recipe may train."""
        return self.epochs_that_fit(final, validated=self.growth == 1.0)

    def _train_longer(self) -> None:
        """Resumes the most promising candidates where they were stopped."""
        before = {each.number for each in self._trained() if not each.falling}
        waiting = {each.number for each in self.search.candidates()} - before
        short = [each for each in self._all() if each.number in waiting and each.run.end == "share"]
        for each in sorted(short, key=lambda each: -each.run.promise)[: MOST_LONGER - len(before)]:
            run = each.run
            fits = self._most_epochs(each) * run.cost / len(run.epochs)
            most = min(LONGER * max(self.search.share, run.cost), fits)
            if most > run.cost:
                self._train(each.number, most - run.cost, most=most, before=run)

    def _train_with_falling_rate(self) -> None:
        """Trains the best from scratch with a rate that falls to zero, if there is time for longer than they took."""
        before = {each.number for each in self._trained() if each.falling}
        constant = sorted((each for each in self._all() if not each.falling), key=lambda each: -each.value)
        leaders = first_of_families(constant)
        fixed = self.search.fixed.raw.get("train", {}).get("epochs", MOST_EPOCHS)
        for place, each in enumerate(constant):
            if place >= FALLING and (not self.search.clock.timed or len(self._trained()) >= MOST_TRAININGS):
                break
            # A share has not shown the best epoch of a trial that was still rising; its family's best run has.
            best = max(each.best_epoch, leaders[each.family].best_epoch if each.rising else 0)
            most, cost = min(self._most_epochs(each), fixed), each.run.cost / len(each.run.epochs)
            epochs = int(min(STRETCH * best, most, ROOM * self.search.clock.left() / cost))
            if epochs >= max(LEAST_FALLING, min(best, most)) and each.number not in before:
                self._train(each.number, epochs * cost, falling=epochs)

    def _train(
        self, of: int, cost: float, *, most: float = math.inf, falling: int = 0, before: Run | None = None
    ) -> None:
        """Runs one training as a trial of the study, if there is time for this cost."""
        if cost <= self.search.clock.left():
            plan = {"of": of, "most": most, "falling": falling}
            self.study.enqueue_trial({}, {PLAN: plan, RUN: (before or Run()).model_dump()})
            self._train_waiting()

    def _train_waiting(self) -> None:
        self.study.optimize(self._objective, n_trials=1)
        final = self._trained()[-1]
        self._advance(1)
        kind, run = f", rate falling over {amount(final.falling, 'epochs')}" if final.falling else "", final.run
        say(
            f"final: trial {final.number}{kind}: {self.search.asked.metric} {run.value:.4f} "
            f"at epoch {run.best_epoch} of {len(run.epochs)} ({run.end})"
        )

    def _objective(self, trial: Trial) -> float:
        plan, search = trial.user_attrs[PLAN], self.search
        falling, leader = plan["falling"], max(each.value for each in self._all())
        raw = self.sections(replace(search.tried()[plan["of"]], falling=falling))
        if falling:
            raw["train"] |= {"epochs": falling, "patience": falling}

        def behind(run: Run, most: float) -> bool:
            trial.set_user_attr(RUN, run.model_dump())
            return not falling and run.promise < leader

        directory = search.checkpoints(plan["of"], "-falling" if falling else "")
        return search.train(trial, raw, directory, Share(plan["most"], search.clock, behind)).value
