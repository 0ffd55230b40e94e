"""The finals: trains each family's best trial for longer, the best few with a falling rate and with other seeds.

A trial's share is too short to show how far a recipe gets, and the best of many trials on one sample of users is partly
luck; other seeds show how much. In the end their models teach one more. Each training is a trial of a second study in
the search's file.
"""

import math
from collections import defaultdict
from dataclasses import replace

from optuna import Study, TrialPruned
from optuna.trial import FrozenTrial, Trial

from pipelines.console import Advance, amount, say
from pipelines.training.earlier_run import CHECKPOINTS
from pipelines.tuning.finalist import Finalist, Plan, best_of, plan_of
from pipelines.tuning.search import MOST_EPOCHS, ROOM, Search
from pipelines.tuning.study import PLAN, RUN, Tried, ended, open_study, run_of, waits
from pipelines.tuning.training import Run, Share
from pipelines.tuning.traits import Raw
from serving.files.staging import remove
from towers.config.recipe import parse_config
from towers.training.checkpoints import BEST, WEIGHTS, best_model

# Up to how many shares, and how many of the most promising: the best and that of each family, then one of them again.
LONGER = ((2.5, 5), (5.0, 1))
SURVIVORS = (2, 2, 1, 1)  # finalists of each round of seeds
LUCK = 1.5  # a converged trial may cost this many times as much with another seed
# With a rate that falls to zero: how many of the best, for how many times their best epochs, and the fewest epochs for
# which that makes sense. Late epochs of a small rate go on improving where those of a constant one no longer do.
FALLING, STRETCH, LEAST_FALLING = 2, 1.5, 4
# Teachers are the models of the further seeds: how few make sense, and what the training that they teach costs beside
# one without them.
LEAST_TEACHERS, TAUGHT_COST = 2, 1.5
MOST_TRAININGS = sum(count for _, count in LONGER) + FALLING + sum(SURVIVORS) + 1  # at the end one with teachers


class Finals:
    """The finals of a search that has ended; `growth` is of the final training: its examples per example of a trial."""

    def __init__(self, search: Search, growth: float) -> None:
        self.search, self.growth = search, growth
        self.study = open_study(search.work / "study.db", "finals")
        self._teachers = search.work / "teachers"
        self._teachers.mkdir(exist_ok=True)

    def best(self) -> Finalist | None:
        """The best so far, without further training; None if no trial has finished.

        Left out are those with teachers whose recipe would not end in time: what an epoch of theirs costs was a guess.
        """
        return best_of(
            [each for each in self._all() if not each.teachers or ROOM * each.best_epoch <= self._most_epochs(each)]
        )

    def run(self, advance: Advance) -> None:
        """Trains as many of the finals as fit the budget, at most `MOST_TRAININGS`; calls `advance` for each."""
        self._advance = advance
        for trial in ended(self.study):  # a kill may have come before
            self._clean_up(trial)
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
            level = [each for each in self._alone() if len(each.runs) >= seed]
            for each in sorted(level, key=lambda each: -each.at(seed))[:survivors]:
                if len(each.runs) == seed:
                    self._again(each, seed)
        pupil = self._pupil()
        if pupil is not None:
            self._again(pupil, seed=0)

    def epochs_that_fit(self, finalist: Finalist, *, validated: bool) -> int:
        """Returns how many epochs the recipe may train; see `Finalist.epoch_s`."""
        return max(1, int(ROOM * self.search.asked.train_s / finalist.epoch_s(self.growth, validated=validated)))

    def sections(self, tried: Tried, *, falling: bool = False, teachers: int = 0) -> Raw:
        """Returns a trial's recipe sections, with a falling rate or teachers or as it was."""
        raw = self.search.sections(tried.family, tried.point)
        if falling:
            raw["optimizer"]["schedule"] = "cosine"
        if teachers:
            raw["distillation"] = raw.get("distillation", {}) | {"models": teachers}
        return raw

    def _all(self) -> list[Finalist]:
        """The candidates, the best trials and their variants, with their stored runs."""
        best = [*self.search.candidates(), *self.search.ranked()[: SURVIVORS[0] + 2]]
        entered = {each.number: each for each in best}
        # By seed, for each trial, falling rate and number of teachers.
        kept = defaultdict(dict, {(number, 0, 0): {0: each.run} for number, each in entered.items()})
        for trial in ended(self.study):
            plan, run = plan_of(trial), run_of(trial)
            if run.end in ("converged", "share") or (plan.longer and run.epochs):
                kept[plan.of, plan.falling, len(plan.teachers)][plan.seed] = run
        found = []
        for number, tried in entered.items():
            for (of, falling, teachers), by_seed in sorted(kept.items()):
                if of == number:
                    runs = tuple(by_seed[seed] for seed in sorted(by_seed))
                    taught_by = tuple(kept[of, falling, 0][seed] for seed in range(1, teachers + 1))
                    found.append(Finalist(tried, falling, runs, taught_by))
        return found

    def _plans(self) -> list[Plan]:
        return [plan_of(each) for each in ended(self.study)]

    def _alone(self) -> list[Finalist]:
        """Those without teachers."""
        return [each for each in self._all() if not each.teachers]

    def _most_epochs(self, finalist: Finalist) -> int:
        """As many as the recipe may train."""
        return self.epochs_that_fit(finalist, validated=self.growth == 1.0)

    def _train_longer(self, shares: float, count: int) -> None:
        """Resumes the most promising candidates where they were stopped, up to `count` and to these shares."""
        candidates = {each.number for each in self.search.candidates()}
        before = {plan.of for plan in self._plans() if plan.longer == shares}
        entered = [each for each in self._alone() if each.tried.number in candidates - before and not each.falling]
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
        alone = self._alone()
        before = {each.tried.number for each in alone if each.falling}
        constant = sorted((each for each in alone if not each.falling), key=lambda each: -each.at(1))
        most = self.search.fixed.raw.get("train", {}).get("epochs", MOST_EPOCHS)
        for each in constant[:FALLING]:
            # Of the first seed, as when there was no other: a search that is resumed trains what it would have.
            epochs = min(int(STRETCH * each.runs[0].best_epoch), self._most_epochs(each), most)
            if epochs >= LEAST_FALLING and each.tried.number not in before:
                self._again(replace(each, falling=epochs), seed=0)

    def _pupil(self) -> Finalist | None:
        """The best finalist that has enough further seeds, their models its teachers.

        As many as its recipe has time to train; None if these are too few, its loss cannot learn from them, or the user
        wants none.
        """
        best = best_of([each for each in self._alone() if len(each.runs) > LEAST_TEACHERS])
        if best is None or self.search.fixed.raw.get("distillation", {}).get("models") == 0:
            return None
        loss = parse_config(self.sections(best.tried)).loss
        count = min(len(best.runs) - 1, int(self._most_epochs(best) / best.best_epoch - TAUGHT_COST))
        fits = loss.samples and not loss.own_scale and count >= LEAST_TEACHERS
        return replace(best, teachers=best.runs[1 : count + 1]) if fits else None

    def _again(self, finalist: Finalist, seed: int) -> None:
        """Trains a finalist from scratch, with another seed, a falling rate or teachers, unless it was before."""
        stem = f"{finalist.tried.directory}-{finalist.falling}"
        directory = f"{stem}-taught" if finalist.teachers else f"{stem}-{seed}"
        if directory in {plan.directory for plan in self._plans()}:
            return
        cost = self._cost(finalist)
        epochs = finalist.falling or (max(len(run.epochs) for run in finalist.runs) if finalist.teachers else 0)
        # What has its epochs ends by itself; a converged trial may take a little longer with another seed.
        most = math.inf if epochs else cost * (LUCK if finalist.runs[0].end == "converged" else 1.0)
        plan = Plan(
            of=finalist.tried.number,
            directory=directory,
            most=most,
            seed=seed,
            falling=finalist.falling,
            epochs=epochs,
            teachers=tuple(f"{stem}-{number}" for number in range(1, len(finalist.teachers) + 1)),
        )
        pupil = self._pupil() if seed else None  # a further seed must leave time for it
        self._train(plan, cost + (self._cost(pupil) if pupil else 0.0), Run())

    def _cost(self, finalist: Finalist) -> float:
        """What a training of it from scratch costs."""
        cost = max(run.cost for run in finalist.runs) * (TAUGHT_COST if finalist.teachers else 1.0)
        longest = max(len(run.epochs) for run in finalist.runs)
        return cost * finalist.falling / longest if finalist.falling else cost

    def _train(self, plan: Plan, cost: float, before: Run) -> None:
        """Runs one training as a trial of the study, if there is time for this cost."""
        if cost <= self.search.clock.left():
            self.study.enqueue_trial({}, {PLAN: plan.model_dump(), RUN: before.model_dump()})
            self.study.optimize(self._objective, n_trials=1, callbacks=[self._tell])

    def _objective(self, trial: Trial) -> float:
        plan, search, leader = plan_of(trial), self.search, self.best()
        raw = self.sections(search.tried()[plan.of], falling=plan.falling > 0, teachers=len(plan.teachers))
        if plan.epochs:
            raw["train"]["epochs"] = plan.epochs
        if plan.falling:
            raw["train"]["patience"] = plan.falling

        def behind(run: Run, most: float) -> bool:
            trial.set_user_attr(RUN, run.model_dump())
            return bool(plan.longer) and leader is not None and run.promise < leader.value

        teachers = [self._teachers / name / WEIGHTS for name in plan.teachers]
        run = search.train(trial, raw, Share(plan.most, search.clock, behind), plan.seed, teachers)
        if not run.complete:
            raise TrialPruned
        return run.value

    def _clean_up(self, trial: FrozenTrial) -> None:
        """Keeps the best model of a further seed, a teacher to be; removes the rest of a training that has ended."""
        plan, run = plan_of(trial), run_of(trial)
        directory = self.search.work / "trials" / plan.directory
        if not plan.longer:
            best = best_model(directory / CHECKPOINTS / BEST, run.best_epoch)
            if plan.seed and best.exists():
                best.replace(self._teachers / plan.directory)
            remove(directory)

    def _tell(self, study: Study, trial: FrozenTrial) -> None:
        self._clean_up(trial)
        plan, run, asked = plan_of(trial), run_of(trial), self.search.asked
        self._advance(1)
        kind = f"rate falling over {amount(plan.falling, 'epochs')}, " if plan.falling else ""
        kind += f"{len(plan.teachers)} teachers, " if plan.teachers else ""
        say(
            f"final: trial {plan.of}, {kind}seed {asked.seed + plan.seed}: {asked.metric} {run.value:.4f} "
            f"at epoch {run.best_epoch} of {len(run.epochs)} ({run.end})"
        )
