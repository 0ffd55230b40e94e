"""Checkpoints of a training run: complete or absent, however the process that writes them ends.

`checkpoints/latest/NUMBER-step-STEP-best-EPOCH/` is the state to resume from, `checkpoints/best/epoch-EPOCH/` the model
to end with. Each is written under another name and then renamed, so a kill or a full disk leaves the previous one; an
unfinished new one is removed. A finished training keeps the newest state as `checkpoints/state/`.
"""

import re
import shutil
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from towers.errors import ConfigError

NAME = re.compile(r"(\d+)-step-(\d+)-best-(\d+)")
WEIGHTS = "weights"  # prefix of the files in a checkpoint's directory
PARTIAL = ".partial"
LATEST, BEST, STATE = "latest", "best", "state"


class Saved(NamedTuple):
    """One checkpoint to resume from.

    Attributes:
        number: higher is newer.
        step: total steps trained.
        best_epoch: the best model that its progress refers to; 0 for none.
        path: its directory.
    """

    number: int
    step: int
    best_epoch: int
    path: Path


def refuse_pattern(path: Path) -> None:
    """Refuses a path in which TensorFlow finds no checkpoint, because it takes the path as a pattern.

    Raises:
        ConfigError: names the path and the characters.
    """
    if re.search(r"\[.*\]|\\", str(path)):
        raise ConfigError(f"{path}: TensorFlow reads no checkpoint in a path with [ ] or \\; give it another one")


class Checkpoints:
    """Writes and reads the checkpoints of one training.

    Args:
        directory: holds `latest/` and `best/`.
        state: everything that training resumes from.
        model: the model alone.

    Raises:
        ConfigError: TensorFlow would not find them again; see `refuse_pattern`.
    """

    def __init__(self, directory: Path, state: tf.train.Checkpoint, model: tf.train.Checkpoint) -> None:
        refuse_pattern(directory)
        if set("*?[") & set(str(directory)):  # as a pattern it may fit another run's, too
            raise ConfigError(f"{directory}: TensorFlow takes *, ? and [ in a path as a pattern; give it another one")
        self.latest, self.best = directory / LATEST, directory / BEST
        self._state, self._model = state, model
        for each in (self.latest, self.best):
            each.mkdir(parents=True, exist_ok=True)
            for half in each.glob(f"*{PARTIAL}"):
                shutil.rmtree(half)

    def saved(self) -> list[Saved]:
        """The checkpoints to resume from, oldest first."""
        return _saved(self.latest)

    def save(self, step: int, best_epoch: int) -> None:
        """Saves the state after `step` steps, and keeps the newest one of fewer steps beside it.

        Keeps two, because only the next step's loss shows whether a state is good: see `drop`.
        """
        before = self.saved()
        number = before[-1].number + 1 if before else 1
        path = self.latest / f"{number}-step-{step}-best-{best_epoch}"
        _write(self._state, path)
        older = [each for each in before if each.step < step][-1:]
        for each in before:
            if each not in older:
                shutil.rmtree(each.path)
        best = {f"epoch-{epoch}" for epoch in (best_epoch, *(each.best_epoch for each in older))}
        for model in self.best.iterdir():
            if model.name not in best:
                shutil.rmtree(model)

    def restore(self) -> None:
        """Restores the newest state that is readable with its best model, if there is one.

        Raises:
            ConfigError: none is readable, or another version of the program made it.
        """
        unreadable: dict[Path, str] = {}
        for each in reversed(self.saved()):
            try:
                if each.best_epoch:
                    self.restore_best(each.best_epoch)  # lost, it would fail the end; the state then replaces it
                self._state.read(str(each.path / WEIGHTS)).assert_existing_objects_matched()
            except (tf.errors.OpError, IndexError) as error:  # IndexError: a file is too short
                # A machine that lost power may have lost what it wrote last.
                unreadable[each.path] = str(error).splitlines()[0][:200]
                continue
            except (AssertionError, ValueError, TypeError) as error:
                raise ConfigError(
                    "the unfinished run does not fit: another version of this program made it; discard it with "
                    f"--fresh ({str(error).splitlines()[0][:200]})"
                ) from None
            for path in unreadable:
                shutil.rmtree(path)
            return
        if unreadable:
            path, reason = next(iter(unreadable.items()))  # the newest
            raise ConfigError(f"{path}: cannot be read ({reason}), nor any older one; discard the run with --fresh")

    def drop(self, step: int) -> int | None:
        """Removes the checkpoints of `step` or more steps.

        Returns:
            Steps of the newest one left; None if there is none.
        """
        for each in self.saved():
            if each.step >= step:
                shutil.rmtree(each.path)
        left = self.saved()
        return left[-1].step if left else None

    def save_best(self, epoch: int) -> None:
        """Saves the model after `epoch` epochs; nothing refers to it before the next `save`."""
        _write(self._model, self._best_model(epoch))

    def restore_best(self, epoch: int) -> None:
        """Restores the model of that epoch."""
        self._model.read(str(self._best_model(epoch) / WEIGHTS)).expect_partial()

    def _best_model(self, epoch: int) -> Path:
        return self.best / f"epoch-{epoch}"


def keep_state(directory: Path) -> Path:
    """Keeps the newest state of a training that is done as `STATE`, for another one to start from; returns its place.

    Args:
        directory: holds `latest/`; where `STATE` is there already, nothing changes.
    """
    kept = directory / STATE
    if not kept.exists():
        _saved(directory / LATEST)[-1].path.rename(kept)
    return kept


def _saved(latest: Path) -> list[Saved]:
    found = [(NAME.fullmatch(path.name), path) for path in latest.iterdir()]
    return sorted(Saved(int(match[1]), int(match[2]), int(match[3]), path) for match, path in found if match)


def _write(checkpoint: tf.train.Checkpoint, path: Path) -> None:
    partial = path.with_name(path.name + PARTIAL)
    try:
        checkpoint.write(str(partial / WEIGHTS))
        if path.exists():
            shutil.rmtree(path)
        partial.rename(path)
    except BaseException:
        # On a full disk, the unfinished checkpoint would be in the way of the next attempt.
        shutil.rmtree(partial, ignore_errors=True)
        raise
