"""Answers concurrent queries in micro-batches: one call of the tower and few searches per batch.

Each query gets its answer or its own error. There is no timer, and the batch limit is the only setting. If nothing is
running, a batch starts with the queries of the current turns of the event loop; queries that arrive while one runs join
the next, with those that its answers bring. So an idle service answers at once, and under load batches grow until they
keep up.

Plans and searches run in the event loop itself, which is faster than any thread; the tower runs in one thread, one
batch after another.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any, NamedTuple

from starlette.concurrency import run_in_threadpool

from serving.errors import RequestError
from serving.recall.query import Recalled, RecallQuery
from serving.recall.recaller import Recaller, Work
from serving.telemetry import metrics

# Queries per turn of the event loop: this many fast searches take a few milliseconds.
MOST_INLINE = 32
# A turn that takes longer reads more requests than it answers, most of them to refuse them: answer what has come.
GATHER_S = 0.002
# Reading as many requests as a call of the tower takes on a slow core; half a call saves less than half of its time.
TOWER_GATHER_S = 0.005


class _Waiting(NamedTuple):
    """A query and its caller's future. It holds its bundle; nothing here holds a bundle that no query waits for."""

    recaller: Recaller
    query: RecallQuery
    answer: "asyncio.Future[Recalled]"
    since: float


class _Queue:
    """Queries that wait for the next batch, one batch at a time.

    Args:
        most: the most queries of a batch.
        gather_s: the longest that a batch waits for more queries, in seconds.
        quiet_turns: a batch begins after this many turns of the event loop without a new query; a lone one at once.
        begin: begins a batch, and calls `end` once it is answered.
    """

    def __init__(self, most: int, gather_s: float, quiet_turns: int, begin: Callable[[list[_Waiting]], None]) -> None:
        self._most, self._gather_s, self._quiet_turns, self._begin = most, gather_s, quiet_turns, begin
        self._waiting: deque[_Waiting] = deque()
        self._busy = False
        self._free_since = 0.0  # when a batch of several was answered; 0 after others
        self._looked, self._quiet = 0, 0  # length at the last look, looks since it grew

    def add(self, query: _Waiting) -> None:
        """Queues a query."""
        self._waiting.append(query)
        if not self._busy:
            self._busy = True
            asyncio.get_running_loop().call_soon(self._look)

    def end(self, size: int = 0) -> None:
        """The batch is answered; above a `size` of 1 its callers may ask again at once, and join the next batch."""
        self._free_since, self._busy = perf_counter() if size > 1 else 0.0, bool(self._waiting)
        if self._busy:
            asyncio.get_running_loop().call_soon(self._look)

    def take_all(self) -> list[_Waiting]:
        """Empties the queue."""
        left = [*self._waiting]
        self._waiting.clear()
        return left

    def _look(self) -> None:
        length = len(self._waiting)
        if not length:  # closed
            return
        self._quiet = 0 if length > self._looked else self._quiet + 1
        self._looked = length
        lone = length == 1 and not self._free_since
        if not lone and length < self._most and self._quiet < self._quiet_turns:
            waited = perf_counter() - max(self._waiting[0].since, self._free_since)
            if waited < self._gather_s:
                # The sockets may hold more: those are read before this is called again.
                asyncio.get_running_loop().call_soon(self._look)
                return
        self._looked, self._quiet = 0, 0
        self._begin(_taken(self._waiting, self._most))


class Batcher:
    """Answers queries in micro-batches. Call every method from the event loop's thread.

    Args:
        most: the most queries per call of the tower.
    """

    def __init__(self, most: int) -> None:
        self._known = _Queue(MOST_INLINE, GATHER_S, 1, self._answer_known)
        self._encoded = _Queue(most, TOWER_GATHER_S, 2, lambda batch: self._keep(self._answer_encoded(batch)))
        self._running: set[asyncio.Task[None]] = set()
        # One thread: a second call of the tower would slow down the first, and leave fewer queries to each.
        self._thread = ThreadPoolExecutor(1, "tower")

    async def answer(self, recaller: Recaller, query: RecallQuery) -> Recalled:
        """Answers a query together with the others that wait.

        Args:
            recaller: answers the query.
            query: a query whose search is fast enough for the event loop.

        Raises:
            RequestError: the query is invalid.
        """
        answer: asyncio.Future[Recalled] = asyncio.get_running_loop().create_future()
        waiting = _Waiting(recaller, query, answer, perf_counter())
        encoded = query.features or query.history or query.user_id in recaller.planner.users
        (self._encoded if encoded else self._known).add(waiting)
        try:
            return await answer
        finally:
            # An error references this frame: with the future in it they form a cycle that keeps the bundle alive.
            del answer, waiting

    def close(self) -> None:
        """Waits for the running call of the tower; queued queries get an error."""
        self._thread.shutdown(cancel_futures=True)
        for each in (*self._known.take_all(), *self._encoded.take_all()):
            if not each.answer.done():
                each.answer.set_exception(RequestError("the service is stopping", code="stopping"))

    def _answer_known(self, batch: Sequence[_Waiting]) -> None:
        for recaller, some in _by_bundle(batch):
            try:
                work = recaller.begin([each.query for each in some])
                recaller.encode(work)  # in case an event of the user has just arrived
                _give(some, work, recaller.answers(work))
            except Exception:  # noqa: BLE001 - one query may fail the whole batch
                self._keep(_alone(recaller, some))
        self._known.end()

    def _keep(self, running: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(running)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _answer_encoded(self, batch: Sequence[_Waiting]) -> None:
        try:
            for recaller, some in _by_bundle(batch):
                try:
                    await self._answer_together(recaller, some)
                except Exception:  # noqa: BLE001 - one query may fail the whole batch
                    self._keep(_alone(recaller, some))
        finally:
            self._encoded.end(len(batch))

    async def _answer_together(self, recaller: Recaller, some: Sequence[_Waiting]) -> None:
        work = recaller.begin([each.query for each in some])
        if work.unencoded:
            await asyncio.get_running_loop().run_in_executor(self._thread, recaller.encode, work)
        _give(some, work, recaller.answers(work))


async def _alone(recaller: Recaller, some: Sequence[_Waiting]) -> None:
    """Answers the queries of a failed batch one by one, so that only those at fault fail."""
    for each in some:
        if not each.answer.done():
            _tell(each, await run_in_threadpool(_outcome, recaller, each.query))


def _outcome(recaller: Recaller, query: RecallQuery) -> Recalled | Exception:
    try:
        return recaller.recall(query)
    except Exception as error:  # noqa: BLE001 - every error goes to the query's caller
        return error


def _taken(waiting: deque[_Waiting], most: int) -> list[_Waiting]:
    """Takes the first of the queue, skipping those whose caller has gone."""
    batch: list[_Waiting] = []
    started = perf_counter()
    while waiting and len(batch) < most:
        each = waiting.popleft()
        if not each.answer.done():
            metrics.stage("wait", started - each.since)
            batch.append(each)
    return batch


def _by_bundle(batch: Sequence[_Waiting]) -> Iterable[tuple[Recaller, list[_Waiting]]]:
    alike: dict[Recaller, list[_Waiting]] = {}
    for each in batch:
        alike.setdefault(each.recaller, []).append(each)
    for some in alike.values():
        metrics.batch(len(some))
    return alike.items()


def _give(some: Sequence[_Waiting], work: Work, answers: Sequence[Recalled]) -> None:
    """Gives each query its own error, or the next of the answers to the valid ones."""
    following = iter(answers)
    for place, each in enumerate(some):
        _tell(each, work.errors[place] if place in work.errors else next(following))


def _tell(each: _Waiting, outcome: Recalled | Exception) -> None:
    if each.answer.done():
        return
    if isinstance(outcome, Exception):
        each.answer.set_exception(outcome)
    else:
        each.answer.set_result(outcome)
