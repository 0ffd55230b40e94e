"""Background work pauses for requests, and the garbage collector skips the libraries."""

import gc
import sys

import pytest

from serving import background
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
