"""Opens the Optuna studies of a search, in a SQLite file that a killed process leaves intact, and reads their trials.

Each family of models has a study, because a trial is compared with those of its own family, and the finals have one.
Each trial stores as user attributes its `PLAN`, its `RUN` (after every epoch), the number of the `ATTEMPT` at it and
the `PLACES` of its settings that were enqueued.
"""

import sqlite3
import warnings
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import optuna
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, Trial, TrialState

from pipelines.errors import DataError
from pipelines.tuning.starts import Point
from pipelines.tuning.training import Run

PLAN, RUN, ATTEMPT, PLACES = "plan", "run", "attempt", "places"
ATTEMPTS = 3  # at a trial during which the process ended: the trial may be the cause
RUNGS, PRUNE_FROM = 8, 3  # trials are compared at 8 points of a share, from the third
KEEP = 25.0  # per cent of the complete trials that a trial must be among: most steps lead to a worse point


@dataclass(frozen=True)
class Tried:
    """A trial of the search that has ended, or what the finals made of it.

    Attributes:
        number: counts the trials of all families from 0.
        run: its training; in the finals the longest with a constant rate, or that with a falling one.
        family: of the model.
        point: its settings.
        origin: "start", "sampled", "larger batch", or the setting that a step changed.
        by: how many values the step moved it.
        falling: epochs over which its rate falls to zero; 0 for a constant rate.
    """

    number: int
    run: Run
    family: str = ""
    point: Point = field(default_factory=dict)
    origin: str = ""
    by: int = 0
    falling: int = 0

    @property
    def best_epoch(self) -> int:
        """How many epochs it should train: with a falling rate all of them."""
        return self.falling or self.run.best_epoch

    @property
    def value(self) -> float:
        """The metric after the best epoch; 0 without an epoch."""
        return self.run.epochs[self.best_epoch - 1].metric if self.run.epochs else 0.0

    @property
    def rising(self) -> bool:
        """Whether its best epoch is the last one it could train."""
        ended = self.falling or self.run.end in ("converged", "diverged")
        return not ended and self.best_epoch == len(self.run.epochs)


def open_study(file: Path, name: str) -> optuna.Study:
    """Opens a study, or creates it; a trial during which the process ended waits to be tried again.

    Raises:
        DataError: the file is damaged.
    """
    with closing(sqlite3.connect(file)) as connection:
        try:
            (told,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.OperationalError:  # another program holds it, or the disk fails
            raise
        except sqlite3.DatabaseError as error:
            told = str(error)
    if told != "ok":
        raise DataError(f"{file}: damaged ({' '.join(told.split())}); discard the search with --fresh")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # of the sampler's options
    pruner = optuna.pruners.PercentilePruner(KEEP, n_startup_trials=1, n_warmup_steps=PRUNE_FROM)
    study = optuna.create_study(
        storage=_storage(file), study_name=name, direction="maximize", pruner=pruner, load_if_exists=True
    )
    for each in study.get_trials(states=(TrialState.RUNNING,)):
        study.tell(each.number, state=TrialState.FAIL)
    for each in study.trials[-1:]:
        attempt = each.user_attrs.get(ATTEMPT, 1)
        if each.state == TrialState.FAIL and attempt < ATTEMPTS:
            study.enqueue_trial(each.user_attrs.get(PLACES, {}) | each.params, each.user_attrs | {ATTEMPT: attempt + 1})
    return study


def _storage(file: Path) -> RDBStorage:
    # Not by its path in a URL, of which Optuna and the versions of SQLAlchemy each read other letters in their own way.
    return RDBStorage("sqlite://", engine_kwargs={"creator": partial(sqlite3.connect, file)})


def waits(study: optuna.Study) -> bool:
    """Whether a trial is enqueued."""
    return bool(study.get_trials(deepcopy=False, states=(TrialState.WAITING,)))


def run_of(trial: FrozenTrial | Trial) -> Run:
    """Returns the run of a trial, so far."""
    return Run.model_validate(trial.user_attrs.get(RUN, {}))


def ended(study: optuna.Study) -> list[FrozenTrial]:
    """Returns the trials that have ended, also those that were given up because the process died during them."""
    states = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
    trials = study.get_trials(deepcopy=False, states=states)
    return [each for each in trials if each.state != TrialState.FAIL or each.user_attrs.get(ATTEMPT) == ATTEMPTS]


class Rungs:
    """Reports a run to Optuna at equal parts of what it may cost, whatever an epoch costs."""

    def __init__(self, trial: Trial) -> None:
        self._trial, self._reported = trial, 0

    @property
    def told(self) -> bool:
        """Whether a trial has come to the point from which others are compared with it."""
        return self._reported >= PRUNE_FROM

    def report(self, run: Run, most: float) -> bool:
        """Reports what is new; returns whether to prune the trial."""
        reached = max(self._reported, RUNGS if run.complete else min(RUNGS, int(RUNGS * run.cost / most)))
        for rung in range(self._reported + 1, reached + 1):
            if run.epochs and run.epochs[0].cost <= most * rung / RUNGS:
                self._trial.report(run.at(most * rung / RUNGS), rung)
        self._reported = reached
        return self._trial.should_prune()
