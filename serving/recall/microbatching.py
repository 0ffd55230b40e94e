"""Answers concurrent queries in micro-batches: one call of the tower and few searches per batch.

Each query gets its answer or its own error. There is no timer, and the batch limit is the only setting. If nothing is
running, a batch starts with the queries of the current turns of the event loop; queries that arrive while one runs join
the next. So an idle service answers at once, and under load batches grow until they keep up.

Plans and searches run in the event loop itself, which is faster than any thread; the tower runs in one thread, one
batch after another.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
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


class _Waiting(NamedTuple):
    """A query and its caller's future. It holds its bundle; nothing here holds a bundle that no query waits for."""

    recaller: Recaller
    query: RecallQuery
    answer: "asyncio.Future[Recalled]"
    since: float


class Batcher:
    """Answers queries in micro-batches. Call every method from the event loop's thread.

    Args:
        most: the most queries per call of the tower.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._known: deque[_Waiting] = deque()
        self._looked = 0  # length of that queue at the last look
        self._encoded: deque[_Waiting] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._encoding = False
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
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Recalled] = loop.create_future()
        waiting = _Waiting(recaller, query, answer, perf_counter())
        if query.features or query.history or query.user_id in recaller.planner.users:
            self._encoded.append(waiting)
            if not self._encoding:
                self._encoding = True
                loop.call_soon(self._start)
        else:
            if not self._known:
                loop.call_soon(self._answer_known)
            self._known.append(waiting)
        try:
            return await answer
        finally:
            # An error references this frame: with the future in it they form a cycle that keeps the bundle alive.
            del answer, waiting

    def close(self) -> None:
        """Waits for the running call of the tower; queued queries get an error."""
        self._thread.shutdown(cancel_futures=True)
        for each in (*self._known, *self._encoded):
            if not each.answer.done():
                each.answer.set_exception(RequestError("the service is stopping", code="stopping"))
        self._known.clear()
        self._encoded.clear()

    def _answer_known(self) -> None:
        gathering = perf_counter() - self._known[0].since < GATHER_S
        if gathering and max(1, self._looked) < len(self._known) < MOST_INLINE:
            # Several arrived, and the sockets may hold more: those are read before this is called again.
            self._looked = len(self._known)
            asyncio.get_running_loop().call_soon(self._answer_known)
            return
        self._looked = 0
        batch = _taken(self._known, MOST_INLINE)
        if self._known:
            asyncio.get_running_loop().call_soon(self._answer_known)
        for recaller, some in _by_bundle(batch):
            try:
                work = recaller.begin([each.query for each in some])
                recaller.encode(work)  # in case an event of the user has just arrived
                _give(some, work, recaller.answers(work))
            except Exception:  # noqa: BLE001 - one query may fail the whole batch
                self._keep(_alone(recaller, some))

    def _start(self) -> None:
        batch = _taken(self._encoded, self.most)
        self._encoding = bool(batch)
        if batch:
            self._keep(self._answer_encoded(batch))

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
            self._start()

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
