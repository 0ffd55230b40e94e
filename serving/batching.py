"""Queries that are there at the same time answered together: one call of the tower and few searches for all of them.

In: one query of each caller, in the event loop. Out: its answer, or its own error. There is no timer and nothing to set
but the most that go together. Where nothing is running, a batch starts with the queries of these turns of the event
loop; those that arrive while one runs go with the next. So an idle service answers at once, and under load batches grow
by themselves until they keep up.

Plans and searches are made in the event loop itself, which is faster than any thread, and the tower is called in a
thread, one batch after another.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any, NamedTuple

from starlette.concurrency import run_in_threadpool

from serving import metrics
from serving.errors import RequestError
from serving.query import Recalled, RecallQuery
from serving.recall import Recaller, Work

# Answered in the event loop at a time: so many fast searches take it a few milliseconds.
MOST_INLINE = 32


class _Waiting(NamedTuple):
    """A query, and who waits for it. It holds its bundle; nothing here holds one that no query waits for."""

    recaller: Recaller
    query: RecallQuery
    answer: "asyncio.Future[Recalled]"
    since: float


class Batcher:
    """Answers queries together. Every method is for the thread of the event loop.

    Args:
        most: queries that one call of the tower answers.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._known: deque[_Waiting] = deque()
        self._looked = 0  # how many stood in that line at the last look
        self._encoded: deque[_Waiting] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._encoding = False
        # One: a second call of the tower would take the processor from the first, and leave fewer queries to each.
        self._thread = ThreadPoolExecutor(1, "tower")

    async def answer(self, recaller: Recaller, query: RecallQuery) -> Recalled:
        """Answers a query with the others that are there.

        Args:
            recaller: what answers it.
            query: what was asked; its search takes so little that the event loop can wait for it.

        Raises:
            RequestError: the query is wrong.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Recalled] = loop.create_future()
        waiting = _Waiting(recaller, query, answer, perf_counter())
        if query.features or query.history or recaller.planner.users.items(query.user_id):
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
            # An error holds this frame: with the future in it they would be a cycle, and the bundle would live on.
            del answer, waiting

    def close(self) -> None:
        """Waits for the call of the tower that runs; who still stands in line gets an error."""
        self._thread.shutdown(cancel_futures=True)
        for each in (*self._known, *self._encoded):
            if not each.answer.done():
                each.answer.set_exception(RequestError("the service is stopping", code="stopping"))
        self._known.clear()
        self._encoded.clear()

    def _answer_known(self) -> None:
        if max(1, self._looked) < len(self._known) < MOST_INLINE:
            # Several came, and more may stand at the sockets: those are read before this is called again.
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
                recaller.encode(work)  # Of a user who took something in this moment.
                _give(some, work, recaller.answers(work))
            except Exception:  # noqa: BLE001 - one may be at fault for all
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
                except Exception:  # noqa: BLE001 - one may be at fault for all
                    self._keep(_alone(recaller, some))
        finally:
            self._start()

    async def _answer_together(self, recaller: Recaller, some: Sequence[_Waiting]) -> None:
        work = recaller.begin([each.query for each in some])
        if work.unencoded:
            await asyncio.get_running_loop().run_in_executor(self._thread, recaller.encode, work)
        _give(some, work, recaller.answers(work))


async def _alone(recaller: Recaller, some: Sequence[_Waiting]) -> None:
    """Answers each query of a batch that failed: those that are not at fault get their answers."""
    for each in some:
        if not each.answer.done():
            _tell(each, await run_in_threadpool(_outcome, recaller, each.query))


def _outcome(recaller: Recaller, query: RecallQuery) -> Recalled | Exception:
    try:
        return recaller.recall(query)
    except Exception as error:  # noqa: BLE001 - whatever it is, it goes to its caller
        return error


def _taken(waiting: deque[_Waiting], most: int) -> list[_Waiting]:
    """The first of the line, without those whose caller has gone."""
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
    """Each its own error, or the next of the answers to those who asked nothing wrong."""
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
