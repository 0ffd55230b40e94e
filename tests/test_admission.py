"""Who is let in, on a clock of the test's own: counts are exact, a standing line is told from a burst, and it ends."""

from collections import deque

import pytest

from serving.admission import BURST_S, LEAST, REFUSALS_AT_ONCE, REFUSALS_PER_S, Admission

STEP_S = 1e-3  # what a request takes of the one processor


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def fresh(max_concurrent: int = 64, max_heavy: int = 8, max_slowdown: float = 3.0) -> tuple[Admission, Clock]:
    clock = Clock()
    return Admission(max_concurrent, max_heavy, max_slowdown, clock), clock


def run(admission: Admission, clock: Clock, rate: float, seconds: float) -> tuple[int, int, list[float]]:
    """A single server, first come first served, one request each STEP_S: let in, refused, times in the line."""
    line: deque[tuple[float, int]] = deque()
    let_in = refused = 0
    times: list[float] = []
    end, next_at, free_at = clock.now + seconds, clock.now, clock.now
    while clock.now < end or line:
        done_at = max(free_at, line[0][0]) + STEP_S if line else float("inf")
        if next_at < min(done_at, end):
            clock.now = next_at
            next_at += 1 / rate
            if admission.enter(heavy=False) is None:
                let_in += 1
                line.append((clock.now, admission.in_flight))
            else:
                refused += 1
        elif line:
            clock.now = free_at = done_at
            since, others = line.popleft()
            times.append(clock.now - since)
            admission.leave(False, since, others)
        else:
            clock.now = end
    return let_in, refused, times


def test_no_more_than_the_limit_are_in_flight() -> None:
    admission, clock = fresh(max_concurrent=3)
    assert [admission.enter(False) for _ in range(5)] == [None, None, None, "concurrency", "concurrency"]
    admission.leave(False, clock(), 1)
    assert [admission.enter(False) for _ in range(2)] == [None, "concurrency"]
    assert admission.in_flight == 3


def test_heavy_ones_leave_room_for_the_others() -> None:
    admission, clock = fresh(max_concurrent=4, max_heavy=2)
    assert [admission.enter(True) for _ in range(3)] == [None, None, "heavy"]
    assert [admission.enter(False) for _ in range(3)] == [None, None, "concurrency"]
    admission.leave(True, clock(), 1)
    assert (admission.in_flight, admission.heavy) == (3, 1)
    assert admission.enter(True) is None


def test_half_of_what_can_be_done_is_never_refused() -> None:
    admission, clock = fresh()
    _, refused, times = run(admission, clock, rate=0.5 / STEP_S, seconds=5)
    assert refused == 0
    assert max(times) == pytest.approx(STEP_S)


def test_a_burst_is_let_in_whole() -> None:
    admission, clock = fresh(max_concurrent=64)
    run(admission, clock, rate=0.5 / STEP_S, seconds=1)
    let_in, refused, times = run(admission, clock, rate=100 / STEP_S, seconds=64 * STEP_S / 100)
    assert (let_in, refused) == (64, 0)
    assert max(times) > 30 * STEP_S  # so that it was one


def test_a_standing_line_is_cut_to_what_keeps_to_the_slowdown_and_nothing_is_idle() -> None:
    admission, clock = fresh()
    run(admission, clock, rate=0.5 / STEP_S, seconds=1)
    assert admission.calm_s[""] == pytest.approx(STEP_S)
    run(admission, clock, rate=2 / STEP_S, seconds=BURST_S + 1)
    assert admission.strict
    seconds = 5
    let_in, refused, times = run(admission, clock, rate=2 / STEP_S, seconds=seconds)
    # The line is never cut below LEAST; it may go over the slowdown by a request and a raise of the limit.
    assert max(times) <= (LEAST + 2) * STEP_S
    assert let_in == pytest.approx(seconds / STEP_S, rel=0.02)
    assert refused == pytest.approx(seconds / STEP_S, rel=0.02)


def test_when_the_load_is_over_all_are_let_in_again_within_half_a_second() -> None:
    admission, clock = fresh()
    run(admission, clock, rate=0.5 / STEP_S, seconds=1)
    run(admission, clock, rate=3 / STEP_S, seconds=3)
    assert admission.strict
    _, refused, _ = run(admission, clock, rate=0.5 / STEP_S, seconds=0.6)
    assert refused == 0
    assert not admission.strict


def test_the_time_in_calm_is_not_learnt_under_load() -> None:
    admission, clock = fresh()
    run(admission, clock, rate=0.5 / STEP_S, seconds=1)
    run(admission, clock, rate=2 / STEP_S, seconds=30)
    assert admission.calm_s[""] == pytest.approx(STEP_S, rel=0.1)
    assert admission.strict
    calm_s = admission.calm_s[""]
    for _ in range(100):  # alone in the worker, but behind all that is refused
        admission.enter(False)
        admission.leave(False, clock() - 10 * STEP_S, 1)
    assert admission.calm_s[""] == calm_s


def test_what_was_held_is_refused_while_there_is_a_standing_line_only() -> None:
    admission, clock = fresh()
    assert admission.enter(False, late=True) is None
    admission.leave(False, clock(), 1)
    run(admission, clock, rate=0.5 / STEP_S, seconds=1)
    run(admission, clock, rate=2 / STEP_S, seconds=1)
    assert admission.room
    assert admission.enter(False, late=True) == "wait"


def test_refusals_at_once_are_counted() -> None:
    admission, clock = fresh()
    assert sum(admission.may_refuse_at_once() for _ in range(REFUSALS_AT_ONCE + 500)) == REFUSALS_AT_ONCE
    clock.now += 1.0
    # 500 were owed.
    assert sum(admission.may_refuse_at_once() for _ in range(2 * REFUSALS_PER_S)) == min(
        REFUSALS_AT_ONCE, REFUSALS_PER_S - 500
    )


def test_the_first_of_a_burst_comes_alone_and_is_not_in_calm() -> None:
    admission, clock = fresh()
    run(admission, clock, rate=0.5 / STEP_S, seconds=1)
    for _ in range(100):
        since = clock()
        for _ in range(32):
            admission.enter(False)
        for place in range(32):  # all are answered together, 32 times as late
            clock.now = since + 32 * STEP_S
            admission.leave(False, since, place + 1)
    assert admission.calm_s[""] == pytest.approx(STEP_S)


def test_each_kind_of_work_has_its_own_time_in_calm() -> None:
    admission, clock = fresh(max_slowdown=3.0)
    for kind, seconds in (("fast", STEP_S), ("tower", 10 * STEP_S)):
        for _ in range(10):
            admission.enter(False)
            since, clock.now = clock(), clock() + seconds
            admission.leave(False, since, 1, kind)
    assert admission.calm_s == pytest.approx({"fast": STEP_S, "tower": 10 * STEP_S})
    for _ in range(100):  # three at a time, ten times as long as the fast ones: no slower than such work is
        for _ in range(3):
            admission.enter(False)
        since, clock.now = clock(), clock() + 12 * STEP_S
        for _ in range(3):
            admission.leave(False, since, 3, "tower")
    assert not admission.strict
