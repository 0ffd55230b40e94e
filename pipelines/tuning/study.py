"""Stores the trials in an Optuna study: starts, reports, ends and ranks them.

The study is a SQLite file, so an interrupted search still has every finished trial and the one it was running.
"""

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, Trial, TrialState

from pipelines.tuning.space import Family, Point
from pipelines.tuning.trial import Run

RUNGS = 8  # points along a share where trials are compared
PRUNE_FROM = 3  # the first rung at which trials are pruned
PRUNE_AFTER = 3  # trials needed for a comparison
ATTEMPTS = 3  # at a trial during which the process ended: the trial may be the cause
SPREAD = 100_003  # keeps the sampler seeds of two searches apart


@dataclass(frozen=True)
class FinishedTrial:
    """A trial that has ended.

    Attributes:
        number: counts from 0.
        family: of the model.
        point: its settings.
        origin: "start", the setting that a step changed, or "sampled".
        run: its training run.
        finished: it was neither pruned nor failed.
    """

    number: int
    family: str
    point: Point
    origin: str
    run: Run
    finished: bool


class Trials:
    """The study of one search.

    Args:
        file: the study's file; created if missing.
        seed: of the sampler.
        families: the families to search.
    """

    def __init__(self, file: Path, seed: int, families: Mapping[str, Family]) -> None:
        self.families, self._seed = families, seed
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._storage = optuna.storages.get_storage(f"sqlite:///{file}")
        self._study = optuna.create_study(
            storage=self._storage,
            study_name="tune",
            direction="maximize",
            pruner=optuna.pruners.MedianPruner(n_startup_trials=PRUNE_AFTER, n_warmup_steps=PRUNE_FROM),
            load_if_exists=True,
        )

    def remember(self, key: str, value: Any) -> None:
        """Stores a JSON value with the study."""
        self._study.set_user_attr(key, value)

    def recall(self, key: str) -> Any:
        """Returns a stored value, or None."""
        return self._study.user_attrs.get(key)

    def cut_off(self) -> tuple[Trial, str, Point] | None:
        """Returns a trial that an earlier process left running; fails one during which the process ended too often."""
        for frozen in self._study.get_trials(states=(TrialState.RUNNING,)):
            study_id = self._storage.get_study_id_from_name(self._study.study_name)
            number = self._storage.get_trial_id_from_study_id_trial_number(study_id, frozen.number)
            trial = Trial(self._study, number)
            attempts = frozen.user_attrs.get("attempts", 1)
            if "point" in frozen.user_attrs and attempts < ATTEMPTS:
                trial.set_user_attr("attempts", attempts + 1)
                return trial, frozen.user_attrs["family"], frozen.user_attrs["point"]
            trial.set_user_attr("run", Run(end="cut off", reason="the process died during the trial").as_json())
            self._study.tell(frozen.number, state=TrialState.FAIL)
        # Enqueued but not begun.
        return self._asked() if self._study.get_trials(states=(TrialState.WAITING,)) else None

    def ask(self, family: str, point: Point | None, origin: str) -> tuple[Trial, str, Point]:
        """Starts a new trial; without a point, TPE samples one of the family."""
        parameters = self.families[family].parameters
        given = {} if point is None else {f"{family}.{name}": point[name] for name in parameters}
        self._study.enqueue_trial({"family": family, **given}, user_attrs={"origin": origin})
        return self._asked()

    def _asked(self) -> tuple[Trial, str, Point]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            # A new sampler per trial, so that an interrupted search samples what it would have sampled.
            seed = self._seed * SPREAD + len(self._study.get_trials(deepcopy=False))
            self._study.sampler = optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=1, multivariate=True, group=True
            )
            trial = self._study.ask()
            family = trial.suggest_categorical("family", tuple(self.families))
            found = self.families[family]
            values = {name: each.suggest(trial, f"{family}.{name}") for name, each in found.parameters.items()}
        point: Point = {**found.starts[0], **values}
        trial.set_user_attr("family", family)
        trial.set_user_attr("point", point)
        return trial, family, point

    def falls_behind(self, trial: Trial, run: Run, share: float) -> bool:
        """Reports a run at the rungs it has reached; returns whether the median trial was better there."""
        reached = min(RUNGS, int(RUNGS * run.cost / share))
        _report(trial, run, share, reached)
        return trial.should_prune() if reached else False

    def tell(self, trial: Trial, run: Run, share: float) -> FinishedTrial:
        """Ends a trial."""
        finished = run.end in ("share", "converged", "budget") and bool(run.epochs)
        trial.set_user_attr("run", run.as_json())
        if finished and run.end != "budget":
            # A run that converged early keeps its best value at the remaining rungs.
            _report(trial, run, share, RUNGS)
        state = TrialState.COMPLETE if finished else TrialState.PRUNED
        self._study.tell(trial.number, run.value if finished else None, state=state)
        return _tried(self._study.trials[trial.number])

    def all(self) -> list[FinishedTrial]:
        """Returns all trials that have ended."""
        ended = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
        return [
            _tried(each) for each in self._study.get_trials(deepcopy=False, states=ended) if "run" in each.user_attrs
        ]

    def ranked(self) -> list[FinishedTrial]:
        """Returns the finished trials, the best first."""
        return sorted((each for each in self.all() if each.finished), key=lambda each: (-each.run.value, each.number))


def _report(trial: Trial, run: Run, share: float, reached: int) -> None:
    known = trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values
    for rung in range(1, reached + 1):
        value = run.at(share * rung / RUNGS)
        if rung not in known and value is not None:
            trial.report(value, rung)


def _tried(frozen: FrozenTrial) -> FinishedTrial:
    kept = frozen.user_attrs
    return FinishedTrial(
        frozen.number,
        kept.get("family", ""),
        kept.get("point", {}),
        kept.get("origin", ""),
        Run.from_json(kept["run"]),
        frozen.state == TrialState.COMPLETE,
    )


def canonical(raw: Mapping[str, Any]) -> str:
    """Formats settings as text; equal settings give equal text."""
    return json.dumps(raw, sort_keys=True)
