"""What all workers of a training take from the first one: the state to resume from, and what validation decides."""

import json
from collections.abc import Iterable
from dataclasses import asdict

import tensorflow as tf

from towers.evaluation.metrics import Measured
from towers.model.two_tower import TwoTower
from towers.ops.replicas import Replicas
from towers.training.protocols import Progress, Validation


def agreed_state(replicas: Replicas, progress: Progress, variables: Iterable[tf.Variable]) -> Progress:
    """Gives every worker the first one's progress and, unless that has just begun, its variables."""
    if replicas.workers == 1:
        return progress
    agreed = Progress(**json.loads(replicas.from_first(json.dumps(asdict(progress)))))
    if agreed.epoch or agreed.step:
        replicas.copy_first(list({each.ref(): each for each in variables}.values()))
    return agreed


def agreed_measure(replicas: Replicas, validation: Validation, towers: TwoTower) -> Measured:
    """Validates, and gives every worker the first one's result and what it chose.

    Machines of another kind may differ in the last digit, and then choose other epochs.
    """
    measured = validation.measure(towers)
    if replicas.workers == 1:
        return measured
    replicas.copy_first([each for each in towers.variables if not each.trainable])
    return Measured(*json.loads(replicas.from_first(json.dumps(measured))))
