"""Threads make the batches of an epoch: all of them, once, in order, and no more of them than are asked for."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from towers.training.prefetch import EXAMPLES, TASKS, prefetched, steps_of_task


class Place(NamedTuple):
    """A batch that says which one it is."""

    epoch: Any
    rest: dict[str, Any]


class Places:
    """A source of such batches that remembers which it made; one step of them cannot be made."""

    def __init__(self, steps: int, broken: int | None = None) -> None:
        self.steps, self.broken = steps, broken
        self.made: list[int] = []
        self.threads: set[int] = set()

    def batch(self, epoch: int, step: int) -> Place:
        [batch] = self.batches(epoch, range(step, step + 1))
        return batch

    def batches(self, epoch: int, steps: range) -> list[Place]:
        self.made += steps
        self.threads.add(threading.get_ident())
        if self.broken in steps:
            raise OSError(f"step {self.broken}")
        return [Place(np.array(epoch), {"step": np.array([step, step])}) for step in steps]


@settings(deadline=None)
@given(st.integers(0, 40), st.integers(0, 45), st.sampled_from([1, 2_000, EXAMPLES // 3, EXAMPLES, 5 * EXAMPLES]))
def test_every_step_comes_once_and_in_order_from_the_first_one_on(steps: int, first: int, batch_size: int) -> None:
    source = Places(steps)
    found = list(prefetched(source, batch_size, 7, first))
    wanted = list(range(first, steps))
    assert [step for step, _ in found] == [int(batch.rest["step"][1]) for _, batch in found] == wanted
    assert all(batch.epoch.numpy() == 7 and isinstance(batch, Place) for _, batch in found)
    assert sorted(source.made) == wanted
    assert threading.get_ident() not in source.threads


@pytest.mark.parametrize(("host", "device"), [(True, "CPU:0"), (False, None)])
def test_tensors_stay_in_host_memory_where_xla_takes_them_and_else_go_where_tensorflow_puts_them(
    monkeypatch: pytest.MonkeyPatch, host: bool, device: str | None
) -> None:
    named: list[str | None] = []

    @contextmanager
    def place(name: str | None) -> Iterator[None]:
        named.append(name)
        yield

    monkeypatch.setattr(tf, "device", place)
    [(_, batch)] = prefetched(Places(1), 1, 0, host=host)
    assert named == [device]
    assert all(isinstance(each, tf.Tensor) for each in tf.nest.flatten(batch))


@pytest.mark.parametrize(("batch_size", "steps"), [(1_024, 32), (10_000, 3), (16_384, 2), (32_768, 1), (99_999, 1)])
def test_a_task_makes_as_many_batches_as_have_its_examples(batch_size: int, steps: int) -> None:
    assert steps_of_task(batch_size) == steps


def test_who_stops_early_waits_for_few_batches_only() -> None:
    source = Places(1_000)
    assert [step for step, _ in islice(prefetched(source, EXAMPLES, 0), 3)] == [0, 1, 2]
    # Those that were taken, and those of the tasks.
    assert len(source.made) <= 3 + TASKS


def test_a_batch_that_cannot_be_made_is_an_error_when_its_turn_comes() -> None:
    batches = prefetched(Places(9, broken=4), EXAMPLES, 0)
    assert [step for step, _ in islice(batches, 4)] == [0, 1, 2, 3]
    with pytest.raises(OSError, match="step 4"):
        next(batches)
