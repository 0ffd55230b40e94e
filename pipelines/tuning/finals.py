"""The finals: trains each family's best trial for longer, the best few with a falling rate and with other seeds.

A trial's share is too short to show how far a recipe gets, and the best of many trials on one sample of users is partly
luck; other seeds show how much. Each training is a trial of a second study in the search's file.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from optuna import Study, TrialPruned
from optuna.trial import FrozenTrial, Trial

from pipelines.console import Advance, amount, say
from pipelines.tuning.finalist import Finalist, Plan, best_of, plan_of
from pipelines.tuning.search import MOST_EPOCHS, ROOM, Search
from pipelines.tuning.study import PLAN, RUN, Tried, ended, open_study, run_of, waits
from pipelines.tuning.training import Run, Share
from pipelines.tuning.traits import Raw
from serving.files.staging import remove

# Up to how many shares, and how many of the most promising: the best and that of each family, then one of them again.
LONGER = ((2.5, 5), (5.0, 1))
SURVIVORS = (2, 2, 1, 1)  # finalists of each round of seeds
LUCK = 1.5  # a converged trial may cost this many times as much with another seed
# With a rate that falls to zero: how many of the best, for how many times their best epochs, and the fewest epochs for
# which that makes sense. Late epochs of a small rate go on improving where those of a constant one no longer do.
FALLING, STRETCH, LEAST_FALLING = 2, 1.5, 4
MOST_TRAININGS = sum(count for _, count in LONGER) + FALLING + sum(SURVIVORS)


class Finals:
    """The finals of a search that has ended; `growth` is of the final training: its examples per example of a trial."""

    def __init__(self, search: Search, growth: float) -> None:
        self.search, self.growth = search, growth
        self.study = open_study(search.work / "study.db", "finals")

    def best(self) -> Finalist | None:
        """The best so far, without further training; None if no trial has finished."""
        return best_of(self._all())

    def run(self, advance: Advance) -> None:
        """Trains as many of the finals as fit the budget, at most `MOST_TRAININGS`; calls `advance` for each."""
        self._advance = advance
        for plan in self._plans():  # of a training during which the process ended
            self._clean_up(plan)
        if waits(self.study):
            self.study.optimize(self._objective, n_trials=1, callbacks=[self._tell])
        for shares, count in LONGER:
            self._train_longer(shares, count)
        fixed = self.search.fixed.raw
        # A fixed patience might end it before the rate has fallen.
        if "schedule" not in fixed.get("optimizer", {}) and "patience" not in fixed.get("train", {}):
            self._train_with_falling_rate()
        for seed, survivors in enumerate(SURVIVORS, start=1):
            # Among those with equally many seeds so far, the best get one more.
            level = [each for each in self._all() if len(each.runs) >= seed]
            for each in sorted(level, key=lambda each: -each.at(seed))[:survivors]:
                if len(each.runs) == seed:
                    self._again(each, seed)

    def epochs_that_fit(self, finalist: Finalist, *, validated: bool) -> int:
        """Returns how many epochs the recipe may train; see `Finalist.epoch_s`."""
        return max(1, int(ROOM * self.search.asked.train_s / finalist.epoch_s(self.growth, validated=validated)))

    def sections(self, tried: Tried, *, falling: bool) -> Raw:
        """Returns a trial's recipe sections, with a falling rate or as it was."""
        raw = self.search.sections(tried.family, tried.point)
        if falling:
            raw["optimizer"]["schedule"] = "cosine"
        return raw

    def _all(self) -> list[Finalist]:
        """The candidates, the best trials and their variants, with their stored runs."""
        entered = {each.number: each for each in (*self.search.candidates(), *self.search.ranked()[: SURVIVORS[0] + 2])}
        kept = {(number, 0): {0: each.run} for number, each in entered.items()}  # by seed
        for trial in ended(self.study):
            plan, run = plan_of(trial), run_of(trial)
            if run.end in ("converged", "share") or (plan.longer and run.epochs):
                kept.setdefault((plan.of, plan.falling), {})[plan.seed] = run
        return [
            Finalist(entered[of], falling, _comparable([by_seed[seed] for seed in sorted(by_seed)]))
            for (of, falling), by_seed in kept.items()
            if of in entered
        ]

    def _plans(self) -> list[Plan]:
        return [plan_of(each) for each in ended(self.study)]

    def _most_epochs(self, finalist: Finalist) -> int:
        """As many as the recipe may train."""
        return self.epochs_that_fit(finalist, validated=self.growth == 1.0)

    def _train_longer(self, shares: float, count: int) -> None:
        """Resumes the most promising candidates where they were stopped, up to `count` and to these shares."""
        candidates = {each.number for each in self.search.candidates()}
        before = {plan.of for plan in self._plans() if plan.longer == shares}
        entered = [each for each in self._all() if each.tried.number in candidates - before and not each.falling]
        short = sorted(
            (each for each in entered if each.runs[0].end == "share"), key=lambda each: -each.runs[0].promise
        )
        for each in short[: count - len(before)]:
            run, tried = each.runs[0], each.tried
            fits = self._most_epochs(each) * run.cost / len(run.epochs)
            most = min(shares * max(self.search.share, tried.run.cost), fits)
            if most > run.cost:
                plan = Plan(of=tried.number, directory=tried.directory, most=most, longer=shares)
                self._train(plan, most - run.cost, run)

    def _train_with_falling_rate(self) -> None:
        """Trains the best with a rate that falls to zero, for longer than they took."""
        every = self._all()
        before = {each.tried.number for each in every if each.falling}
        constant = sorted((each for each in every if not each.falling), key=lambda each: -each.at(1))
        most = self.search.fixed.raw.get("train", {}).get("epochs", MOST_EPOCHS)
        for each in constant[:FALLING]:
            # Of the first seed, as when there was no other: a search that is resumed trains what it would have.
            epochs = min(int(STRETCH * each.runs[0].best_epoch), self._most_epochs(each), most)
            if epochs >= LEAST_FALLING and each.tried.number not in before:
                self._again(replace(each, falling=epochs), seed=0)

    def _again(self, finalist: Finalist, seed: int) -> None:
        """Trains a finalist from scratch, with another seed or a falling rate, unless it was before."""
        falling, tried = finalist.falling, finalist.tried
        directory = f"{tried.directory}-{falling}-{seed}"
        if directory in {plan.directory for plan in self._plans()}:
            return
        cost = max(run.cost for run in finalist.runs)
        if falling:
            cost *= falling / max(len(run.epochs) for run in finalist.runs)
        # A falling rate ends by itself; a converged trial may take a little longer with another seed.
        most = math.inf if falling else cost * (LUCK if finalist.runs[0].end == "converged" else 1.0)
        self._train(Plan(of=tried.number, directory=directory, most=most, seed=seed, falling=falling), cost, Run())

    def _train(self, plan: Plan, cost: float, before: Run) -> None:
        """Runs one training as a trial of the study, if there is time for this cost."""
        if cost <= self.search.clock.left():
            self.study.enqueue_trial({}, {PLAN: plan.model_dump(), RUN: before.model_dump()})
            self.study.optimize(self._objective, n_trials=1, callbacks=[self._tell])

    def _objective(self, trial: Trial) -> float:
        plan, search, leader = plan_of(trial), self.search, self.best()
        raw = self.sections(search.tried()[plan.of], falling=plan.falling > 0)
        if plan.falling:
            raw["train"] |= {"epochs": plan.falling, "patience": plan.falling}

        def behind(run: Run, most: float) -> bool:
            trial.set_user_attr(RUN, run.model_dump())
            return bool(plan.longer) and leader is not None and run.promise < leader.value

        run = search.train(trial, raw, Share(plan.most, search.clock, behind), plan.seed)
        if not run.complete:
            raise TrialPruned
        return run.value

    def _clean_up(self, plan: Plan) -> None:
        """Removes the checkpoints of a training that has ended, unless it goes on from the search's own."""
        if not plan.longer:
            remove(self.search.work / "trials" / plan.directory)

    def _tell(self, study: Study, trial: FrozenTrial) -> None:
        plan, run, asked = plan_of(trial), run_of(trial), self.search.asked
        self._clean_up(plan)
        self._advance(1)
        kind = f"rate falling over {amount(plan.falling, 'epochs')}, " if plan.falling else ""
        say(
            f"final: trial {plan.of}, {kind}seed {asked.seed + plan.seed}: {asked.metric} {run.value:.4f} "
            f"at epoch {run.best_epoch} of {len(run.epochs)} ({run.end})"
        )


def _comparable(runs: Sequence[Run]) -> tuple[Run, ...]:
    """The runs of one recipe by seed, without those that a busy machine cut before the first one's best epoch."""
    best = runs[0].best_epoch
    return tuple(run for run in runs if run.end == "converged" or len(run.epochs) >= best)
