"""The search: an Optuna study whose trials train for one share each, until the rest of the budget is for the finals.

It first tries the starts, then alternates steps from the best point with Optuna's TPE sampler, in the best family and
at times in the second best; see `docs/model/tuning.md`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

from optuna import Study, TrialPruned
from optuna.trial import FrozenTrial, Trial

from pipelines.console import Advance, amount, say
from pipelines.dataset.dataset import Dataset
from pipelines.training.check import check_recipe
from pipelines.tuning.budget import Clock
from pipelines.tuning.fixed_settings import FixedSettings
from pipelines.tuning.space import Family, Point, canonical
from pipelines.tuning.study import PLAN, RUN, Rungs, Tried, open_study, run_of, sampler, tried, waits
from pipelines.tuning.training import Run, Share, train
from pipelines.tuning.traits import Raw, Traits
from serving.files.staging import remove
from towers.config.recipe import Config, parse_config
from towers.errors import ConfigError

SHARES = 28  # this many trials that use their whole share use up the budget
SHARE_EPOCHS = 10.0  # the share without a clock
LEAST_EPOCHS, LARGEST_SHARE = 3, 6  # a trial of slow epochs may train 3, but cost at most a sixth of the budget
ROOM = 0.8  # planned part of the recipe's training time, because a machine's load varies
MOST_TRIALS = 300  # beyond this, trials overfit this sample of users
FINALS, MOST_FINALS = 12, 0.45  # cost of the finals: in runs of the best trial, but at most as part of the budget
STEPS_FIRST, STEP_EVERY = 12, 4  # a family's first trials are steps, later one in this many
SECOND_BEST, SECOND_EVERY = 0.95, 3  # a family as near to the best one as this gets one trial in this many
MOST_REPEATS = 20  # this many repeated samples in a row mean that nothing new is left
START, SAMPLED, LARGER_BATCH, REPEAT = "start", "sampled", "larger batch", "tried before"
SPREAD = 100_003  # keeps the sampler seeds of two searches apart
PATIENCE = 5
MOST_EPOCHS = 10_000  # never reached: the share ends a training
MOST_SCORES = 1_000_000_000  # users x items per validation
MOST_USERS, LEAST_USERS = 10_000, 1_000

Wish = tuple[str, str, int, Point | None]  # of the next trial: family, origin, by, and the point unless it is sampled


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
        families: what is searched.
        asked: what to search for.
        work: holds `study.db`, and `trials/` with the checkpoints of the best.
        budget_s, begun: see `Clock`.
    """

    def __init__(
        self,
        data: Dataset,
        fixed: FixedSettings,
        families: list[Family],
        asked: SearchGoal,
        work: Path,
        budget_s: float | None,
        begun: float,
    ) -> None:
        self.data, self.fixed, self.asked, self.work = data, fixed, asked, work
        self.traits = Traits.of(data)
        self.families = {each.name: each for each in families}
        self.study = open_study(work / "study.db", "search")
        self.clock = Clock(budget_s, self.study, begun)

    @property
    def share(self) -> float:
        """The cost of a trial, unless its epochs are slow."""
        return min(self.clock.budget_s / SHARES, ROOM * self.asked.train_s) if self.clock.timed else SHARE_EPOCHS

    @property
    def validation_users(self) -> int:
        """As many users as keep a validation no longer than the epochs in between."""
        return min(MOST_USERS, max(LEAST_USERS, MOST_SCORES // max(1, self.traits.items)))

    def sections(self, family: str, point: Point) -> Raw:
        """Returns the recipe sections of a point."""
        return self.fixed.sections(family, point, self.traits)

    def config(self, raw: Raw, seed: int = 0) -> Config:
        """Returns the resolved recipe of a training run; `seed` is added to that of the search.

        Raises:
            ConfigError: the settings do not fit each other or the data set.
        """
        usual = {"epochs": MOST_EPOCHS, "patience": PATIENCE, "validation_users": self.validation_users}
        own = {"metric": self.asked.metric, "seed": self.asked.seed + seed}
        return check_recipe(parse_config(raw | {"train": usual | raw["train"] | own}), self.data)

    def tried(self) -> list[Tried]:
        """Returns all trials that have ended."""
        return tried(self.study)

    def ranked(self) -> list[Tried]:
        """Returns the complete trials, the best first."""
        return sorted((each for each in self.tried() if each.run.complete), key=lambda each: -each.run.value)

    def candidates(self) -> list[Tried]:
        """Returns what enters the finals: the best trial, and of each family the one that promises most."""
        ranked, best = self.ranked(), dict[str, Tried]()
        for each in sorted(ranked, key=lambda each: -each.run.promise):
            best.setdefault(each.family, each)
        return list({each.number: each for each in [*ranked[:1], *best.values()]}.values())

    def run(self, advance: Advance) -> None:
        """Runs trials until the search has used its part of the budget; calls `advance` for each."""

        def after(study: Study, trial: FrozenTrial) -> None:
            if trial.user_attrs[RUN]["reason"] != REPEAT:
                self._tell()
                advance(1, note=f"{self.clock.minutes_left()} of the budget left" if self.clock.timed else "")
            if not self._plan():
                study.stop()

        if self._plan():
            timeout = self.clock.left() if self.clock.timed else None
            self.study.optimize(self._objective, timeout=timeout, callbacks=[after])

    def train(self, trial: Trial, raw: Raw, share: Share, seed: int = 0) -> Run:
        """Trains a trial of a study, from the epochs that it has, and keeps its run."""
        directory = self.work / "trials" / trial.user_attrs[PLAN]["directory"]
        try:
            run = train(self.config(raw, seed), self.data, directory, share, run_of(trial))
        except ConfigError as error:
            run = Run(end="refused", reason=str(error))
        trial.set_user_attr(RUN, run.model_dump())
        return run

    def _objective(self, trial: Trial) -> float:
        family = self.families[trial.suggest_categorical("family", list(self.families))]
        keys = {family.key(name): len(values) - 1 for name, values in family.settings.items()}
        point = family.point({key: trial.suggest_int(key, 0, most) for key, most in keys.items()})
        plan = {"directory": f"{trial.number:04}", **trial.user_attrs[PLAN], "family": family.name, "point": point}
        trial.set_user_attr(PLAN, plan)
        raw, rungs = self.sections(family.name, point), Rungs(trial)

        def behind(run: Run, most: float) -> bool:
            trial.set_user_attr(RUN, run.model_dump())
            return rungs.report(run, most) and plan["origin"] != START

        largest = min(self.clock.budget_s / LARGEST_SHARE, ROOM * self.asked.train_s)
        if canonical(raw) in self._known():
            run = Run(end="refused", reason=REPEAT)
            trial.set_user_attr(RUN, run.model_dump())
        else:
            run = self.train(trial, raw, Share(self.share, self.clock, behind, LEAST_EPOCHS, largest))
        if not run.complete:
            raise TrialPruned
        rungs.report(run, max(self.share, run.cost))
        return run.value

    def _plan(self) -> bool:
        """Enqueues the next trial, unless one waits; returns whether there is one."""
        if self._finished():
            return False
        known, done = self._known(), len(self.tried())
        self.study.sampler = sampler(self.asked.seed * SPREAD + done)
        if waits(self.study):
            return True
        for family, origin, by, point in self._wishes():
            if point is None or canonical(self.sections(family, point)) not in known:
                places = {} if point is None else self.families[family].places(point)
                self.study.enqueue_trial({"family": family, **places}, {PLAN: {"origin": origin, "by": by}})
                return True
        return False

    def _finished(self) -> bool:
        done, ranked = self.tried(), self.ranked()
        if len(done) >= (MOST_TRIALS if self.asked.trials is None else self.asked.trials):
            return True
        if len(done) >= MOST_REPEATS and all(each.run.reason == REPEAT for each in done[-MOST_REPEATS:]):
            return True
        finals = FINALS * ranked[0].run.cost if ranked else 0.0
        return self.clock.timed and self.clock.left() <= min(MOST_FINALS * self.clock.budget_s, finals)

    def _wishes(self) -> Iterator[Wish]:
        """Yields what to try next, best first; what was tried before is among it."""
        families, done, best = self.families, self.tried(), dict[str, Tried]()
        for each in self.ranked():
            best.setdefault(each.family, each)
        # Every family's first start, then the second ones.
        rounds = zip_longest(*([(name, START, 0, each) for each in family.starts] for name, family in families.items()))
        yield from filter(None, chain(*rounds))
        for each in done:
            if each.run.end == "too slow" and each.family not in best:
                largest = families[each.family].settings.get("batch_size", [0])[-1]
                yield each.family, LARGER_BATCH, 0, {**each.point, "batch_size": largest}
        if not best:
            return  # all are too slow or diverge, and so would the rest
        first, *others = best.values()
        near = [each for each in others if each.run.value >= SECOND_BEST * first.run.value]
        chosen = near[0] if near and len(done) % SECOND_EVERY == 0 else first
        of_family = sum(each.family == chosen.family for each in done)
        sampled: Wish = (chosen.family, SAMPLED, 0, None)
        if of_family >= STEPS_FIRST and len(done) % STEP_EVERY:
            yield sampled
        for name, by, point in families[chosen.family].steps(chosen.point, (chosen.origin, chosen.by)):
            yield chosen.family, name, by, point
        yield sampled

    def _known(self) -> set[str]:
        return {canonical(self.sections(each.family, each.point)) for each in self.tried() if each.family}

    def _tell(self) -> None:
        """Says how the last trial went; keeps only the checkpoints that the finals may continue from."""
        candidates = {each.directory for each in self.candidates()}
        for each in (self.work / "trials").iterdir():
            if each.name not in candidates:
                remove(each)
        *before, last = self.tried()
        run, best = last.run, max((each.run.value for each in before if each.run.complete), default=None)
        shown = (
            f"{self.asked.metric} {run.value:.4f} after {amount(len(run.epochs), 'epochs')}"
            if run.epochs
            else "no epoch"
        )
        above = "" if best is None else f", best before {best:.4f}"
        why = f"{run.end}: {run.reason}" if run.reason else run.end
        left = f"; {self.clock.minutes_left()} left" if self.clock.timed else ""
        say(f"trial {last.number} ({last.family}, {last.origin}): {shown}{above} ({why}){left}")
