"""Background work pauses for requests, one thread makes what many want, and the garbage collector skips libraries."""

import gc
import sys
import threading
import time

import pytest

from serving import background
from serving.background import Once
from serving.recall.loading import load_libraries


def test_after_each_piece_it_rests_twice_as_long_as_it_worked(monkeypatch: pytest.MonkeyPatch) -> None:
    worked, slept = [0.0], []
    monkeypatch.setattr("time.thread_time", lambda: worked[0])
    monkeypatch.setattr("time.sleep", slept.append)
    worked[0] = 7.0
    rest = background.yielding_to_requests()
    for piece in (0.3, 0.0, 0.1):
        worked[0] += piece
        rest()
    assert slept == pytest.approx([0.6, 0.0, 0.2])


@pytest.mark.long
def test_libraries_are_taken_out_of_the_collectors_sight_once() -> None:
    before = gc.get_threshold(), sys.getswitchinterval()
    frozen = gc.get_freeze_count()
    try:
        gc.unfreeze()
        load_libraries()
        count = gc.get_freeze_count()
        assert count > 100_000 > len(gc.get_objects())
        assert sys.getswitchinterval() == pytest.approx(0.0005)
        kept = [[] for _ in range(1_000)]
        load_libraries()
        assert gc.get_freeze_count() <= count
        assert len(kept) == 1_000
    finally:
        if not frozen:
            gc.unfreeze()
        gc.set_threshold(*before[0])
        sys.setswitchinterval(before[1])


class Table:
    def __init__(self) -> None:
        self.reads = 0

    @Once
    def rows(self) -> list[int]:
        """Read on first use."""
        self.reads += 1
        time.sleep(0.2)
        return [self.reads]


def test_threads_that_come_together_get_one_value() -> None:
    table, found, start = Table(), list[list[int]](), threading.Barrier(8)

    def ask() -> None:
        start.wait()
        found.append(table.rows)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[1]] * 8 and all(each is table.rows for each in found)
    assert Table().rows == [1]  # of its own
    assert Table.rows.__doc__ == "Read on first use."
