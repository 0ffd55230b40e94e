"""Starts a training from what an earlier one learnt: the rows of known ids, their moments, the sampler's counts.

Every weight and every moment starts at

    share * its value in the earlier run + (1 - share) * its value at the start of a cold run

where the earlier run had it: a row of a table is found by its id, wherever it stands now. A row of a new id, and one
that the earlier training never learnt (it is zero), starts as in a cold run. So 1 continues the earlier run, 0 is a
cold run. Source: Ash & Adams, On warm-starting neural network training, NeurIPS 2020 ("shrink and perturb"); the
perturbation here is the random start of the recipe's seed.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from towers.data.events import Int64s
from towers.errors import ConfigError
from towers.training.checkpoints import refuse_pattern
from towers.training.optimizers import Optimizer
from towers.training.protocols import Task

BLOCK = 65_536  # rows read and written at once
NONE = -1  # no earlier row, no earlier rank


class Pairs(NamedTuple):
    """Rows that stay: row `here` [n] of this training is row `there` [n] of the earlier one."""

    here: Int64s
    there: Int64s


@dataclass(frozen=True)
class WarmStart:
    """What an earlier training left, and where its rows stand in this one.

    Attributes:
        weights: prefix of the checkpoint of its towers.
        state: prefix of the checkpoint with its moments and sampler; None: these start as in a cold run.
        rows: by name of a table, [rows] the earlier row of each row, or `NONE`.
        ranks: [N] the earlier rank of each item, by its rank; None if the sampler learns nothing.
        steps: optimizer steps behind the moments.
        share: of the earlier values, 0 to 1.
    """

    weights: Path
    state: Path | None
    rows: Mapping[str, Int64s]
    ranks: Int64s | None
    steps: int
    share: float

    def apply(self, task: Task, optimizer: Optimizer) -> None:
        """Sets the weights of a task and the moments of its optimizer, before the first step.

        Raises:
            ConfigError: a weight has another shape than in the earlier run.
        """
        weights = _Values(self.weights, tf.train.Checkpoint(model=task.towers))
        state = None
        if self.state is not None:
            state = _Values(self.state, tf.train.Checkpoint(task=task, optimizer=optimizer))
            optimizer.earlier_steps = round(self.share * self.steps)
        tables = _tables(task)
        for variable, slots in zip(optimizer.variables_in_order, optimizer.slots, strict=True):
            value = weights.of(variable)
            if value is None and state is not None:  # of the loss, not of the towers
                value = state.of(variable)
            if value is None:
                continue
            _refuse_other_shape(variable, value, any_rows=variable.ref() in tables)
            pairs = self._pairs(tables[variable.ref()], value) if variable.ref() in tables else None
            self._mix(variable, value, pairs)
            del value
            for slot in slots:
                moment = None if state is None else state.of(slot)
                if moment is not None:
                    self._mix(slot, moment, pairs)
        sampler = getattr(task, "sampler", None)
        if state is not None and sampler is not None and self.ranks is not None:
            sampler.warm_start(state.of, self.ranks, self.share)

    def _pairs(self, table: str, value: NDArray[Any]) -> Pairs:
        there = self.rows[table]
        learnt = np.zeros(len(value), np.bool_)
        for begin in range(0, len(value), BLOCK):
            learnt[begin : begin + BLOCK] = (value[begin : begin + BLOCK] != 0).any(axis=1)
        here = np.flatnonzero((there != NONE) & learnt[there])
        return Pairs(here, there[here])

    def _mix(self, variable: tf.Variable, earlier: NDArray[Any], pairs: Pairs | None) -> None:
        if pairs is None:
            variable.assign(self._mixture(earlier, variable))
            return
        for begin in range(0, len(pairs.here), BLOCK):
            here, there = pairs.here[begin : begin + BLOCK], pairs.there[begin : begin + BLOCK]
            value = self._mixture(earlier[there], tf.gather(variable, here))
            variable.scatter_update(tf.IndexedSlices(value, here))

    def _mixture(self, earlier: NDArray[Any], cold: Any) -> tf.Tensor:
        mixture = self.share * earlier.astype(np.float32) + (1 - self.share) * tf.cast(cold, tf.float32)
        return tf.cast(mixture, cold.dtype)


class _Values:
    """The values that an earlier run's checkpoint holds for the variables of this one."""

    def __init__(self, prefix: Path, root: tf.train.Checkpoint) -> None:
        refuse_pattern(prefix)
        self._reader = tf.train.load_checkpoint(str(prefix))
        self._shapes = self._reader.get_variable_to_shape_map()
        self._keys = _keys(root)

    def of(self, variable: tf.Variable) -> NDArray[Any] | None:
        """The value of a variable; None if the earlier run had no such variable."""
        key = self._keys.get(variable.ref())
        if key is None or key not in self._shapes:
            return None
        value: NDArray[Any] = self._reader.get_tensor(key)
        return value


def _keys(root: tf.train.Checkpoint) -> dict[Any, str]:
    """The key of each variable in a checkpoint: the shortest path of attributes, as TensorFlow names it."""
    view = tf.train.TrackableView(root)
    # The objects stay in the dictionary, since an id of one that is gone may come again.
    found: dict[int, tuple[Any, str]] = {id(root): (root, "")}
    queue = deque([root])
    while queue:
        parent = queue.popleft()
        for name, child in view.children(parent).items():
            if id(child) not in found:
                found[id(child)] = child, f"{found[id(parent)][1]}{name}/"
                queue.append(child)
    variables = ((each, path) for each, path in found.values() if isinstance(each, tf.Variable))
    return {variable.ref(): f"{path}.ATTRIBUTES/VARIABLE_VALUE" for variable, path in variables}


def _tables(task: Task) -> dict[Any, str]:
    towers = (task.towers.query_tower, task.towers.candidate_tower)
    encoders = [encoder for tower in towers for encoder in tower.encoders]
    columns = [column for encoder in encoders if encoder.columns is not None for column in encoder.columns.encoders]
    return {each.table.ref(): each.spec.table for each in (*encoders, *columns)}


def _refuse_other_shape(variable: tf.Variable, value: NDArray[Any], *, any_rows: bool) -> None:
    here, there = tuple(variable.shape), value.shape
    if here[any_rows:] != there[any_rows:] or len(here) != len(there):
        raise ConfigError(f"warm start: {variable.name} is {list(there)} in the earlier run and {list(here)} here")
