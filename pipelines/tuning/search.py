"""The search: Optuna studies whose trials train for one share each, until the rest of the budget is for the finals.

It first tries the starts, then steps from the best point of the family that promises most, at times of those near it,
at last what Optuna's TPE sampler proposes; see `docs/model/tuning.md`.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import NamedTuple

from optuna import Study, TrialPruned
from optuna.samplers import TPESampler
from optuna.trial import Trial

from pipelines.console import Advance, amount, say
from pipelines.dataset.dataset import Dataset
from pipelines.training.check import check_recipe
from pipelines.tuning.clock import Clock
from pipelines.tuning.space import Family, FixedSettings, canonical
from pipelines.tuning.starts import Point
from pipelines.tuning.study import ATTEMPT, PLACES, PLAN, RUN, Rungs, Tried, ended, open_study, run_of, waits
from pipelines.tuning.training import Run, Share, train
from pipelines.tuning.traits import Raw, Traits
from serving.files.disk_full import no_room
from serving.files.staging import remove
from towers.config.recipe import Config, parse_config
from towers.errors import ConfigError

SHARES, SHARE_EPOCHS = 28, 10.0  # a trial's share of the budget, and in epochs without a clock
LARGEST_SHARE = 12  # a trial of slow epochs may train 2 in a twelfth of the budget, 1 in a sixth
ROOM = 0.8  # planned part of the recipe's training time, because a machine's load varies
MOST_TRIALS = 300  # beyond this, trials overfit this sample of users
FINALS = SHARES // 3  # what is kept for the finals: as many runs of the best trial, at most a third of the budget
NEAR, OTHERS_EVERY = 0.95, 3  # families that promise nearly as much as the best share one trial in this many
MOST_REPEATS, REPEATS = 20, 5  # so many repeated samples in a row: nothing new is left, or nothing of a family
START, SAMPLED, LARGER_BATCH, REPEAT = "start", "sampled", "larger batch", "tried before"
SPREAD, LARGEST_SEED = 100_003, 2**32  # keep the sampler seeds of two searches apart; NumPy takes no larger one
PATIENCE, MOST_EPOCHS = 5, 10_000  # of a training; the share ends it before the latter
MOST_SCORES, MOST_USERS, LEAST_USERS = 1_000_000_000, 10_000, 1_000  # users x items per validation, and users

Wish = tuple[str, str, int, Point | None]  # of the next trial: family, origin, by, and the point unless it is sampled


class SearchGoal(NamedTuple):
    """What to search for, and how far.

    Attributes:
        metric: the validation metric to maximise.
        seed: of the training runs and the sampler.
        trials: maximum number of trials; None for as many as the budget allows.
        budget_s: seconds for the whole command; None for no limit.
        train_s: seconds that the recipe may train.
    """

    metric: str
    seed: int
    trials: int | None
    budget_s: float | None
    train_s: float


class Search:
    """A search in a directory, `work`: it holds `study.db`, and `trials/` with the checkpoints of the best.

    `begun` is when the command began, as of `time.monotonic`.
    """

    def __init__(
        self,
        data: Dataset,
        fixed: FixedSettings,
        families: Sequence[Family],
        traits: Traits,
        asked: SearchGoal,
        work: Path,
        begun: float,
    ) -> None:
        self.data, self.fixed, self.traits, self.asked, self.work = data, fixed, traits, asked, work
        self.families = {each.name: each for each in families}
        (work / "trials").mkdir(exist_ok=True)
        self.studies = {name: open_study(work / "study.db", name) for name in self.families}
        self.clock = Clock(asked.budget_s, next(iter(self.studies.values())), begun)
        longest = ROOM * asked.train_s
        self.share = min(self.clock.budget_s / SHARES, longest) if self.clock.timed else SHARE_EPOCHS
        self._largest = min(self.clock.budget_s / LARGEST_SHARE, longest / 2)
        self.scarce = "--train-minutes" if longest / 2 < self.clock.budget_s / LARGEST_SHARE else "--budget-minutes"
        # As many as keep a validation no longer than the epochs in between.
        self.validation_users = min(MOST_USERS, max(LEAST_USERS, MOST_SCORES // traits.items))

    def tried(self) -> list[Tried]:
        """Returns the trials that have ended."""
        trials = [each for study in self.studies.values() for each in ended(study)]
        tried = [Tried(run=run_of(each), **each.user_attrs[PLAN]) for each in trials]
        return sorted(tried, key=lambda each: each.number)

    def ranked(self) -> list[Tried]:
        """Returns the complete trials, the best first."""
        return sorted((each for each in self.tried() if each.run.complete), key=lambda each: -each.run.value)

    def candidates(self) -> list[Tried]:
        """Returns what enters the finals: the best trial and, perhaps again, of each family the most promising one."""
        ranked = self.ranked()
        promising = first_of_families(sorted(ranked, key=lambda each: -each.run.promise))
        return [*ranked[:1], *promising.values()]

    def checkpoints(self, number: int, kind: str = "") -> Path:
        """Returns the directory of a trial's checkpoints; the finals have further ones of their kinds."""
        return self.work / "trials" / f"{number:04}{kind}"

    def sections(self, family: str, point: Point) -> Raw:
        """Returns the recipe sections of a point."""
        return self.fixed.sections(family, point, self.traits)

    def run(self, advance: Advance) -> None:
        """Runs trials until the search has used its part of the budget; calls `advance` for each."""
        while study := self._next():
            # A new one for each trial, so that an interrupted search samples what it would have.
            seed = (self.asked.seed * SPREAD + len(self.tried())) % LARGEST_SEED
            study.sampler = TPESampler(seed=seed, n_startup_trials=1, multivariate=True)
            study.optimize(self._objective, n_trials=1)
            advance(1)
            self._tell()

    def train(self, trial: Trial, raw: Raw, directory: Path, share: Share) -> Run:
        """Trains a trial of a study, from the epochs that it has, and keeps its run."""
        try:
            run = train(self._config(raw), self.data, directory, share, run_of(trial))
        except ConfigError as error:
            run = Run(end="refused", reason=str(error))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) or no_room(error):  # the trial is not the cause
                trial.set_user_attr(ATTEMPT, trial.user_attrs.get(ATTEMPT, 1) - 1)
            raise
        trial.set_user_attr(RUN, run.model_dump())
        return run

    def _config(self, raw: Raw) -> Config:
        usual = {"epochs": MOST_EPOCHS, "patience": PATIENCE, "validation_users": self.validation_users}
        own = {"metric": self.asked.metric, "seed": self.asked.seed}
        return check_recipe(parse_config(raw | {"train": usual | raw["train"] | own}), self.data)

    def _objective(self, trial: Trial) -> float:
        plan = trial.user_attrs[PLAN]
        family = self.families[plan["family"]]
        settings = family.settings.items()
        point = family.point({name: trial.suggest_int(name, 0, len(values) - 1) for name, values in settings})
        trial.set_user_attr(PLAN, plan | {"point": point})
        raw, rungs, ranked = self.sections(family.name, point), Rungs(trial), self.ranked()
        best, leader = first_of_families(ranked), ranked[0].run.value if ranked else 0.0

        def behind(run: Run, most: float) -> bool:
            trial.set_user_attr(RUN, run.model_dump())
            low = rungs.report(run, most)
            # A start may be slow at first: it goes on while it may still catch up, a family's first one in any case.
            late = rungs.told and len(run.epochs) > 1 and run.promise < leader
            return family.name in best and (late if plan["origin"] == START else low)

        if canonical(raw) in self._known():
            run = Run(end="refused", reason=REPEAT)
            trial.set_user_attr(RUN, run.model_dump())
        else:
            alike = len(best[family.name].run.epochs) if family.name in best else 0
            share = Share(self.share, self.clock, behind, self._largest, alike)
            run = self.train(trial, raw, self.checkpoints(plan["number"]), share)
        if not run.complete:
            raise TrialPruned
        rungs.report(run, max(self.share, run.cost))
        return run.value

    def _next(self) -> Study | None:
        """Enqueues the next trial, unless one waits; returns its study, or None if the search is over."""
        for study in self.studies.values():
            if waits(study) and self.clock.left() > 0:  # into the time of the finals, as if nothing had interrupted it
                return study
        if self._finished():
            return None
        known = self._known()
        for family, origin, by, point in self._wishes():
            if point is None or canonical(self.sections(family, point)) not in known:
                places = {} if point is None else self.families[family].places(point)
                plan = {"number": len(self.tried()), "family": family, "origin": origin, "by": by}
                self.studies[family].enqueue_trial(places, {PLAN: plan, PLACES: places})
                return self.studies[family]
        return None

    def _finished(self) -> bool:
        done, ranked = self.tried(), self.ranked()
        if len(done) >= (MOST_TRIALS if self.asked.trials is None else self.asked.trials):
            return True
        if len(done) >= MOST_REPEATS and all(each.run.reason == REPEAT for each in done[-MOST_REPEATS:]):
            return True
        finals = FINALS * min(self.share, ranked[0].run.cost) if ranked else 0.0
        return self.clock.left() <= finals

    def _wishes(self) -> Iterator[Wish]:
        """Yields what to try next, the best first; some of it was tried before."""
        families, done, best = self.families, self.tried(), first_of_families(self.ranked())
        # Every family's first start, then the second ones.
        starts = ([(name, START, 0, point) for point in each.starts] for name, each in families.items())
        yield from filter(None, chain(*zip_longest(*starts)))
        for each in done:
            values = families[each.family].settings.get("batch_size")
            if values and each.family not in best and each.run.end == "too slow":
                yield each.family, LARGER_BATCH, 0, {**each.point, "batch_size": values[-1]}
        if not best:
            return  # all are too slow or diverge, and so would the rest
        # By their promise: a share is a few epochs, and favours families that start fast.
        first, *others = sorted(best.values(), key=lambda each: -each.run.promise)
        near = [each for each in others if each.run.promise >= NEAR * first.run.promise]
        # The one that has cost the least: a trial of whole users takes a fraction of the others' time.
        cost = {name: sum(each.run.cost for each in done if each.family == name) for name in families}
        chosen = min(near, key=lambda each: cost[each.family]) if near and len(done) % OTHERS_EVERY == 0 else first
        for each in (chosen, first, *others):
            own = [trial for trial in done if trial.family == each.family]
            tries = Counter(trial.origin for trial in own)
            for name, by, point in families[each.family].steps(each.point, (each.origin, each.by), tries):
                yield each.family, name, by, point
            if any(trial.run.reason != REPEAT for trial in own[-REPEATS:]):
                yield each.family, SAMPLED, 0, None
        yield chosen.family, SAMPLED, 0, None  # nobody else has anything left

    def _known(self) -> set[str]:
        return {canonical(self.sections(each.family, each.point)) for each in self.tried() if each.point}

    def _tell(self) -> None:
        """Says how the last trial went; keeps only the checkpoints that the finals may continue from."""
        kept = {self.checkpoints(each.number) for each in self.candidates()}
        for path in (self.work / "trials").iterdir():
            if path not in kept:
                remove(path)
        last, done = self.tried()[-1], [each.run.value for each in self.ranked()]
        if last.run.reason == REPEAT:
            return
        run, epochs = last.run, amount(len(last.run.epochs), "epochs")
        shown = f"{self.asked.metric} {run.value:.4f} after {epochs}" if run.epochs else "no epoch"
        best = f", best so far {max(done):.4f}" if done else ""
        why = f"{run.end}: {run.reason}" if run.reason else run.end
        left = f"; {max(0.0, self.clock.left()) / 60:.1f} min left" if self.clock.timed else ""
        say(f"trial {last.number} ({last.family}, {last.origin}): {shown} ({why}){best}{left}")


def first_of_families(trials: Sequence[Tried]) -> dict[str, Tried]:
    """Returns the first trial of each family, in their order."""
    found: dict[str, Tried] = {}
    for each in trials:
        found.setdefault(each.family, each)
    return found
