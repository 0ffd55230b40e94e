"""Threads make the batches of an epoch: all of them, once, in order, and no more of them than are asked for."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.worlds.training import trainer
from towers.training.prefetch import TASK_BYTES, TASKS, THREADS, prefetch, steps_per_task


class Place(NamedTuple):
    """A batch that says which one it is."""

    epoch: Any
    rest: dict[str, Any]


class Places:
    """A source of such batches that remembers which it made; one step of them cannot be made.

    A task waits until `gate` is open.
    """

    def __init__(self, steps: int, broken: int | None = None) -> None:
        self.steps, self.broken = steps, broken
        self.made: list[int] = []
        self.threads: set[int] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.begun, self.ended = threading.Semaphore(0), threading.Semaphore(0)

    def batch(self, epoch: int, step: int) -> Place:
        [batch] = self.batches(epoch, range(step, step + 1))
        return batch

    def batches(self, epoch: int, steps: range) -> list[Place]:
        self.made += steps
        self.threads.add(threading.get_ident())
        self.begun.release()
        assert self.gate.wait(30)
        if self.broken in steps:
            raise OSError(f"step {self.broken}")
        self.ended.release()
        return [Place(np.array(epoch), {"step": np.array([step, step])}) for step in steps]


@settings(deadline=None)
@given(st.integers(0, 40), st.integers(0, 45), st.integers(1, 50))
def test_every_step_comes_once_and_in_order_from_the_first_one_on(steps: int, first: int, per_task: int) -> None:
    source = Places(steps)
    found = list(prefetch(source, 7, first, per_task=per_task))
    wanted = list(range(first, steps))
    assert [step for step, _ in found] == [int(batch.rest["step"][1]) for _, batch in found] == wanted
    assert all(batch.epoch.numpy() == 7 and isinstance(batch, Place) for _, batch in found)
    assert sorted(source.made) == wanted
    assert threading.get_ident() not in source.threads


def test_each_thread_has_a_task_under_way_and_one_waiting_and_whoever_stops_waits_for_the_former_alone() -> None:
    source = Places(1_000)
    batches = prefetch(source, 0)
    assert next(batches)[0] == 0
    for _ in range(TASKS):  # all that may be made ahead, the first one among them
        assert source.begun.acquire(timeout=30) and source.ended.acquire(timeout=30)
    source.gate.clear()
    # Each step that is taken lets one more task begin, up to one in each thread.
    assert [next(batches)[0] for _ in range(TASKS - 1)] == list(range(1, TASKS))
    for _ in range(THREADS):
        assert source.begun.acquire(timeout=30)
    begun = len(source.made)
    assert begun == TASKS + THREADS and len(source.threads) == THREADS
    closed = threading.Thread(target=batches.close)
    closed.start()
    closed.join(0.1)
    assert closed.is_alive()
    source.gate.set()
    closed.join(30)
    assert not closed.is_alive() and len(source.made) == begun


def test_a_batch_that_cannot_be_made_is_an_error_when_the_turn_of_its_task_comes() -> None:
    batches = prefetch(Places(9, broken=5), 0, per_task=2)
    assert [step for step, _ in islice(batches, 4)] == [0, 1, 2, 3]
    with pytest.raises(OSError, match="step 5"):
        next(batches)


@pytest.mark.parametrize(("host", "device"), [(True, "CPU:0"), (False, None)])
def test_tensors_stay_in_host_memory_where_xla_takes_them_and_else_go_where_tensorflow_puts_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, host: bool, device: str | None
) -> None:
    built = trainer(tmp_path, validate=False, train={"epochs": 1, "jit_compile": host})
    named: list[str | None] = []
    put = tf.device

    @contextmanager
    def place(name: str | None) -> Iterator[None]:
        named.append(name)
        with put(name):
            yield

    monkeypatch.setattr(tf, "device", place)
    built.fit()
    monkeypatch.undo()
    assert set(named) == {device}


@pytest.mark.parametrize(
    ("size", "steps"), [(TASK_BYTES // 8, 1), (TASK_BYTES, 1), (TASK_BYTES // 80, 10), (1, 131_072)]
)
def test_a_task_makes_as_many_batches_as_its_bytes_hold(size: int, steps: int) -> None:
    batch = Place(tf.zeros([size], tf.int64), {"none": tf.zeros([size, 0])})
    assert steps_per_task(batch) == steps
