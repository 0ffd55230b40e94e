"""Several devices of one process: their batches are parts of the whole ones, and as many as the machine has.

That they train as one device is compared in `test_workers.py`.
"""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from tests.support.worlds.training import group_world, recipe, task_of
from towers.errors import ConfigError
from towers.training.devices import Devices, local_devices


def test_the_batches_of_two_devices_are_the_batch_of_one() -> None:
    events, tables, _ = group_world()
    _, examples = task_of(recipe(), events, tables)
    devices = Devices(tf.distribute.MirroredStrategy(["CPU:0"]), 2)
    source = devices.source(replace(examples, workers=2))
    assert source.steps == examples.steps
    for step in range(examples.steps):
        whole = examples.batch(1, step)
        one, other = devices.batches(source.batch(1, step))
        assert len(one.user) == len(other.user)
        np.testing.assert_array_equal(np.concatenate([one.user, other.user]), whole.user)
        np.testing.assert_array_equal(np.concatenate([one.item, other.item]), whole.item)


def test_more_devices_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [tf.config.PhysicalDevice(f"/physical_device:GPU:{number}", "GPU") for number in range(2)]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus if kind == "GPU" else [])
    with pytest.raises(ConfigError, match="--devices: 3 asked for on a machine with 2 GPUs; take at most 2"):
        local_devices(3)
