"""Queries answered together get what each gets alone, and nobody pays for another's fault."""

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from serving.bundle.reader import Bundle
from serving.errors import RequestError
from serving.recall import microbatching
from serving.recall.microbatching import Batcher
from serving.recall.query import Recalled, RecallQuery
from serving.recall.recaller import Recaller
from serving.search.exact import ExactIndex
from tests.support.worlds.serving import ArithmeticEncoder, write_world

WAIT_S = 20


class Tower(ArithmeticEncoder):
    """Remembers how many requests each call got; may wait before it answers, and fails where age is 13."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []
        self.started, self.goes_on = threading.Event(), threading.Event()
        self.goes_on.set()

    def encode(self, requests: Sequence[Mapping[str, Any]]) -> np.ndarray:
        self.calls.append(len(requests))
        self.started.set()
        assert self.goes_on.wait(WAIT_S)
        if any(request.get("age") == 13 for request in requests):
            raise FloatingPointError("of all of them")
        return super().encode(requests)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    path = tmp_path_factory.mktemp("world") / "bundle"
    write_world(path)
    return Bundle.open(path)


def recaller(bundle: Bundle, tower: Tower | None = None) -> Recaller:
    return Recaller(bundle, ExactIndex(bundle.item_vectors), tower or Tower())


MADE: list[Batcher] = []


@pytest.fixture(autouse=True)
def closes_what_it_made() -> Iterator[None]:
    yield
    while MADE:
        MADE.pop().close()


def batcher_of(most: int) -> Batcher:
    MADE.append(Batcher(most))
    return MADE[-1]


USERS = [RecallQuery(user_id=f"u{user}", k=3 + user % 2) for user in range(5)]
AGES = [RecallQuery(user_id="u5", features={"age": age}, k=4) for age in range(1, 6)]


async def answers(batcher: Batcher, asked: Recaller, queries: Sequence[RecallQuery]) -> list[Any]:
    waiting = [batcher.answer(asked, query) for query in queries]
    return await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), WAIT_S)


def assert_alone(found: Recalled, asked: Recaller, query: RecallQuery) -> None:
    alone = asked.recall(query)
    assert (found.ids, found.scores.tolist(), found.source) == (alone.ids, alone.scores.tolist(), alone.source)


def test_those_of_one_moment_share_one_call_and_get_what_each_gets_alone(bundle: Bundle) -> None:
    tower = Tower()
    asked = recaller(bundle, tower)
    found = asyncio.run(answers(batcher_of(8), asked, AGES))
    assert tower.calls == [5]
    for query, answer in zip(AGES, found, strict=True):
        assert_alone(answer, asked, query)
    for query, answer in zip(USERS, asyncio.run(answers(batcher_of(8), asked, USERS)), strict=True):
        assert_alone(answer, asked, query)


def test_newcomers_wait_for_the_running_batch_and_go_together_at_most_so_many(bundle: Bundle) -> None:
    tower = Tower()
    tower.goes_on.clear()
    asked = recaller(bundle, tower)

    async def scenario() -> list[Any]:
        batcher = batcher_of(2)
        first = asyncio.ensure_future(answers(batcher, asked, AGES[:1]))
        await asyncio.to_thread(tower.started.wait, WAIT_S)
        others = asyncio.ensure_future(answers(batcher, asked, [*AGES[1:], AGES[0]]))
        await asyncio.sleep(0.01)
        tower.goes_on.set()
        return [*await first, *await others]

    found = asyncio.run(scenario())
    assert tower.calls == [1, 2, 2, 1]
    for query, answer in zip([*AGES, AGES[0]], found, strict=True):
        assert_alone(answer, asked, query)


def test_known_users_are_answered_while_the_tower_is_busy(bundle: Bundle) -> None:
    tower = Tower()
    tower.goes_on.clear()
    asked = recaller(bundle, tower)

    async def scenario() -> None:
        batcher = batcher_of(8)
        waiting = asyncio.ensure_future(answers(batcher, asked, AGES[:1]))
        await asyncio.to_thread(tower.started.wait, WAIT_S)
        for query, answer in zip(USERS, await answers(batcher, asked, USERS), strict=True):
            assert_alone(answer, asked, query)
        assert not waiting.done()
        tower.goes_on.set()
        await waiting

    asyncio.run(scenario())


@pytest.mark.parametrize("queries", [USERS, AGES])
def test_a_wrong_query_gets_its_own_error_and_its_neighbours_their_answers(
    bundle: Bundle, queries: list[RecallQuery]
) -> None:
    wrong = RecallQuery(k=0) if queries is USERS else RecallQuery(features={"age": "old"})
    asked = recaller(bundle)
    found = asyncio.run(answers(batcher_of(8), asked, [*queries[:2], wrong, *queries[2:]]))
    assert isinstance(found[2], RequestError)
    assert found[2].field == ("k" if queries is USERS else "features.age")
    for query, answer in zip(queries, [*found[:2], *found[3:]], strict=True):
        assert_alone(answer, asked, query)


def test_what_makes_the_tower_fail_fails_alone(bundle: Bundle) -> None:
    tower = Tower()
    asked = recaller(bundle, tower)
    found = asyncio.run(answers(batcher_of(8), asked, [*AGES[:2], RecallQuery(features={"age": 13}), AGES[2]]))
    assert isinstance(found[2], FloatingPointError)
    assert tower.calls == [4, 1, 1, 1, 1]
    for query, answer in zip(AGES[:3], [*found[:2], found[3]], strict=True):
        assert_alone(answer, asked, query)


@pytest.mark.parametrize("queries", [USERS, AGES])
def test_a_search_that_fails_for_all_is_made_again_for_each(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, queries: list[RecallQuery]
) -> None:
    asked, whole = recaller(bundle), Recaller.answers
    wanted = [asked.recall(query) for query in queries[:3]]

    def fails(self: Recaller, work: Any) -> list[Recalled]:
        if len(work.plans) > 1 or work.plans[0].query is queries[1]:
            raise ZeroDivisionError("in the index")
        return whole(self, work)

    monkeypatch.setattr(Recaller, "answers", fails)
    found = asyncio.run(answers(batcher_of(8), asked, queries[:3]))
    assert isinstance(found[1], ZeroDivisionError)
    assert [found[0].ids, found[2].ids] == [wanted[0].ids, wanted[2].ids]


def test_a_caller_who_has_gone_is_left_out(bundle: Bundle) -> None:
    tower = Tower()
    tower.goes_on.clear()
    asked = recaller(bundle, tower)

    async def scenario() -> None:
        batcher = batcher_of(8)
        first = asyncio.ensure_future(answers(batcher, asked, AGES[:1]))
        await asyncio.to_thread(tower.started.wait, WAIT_S)
        waiting = [asyncio.ensure_future(batcher.answer(asked, each)) for each in AGES[:3]]
        await asyncio.sleep(0.01)
        waiting[1].cancel()
        await asyncio.sleep(0)
        tower.goes_on.set()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(found[1], asyncio.CancelledError)
        await first

    asyncio.run(scenario())
    assert tower.calls == [1, 2]


def test_each_query_is_answered_by_its_own_bundle(bundle: Bundle) -> None:
    one, other = Tower(), Tower()
    first, second = recaller(bundle, one), recaller(bundle, other)
    second.catalogue.index = second.catalogue.exact = ExactIndex(-np.array(bundle.item_vectors))

    async def scenario(queries: list[RecallQuery]) -> list[Any]:
        batcher = batcher_of(16)
        waiting = [answers(batcher, each, [query]) for query in queries for each in (first, second)]
        return [answer for (answer,) in await asyncio.gather(*waiting)]

    for queries in (USERS, AGES):
        found = asyncio.run(scenario(queries))
        for place, query in enumerate(queries):
            assert_alone(found[2 * place], first, query)
            assert_alone(found[2 * place + 1], second, query)
    assert (one.calls[:1], other.calls[:1]) == ([5], [5])


@pytest.mark.parametrize("queries", [USERS, AGES, [RecallQuery(k=0)], [RecallQuery(features={"age": 13})]])
def test_a_bundle_goes_with_its_last_answer(bundle: Bundle, queries: list[RecallQuery]) -> None:
    async def scenario() -> weakref.ref[Recaller]:
        batcher, asked = batcher_of(8), recaller(bundle)
        for query in queries:
            with suppress(RequestError, FloatingPointError):
                await batcher.answer(asked, query)
        held = weakref.ref(asked)
        del asked
        deadline = time.monotonic() + WAIT_S
        while held() is not None and time.monotonic() < deadline:
            await asyncio.sleep(0.001)  # a thread lets go a moment after it has answered
        return held

    gc.collect()
    gc.disable()
    try:
        assert asyncio.run(scenario())() is None
    finally:
        gc.enable()


def test_there_is_no_timer_and_a_long_line_lets_others_in(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(microbatching, "MOST_INLINE", 2)
    asked, begun, turns = recaller(bundle), [], []
    whole = Recaller.begin

    def begin(self: Recaller, queries: Sequence[RecallQuery]) -> Any:
        begun.append(len(queries))
        turns.append("batch")
        return whole(self, queries)

    monkeypatch.setattr(Recaller, "begin", begin)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        for name in ("call_later", "call_at"):
            monkeypatch.setattr(loop, name, lambda *_: pytest.fail("a timer"))
        batcher = batcher_of(8)
        waiting = [asyncio.ensure_future(batcher.answer(asked, each)) for each in USERS]
        for _ in range(12):
            turns.append("other")
            await asyncio.sleep(0)
        await asyncio.gather(*waiting)

    asyncio.run(scenario())
    assert begun == [2, 2, 1]
    first, last = turns.index("batch"), len(turns) - 1 - turns[::-1].index("batch")
    assert turns[first : last + 1] == ["batch", "other", "batch", "other", "batch"]


@pytest.mark.parametrize(("gather_s", "batches"), [(60.0, [5]), (-1.0, [2, 3])])
def test_requests_of_later_turns_join_while_turns_are_quick(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, gather_s: float, batches: list[int]
) -> None:
    """-1: the turn that read the first two took longer than may be waited for."""
    monkeypatch.setattr(microbatching, "GATHER_S", gather_s)
    asked, begun, whole = recaller(bundle), [], Recaller.begin

    def begin(self: Recaller, queries: Sequence[RecallQuery]) -> Any:
        begun.append(len(queries))
        return whole(self, queries)

    monkeypatch.setattr(Recaller, "begin", begin)

    async def scenario() -> None:
        batcher = batcher_of(8)
        waiting = [asyncio.ensure_future(batcher.answer(asked, each)) for each in USERS[:2]]
        await asyncio.sleep(0)
        waiting += [asyncio.ensure_future(batcher.answer(asked, each)) for each in USERS[2:]]
        await asyncio.gather(*waiting)

    asyncio.run(scenario())
    assert begun == batches


def test_who_still_stands_in_line_at_the_end_is_told(bundle: Bundle) -> None:
    async def scenario() -> list[Any]:
        batcher, asked = batcher_of(8), recaller(bundle)
        waiting = asyncio.ensure_future(answers(batcher, asked, [USERS[0], AGES[0]]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        batcher.close()
        return await waiting

    found = asyncio.run(scenario())
    assert all(isinstance(each, RequestError) and each.code == "stopping" for each in found), found


def test_callers_who_ask_again_at_once_go_together(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else those of one batch wait for those of the other, in turns: twice the calls of the tower."""
    monkeypatch.setattr(microbatching, "TOWER_GATHER_S", 60.0)  # on a busy machine a turn may take longer than 5 ms
    tower = Tower()
    tower.goes_on.clear()
    asked = recaller(bundle, tower)

    async def caller(batcher: Batcher, query: RecallQuery, turns: int) -> None:
        for _ in range(20):
            await batcher.answer(asked, query)
            for _ in range(turns):  # the answer goes out, the next request comes in
                await asyncio.sleep(0)

    async def scenario() -> None:
        batcher = batcher_of(16)
        first = asyncio.ensure_future(caller(batcher, AGES[0], 1))
        await asyncio.to_thread(tower.started.wait, WAIT_S)
        others = [asyncio.ensure_future(caller(batcher, query, turns)) for turns, query in enumerate(AGES[1:])]
        await asyncio.sleep(0)  # they queue behind the first
        tower.goes_on.set()
        await asyncio.gather(first, *others)

    asyncio.run(scenario())
    assert tower.calls == [1, *[5] * 19, 4]
