"""The search: runs trials of one share each, one after another, until the rest of the budget is for the finals.

It first runs the starts, then alternates steps from the best point with Optuna's sampler, in the best family and at
times in the second best.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from optuna.trial import Trial

from pipelines.console import Advance, amount, say
from pipelines.dataset.dataset import Dataset
from pipelines.training.check import check_recipe
from pipelines.tuning.budget import Clock
from pipelines.tuning.fixed_settings import FixedSettings
from pipelines.tuning.space import Family, Point, families
from pipelines.tuning.steps import steps
from pipelines.tuning.study import FinishedTrial, Trials, canonical
from pipelines.tuning.traits import Raw, Traits
from pipelines.tuning.trial import Run, Share, train
from serving.files.staging import remove
from towers.config.recipe import Config, parse_config
from towers.errors import ConfigError

SHARES = 28  # this many trials that use their whole share use up the budget
LARGEST_SHARE = 5  # a trial uses at most the budget divided by this
LEAST_EPOCHS = 3  # the share lets the first trial train at least this many, if the budget allows
SHARE_EPOCHS = 10.0  # the share without a clock
ROOM = 0.8  # planned part of the recipe's training time, because a machine's load varies
MOST_TRIALS = 300  # beyond this, trials overfit this sample of users
FINALS = 12  # cost of the finals, in runs of the best trial
MOST_FINALS = 0.45  # of the budget
STEPS_FIRST = 12  # trials of a family before sampling begins
STEP_EVERY = 4  # after that, one trial in this many is a step
SECOND_BEST = 0.95  # a family whose best value reaches this share of the overall best
SECOND_EVERY = 3  # gets one trial in this many
KEPT = 4  # trials whose checkpoints are kept for longer training
MOST_REPEATS = 20  # this many repeated samples in a row mean that nothing new is left
PATIENCE = 5
MOST_EPOCHS = 10_000  # never reached: the share ends a training
MOST_SCORES = 1_000_000_000  # users x items per validation
MOST_USERS, LEAST_USERS = 10_000, 1_000


@dataclass(frozen=True)
class SearchGoal:
    """What to search for, and how far.

    Attributes:
        metric: the validation metric to maximise.
        seed: of the training runs and the sampler.
        trials: maximum number of trials; None for as many as the budget allows.
        train_s: seconds that the recipe may train.
    """

    metric: str
    seed: int
    trials: int | None
    train_s: float


class Search:
    """A search in a working directory.

    Args:
        data: the data set.
        fixed: settings that are not searched.
        asked: what to search for.
        work: holds `study.db`, and `trials/` with the checkpoints of the best.
        clock: of the whole command.
    """

    def __init__(self, data: Dataset, fixed: FixedSettings, asked: SearchGoal, work: Path, clock: Clock) -> None:
        self.data, self.fixed, self.asked, self.work, self.clock = data, fixed, asked, work, clock
        self.traits = Traits.of(data)
        self.families = {each.name: each for each in fixed.families(families(self.traits))}
        self.trials = Trials(work / "study.db", asked.seed, self.families)

    @staticmethod
    def check(data: Dataset, fixed: FixedSettings) -> list[Family]:
        """Refuses a recipe that leaves nothing to search or that the data set cannot feed.

        Returns:
            The families to search.

        Raises:
            ConfigError: names the wrong key.
        """
        check_recipe(fixed.config, data)
        return fixed.families(families(Traits.of(data)))

    @property
    def share(self) -> float:
        """The maximum cost of a trial; for the first trial, which measures it, the largest share allowed."""
        kept = self.trials.recall("share")
        if kept is not None:
            return float(kept)
        return self.clock.budget_s / LARGEST_SHARE if self.clock.timed else SHARE_EPOCHS

    @property
    def validation_users(self) -> int:
        """As many users as keep a validation no longer than the epochs in between."""
        return min(MOST_USERS, max(LEAST_USERS, MOST_SCORES // max(1, self.traits.items)))

    def directory(self, number: int) -> Path:
        """Returns a trial's directory."""
        return self.work / "trials" / f"{number:04}"

    def sections(self, family: str, point: Point) -> Raw:
        """Returns the recipe sections of a point."""
        return self.fixed.sections(family, point, self.traits)

    def config(self, raw: Raw) -> Config:
        """Returns the resolved recipe of a training run.

        Raises:
            ConfigError: the settings do not fit each other or the data set.
        """
        usual = {"epochs": MOST_EPOCHS, "patience": PATIENCE, "validation_users": self.validation_users}
        own = {"metric": self.asked.metric, "seed": self.asked.seed}
        return check_recipe(parse_config(raw | {"train": usual | raw["train"] | own}), self.data)

    def run(self, advance: Advance) -> None:
        """Runs trials until the search has used its part of the budget; see `docs/model/tuning.md`."""
        self._advance = advance
        (self.work / "trials").mkdir(exist_ok=True)
        while asked := self.trials.cut_off():
            self._try(*asked)
        for family, point in self._starts():
            if self.finished():
                return
            self._try(*self.trials.ask(family, point, "start"))
        # If no start finished, all are too slow or diverge, and so would the rest.
        repeats = 0 if self.trials.ranked() else MOST_REPEATS
        while not self.finished() and repeats < MOST_REPEATS:
            repeats = 0 if self._try(*self.trials.ask(*self._next())) else repeats + 1

    def finished(self) -> bool:
        """Whether it is time for the finals."""
        most = MOST_TRIALS if self.asked.trials is None else self.asked.trials
        if len(self.trials.all()) >= most:
            return True
        return self.clock.timed and self.clock.left() <= self._finals_s()

    def _finals_s(self) -> float:
        ranked = self.trials.ranked()
        wanted = FINALS * min(self.share, ranked[0].run.cost) if ranked else 0.0
        return min(MOST_FINALS * self.clock.budget_s, wanted)

    def _starts(self) -> list[tuple[str, Point]]:
        """Returns every family's first start, then the second ones, without those already tried."""
        rounds = max(len(each.starts) for each in self.families.values())
        wanted = [
            (name, each.starts[place])
            for place in range(rounds)
            for name, each in self.families.items()
            if place < len(each.starts)
        ]
        # The user's fixed settings may make two of them equal.
        known, new = self._known(), []
        for name, point in wanted:
            settings = canonical(self.sections(name, point))
            if settings not in known:
                new.append((name, point))
                known.add(settings)
        return new

    def _next(self) -> tuple[str, Point | None, str]:
        """Returns family, point (None to sample one) and origin of the next trial."""
        tried, ranked = self.trials.all(), self.trials.ranked()
        best: dict[str, FinishedTrial] = {}
        for each in ranked:
            best.setdefault(each.family, each)
        first, *others = best.values()
        near = [each for each in others if each.run.value >= SECOND_BEST * first.run.value]
        chosen = near[0] if near and len(tried) % SECOND_EVERY == 0 else first
        of_family = sum(each.family == chosen.family for each in tried)
        if of_family >= STEPS_FIRST and len(tried) % STEP_EVERY:
            return chosen.family, None, "sampled"
        return self._step(self.families[chosen.family], chosen) or (chosen.family, None, "sampled")

    def _step(self, family: Family, best: FinishedTrial) -> tuple[str, Point, str] | None:
        known = self._known()
        before = self.trials.recall(f"before {best.number}")
        for name, point in steps(family, best.point, before):
            if canonical(self.sections(family.name, point)) not in known:
                return family.name, point, name
        return None

    def _known(self) -> set[str]:
        return {canonical(self.sections(each.family, each.point)) for each in self.trials.all() if each.family}

    def _try(self, trial: Trial, family: str, point: Point) -> bool:
        """Runs one trial; returns whether it was new."""
        known, origin, raw = self._known(), trial.user_attrs["origin"], self.sections(family, point)
        if canonical(raw) in known:
            self.trials.tell(trial, Run(end="refused", reason="tried before"), self.share)
            return False
        ranked = self.trials.ranked()
        of_family = [each for each in ranked if each.family == family]
        if of_family and origin in self.families[family].parameters:
            self.trials.remember(f"before {trial.number}", dict(of_family[0].point))
        run = self._train(
            raw, self.directory(trial.number), lambda run: self.trials.falls_behind(trial, run, self.share)
        )
        tried = self.trials.tell(trial, run, self.share)
        self._clean()
        self._say(tried, ranked[0] if ranked else None)
        left = f"{max(0.0, self.clock.left()) / 60:.1f} min of the budget left" if self.clock.timed else ""
        self._advance(1, note=left)
        return True

    def _train(self, raw: Raw, directory: Path, falls_behind: Callable[[Run], bool]) -> Run:
        try:
            config = self.config(raw)
        except ConfigError as error:
            return Run(end="refused", reason=str(error))
        share = Share(self.share, self.clock, falls_behind)
        if self.trials.recall("share") is None:
            share.falls_behind = lambda run: self._measure(run, share)
        return train(config, self.data, directory, share)

    def _measure(self, run: Run, share: Share) -> bool:
        """Fixes the share after the first epoch of the first trial, which is of the cheapest family."""
        if self.clock.timed and self.trials.recall("share") is None:
            least = LEAST_EPOCHS * run.cost / len(run.epochs)
            budget_s = self.clock.budget_s
            most = min(budget_s / LARGEST_SHARE, ROOM * self.asked.train_s)
            share.most = min(most, max(budget_s / SHARES, least))
            self.trials.remember("share", share.most)
        return False

    def _clean(self) -> None:
        """Keeps only the checkpoints of the best trials that could train for longer."""
        longer = [each.number for each in self.trials.ranked() if each.run.end == "share"][:KEPT]
        kept = {self.directory(number) for number in longer}
        for each in (self.work / "trials").iterdir():
            if each not in kept:
                remove(each)

    def _say(self, tried: FinishedTrial, best: FinishedTrial | None) -> None:
        run, epochs = tried.run, amount(len(tried.run.epochs), "epochs")
        shown = f"{self.asked.metric} {run.value:.4f} after {epochs}" if run.epochs else "no epoch"
        above = "" if best is None else f", best before {best.run.value:.4f}"
        why = f"{run.end}: {run.reason}" if run.reason else run.end
        left = f"; {max(0.0, self.clock.left()) / 60:.1f} min left" if self.clock.timed else ""
        say(f"trial {tried.number} ({tried.family}, {tried.origin}): {shown}{above} ({why}){left}")
