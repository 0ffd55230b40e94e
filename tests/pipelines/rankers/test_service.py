"""A service as a ranker, against a client that fails as told: nobody is dropped, everything is counted."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import HeldOut, heldout
from pipelines.errors import DataError
from pipelines.rankers import service
from pipelines.rankers.ranker import Served
from serving.bundle.reader import Bundle
from serving.client.client import RecallAnswer, RecallQuery, ServiceError
from serving.recall.loading import open_index
from tests.support.worlds import columns

K = 3
Answering = Callable[[RecallQuery, int], RecallAnswer]


def answered(query: RecallQuery, number: int) -> RecallAnswer:
    """The first items of the data set that are not excluded."""
    items = [f"i{item}" for item in range(columns.ITEMS) if f"i{item}" not in (query.get("exclude") or ())]
    return RecallAnswer([(item, 1.0) for item in items[:K]], "test-1", "user" if query.get("user_id") else "popular")


class FakeClient:
    """Answers by `answer`, which gets the query and how many came before it."""

    answer: Answering = staticmethod(answered)
    most = columns.USERS
    batches: list[list[RecallQuery]]
    asked = 0

    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> "FakeClient":
        return self

    def __exit__(self, *_: object) -> None: ...

    def recall(self, **options: Any) -> RecallAnswer:
        return answered(RecallQuery(**options), 0)

    def recall_batch(self, queries: Sequence[RecallQuery]) -> list[RecallAnswer]:
        if len(queries) > self.most:
            raise ServiceError(422, "invalid_request", f"queries: must hold at most {self.most}", "queries")
        answers = [type(self).answer(query, FakeClient.asked + place) for place, query in enumerate(queries)]
        FakeClient.asked += len(queries)
        self.batches.append([*queries])
        return answers


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> type[FakeClient]:
    monkeypatch.setattr(service, "Client", FakeClient)
    monkeypatch.setattr(FakeClient, "batches", [], raising=False)
    monkeypatch.setattr(FakeClient, "asked", 0)
    return FakeClient


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Served, Dataset, HeldOut]:
    dataset = columns.write_dataset(columns.make_events(), tmp_path_factory.mktemp("service"))
    data, bundle = Dataset.open(dataset), Bundle.open(columns.write_bundle_of(dataset))
    return Served.match(bundle, open_index(bundle), data), data, heldout(data, "test")


World = tuple[Served, Dataset, HeldOut]


def lists_by_hand(world: World) -> np.ndarray:
    _, data, held = world
    numbers = {name: number for number, name in enumerate(data.items["item_id"].to_list())}
    rows = []
    for place in range(len(held.users)):
        masked = {*held.seen_items[held.seen_offsets[place] : held.seen_offsets[place + 1]].tolist()}
        free = [numbers[f"i{item}"] for item in range(columns.ITEMS) if numbers[f"i{item}"] not in masked]
        rows.append(free[:K])
    return np.array(rows)


def test_batches_shrink_to_what_the_service_allows_and_all_are_answered(
    client: type[FakeClient], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "most", 6)
    served, data, held = world
    asked = service.ServiceRanker("http://x", served, data, K)
    assert asked(held).tolist() == lists_by_hand(world).tolist()
    users = [query["user_id"] for batch in client.batches for query in batch]
    assert users == data.users["user_id"].gather(held.users).to_list()
    # 40, 20, 10 are too many; the size that works is kept.
    assert [len(batch) for batch in client.batches] == [5] * 8
    assert asked.content()["model_versions"] == {"test-1": columns.USERS}


def test_where_repeats_count_nothing_is_masked(client: type[FakeClient], world: World) -> None:
    served, data, _ = world
    service.ServiceRanker("http://x", served, data, K)(heldout(data, "test", repeats=True))
    asked = [query for batch in client.batches for query in batch]
    assert len(asked) == columns.USERS
    assert all(not query["exclude_seen"] and not query.get("exclude") for query in asked)


def test_one_users_error_costs_only_this_user_and_is_counted(
    client: type[FakeClient], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, data, held = world
    bad = data.users["user_id"][int(held.users[11])]

    def answer(query: RecallQuery, number: int) -> RecallAnswer:
        if query["user_id"] == bad:
            raise ServiceError(422, "invalid_request", "exclude: must hold at most 1", "queries.11.exclude")
        return answered(query, number)

    monkeypatch.setattr(client, "answer", staticmethod(answer))
    asked = service.ServiceRanker("http://x", served, data, K)
    lists, expected = asked(held), lists_by_hand(world)
    expected[11] = -1
    assert lists.tolist() == expected.tolist()
    content = asked.content()
    assert (content["users"], content["failed"]) == (columns.USERS, {"invalid_request": 1})


def test_other_models_sources_and_items_are_counted(
    client: type[FakeClient], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(query: RecallQuery, number: int) -> RecallAnswer:
        right = answered(query, number)
        items = [("live", 2.0), *right.items[1:]] if number % 4 == 0 else right.items
        return RecallAnswer(items, "test-2" if number >= 30 else "test-1", "history" if number == 1 else "user")

    monkeypatch.setattr(client, "answer", staticmethod(answer))
    served, data, held = world
    asked = service.ServiceRanker("http://user:secret@x:81/", served, data, K)
    lists, expected = asked(held), lists_by_hand(world)
    expected[::4, 0] = -1
    assert lists.tolist() == expected.tolist()
    assert asked.content() == {
        "url": "http://x:81",
        "model_version": "test-1",
        "users": 40,
        "model_versions": {"test-1": 30, "test-2": 10},
        "sources": {"user": 39, "history": 1},
        "other_source": 1,
        "failed": {},
        "unknown_items": {"items": 1, "places": 10},
    }


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ServiceError(None, "no_connection", "refused"), r"http://x: .*refused.* \(after 20 users\)"),
        (ServiceError(200, "bad_answer", "not an answer"), r"is it `towers serve`\? \(after 20 users\)"),
        (
            ServiceError(401, "wrong_key", "this key is not known"),
            r"this key is not known; the variable TOWERS_API_KEY",
        ),
        (
            ServiceError(422, "invalid_request", "queries.0.k: must be at most 2, got 3", "queries.0.k"),
            r"lists of 3.*max_k",
        ),
    ],
)
def test_what_every_user_would_meet_ends_the_report(
    client: type[FakeClient], world: World, monkeypatch: pytest.MonkeyPatch, error: ServiceError, message: str
) -> None:
    served, data, held = world
    asked = service.ServiceRanker("http://x", served, data, K)
    first = heldout(data, "test", held.users[:20])
    asked(first)

    def answer(query: RecallQuery, number: int) -> RecallAnswer:
        raise error

    monkeypatch.setattr(client, "answer", staticmethod(answer))
    with pytest.raises(DataError, match=message):
        asked(heldout(data, "test", held.users[20:]))


def test_no_error_shows_a_password(world: World) -> None:
    served, data, _ = world
    for url in ("anna:s3cret@x", "http://anna:s3cret@[::1"):
        with pytest.raises(DataError, match=r"^--url: .*\*\*\*@") as caught:
            service.ServiceRanker(url, served, data, K)
        assert "s3cret" not in str(caught.value)


def test_a_proxy_that_cannot_be_used_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("all_proxy", "socks://127.0.0.1:1")
    served, data, _ = world
    with pytest.raises(DataError, match=r"^ALL_PROXY.* cannot be used: .*; unset the variable for this command$"):
        service.ServiceRanker("http://127.0.0.1:1", served, data, K)


def test_a_service_that_answers_nobody_is_no_service(
    client: type[FakeClient], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(query: RecallQuery, number: int) -> RecallAnswer:
        raise ServiceError(503, "not_ready", "no bundle is loaded yet")

    monkeypatch.setattr(client, "answer", staticmethod(answer))
    served, data, held = world
    with pytest.raises(DataError, match="answered none of the users so far, 40: not_ready for 40 users"):
        service.ServiceRanker("http://x", served, data, K)(held)


def test_a_service_holds_back_what_is_masked_and_nothing_of_what_else_it_knows(
    client: type[FakeClient], world: World
) -> None:
    """The bundle says that user 0 has seen one item fewer than is masked, user 1 one more: the next target."""
    _, data, held = world
    rows = [[*held.seen_items[held.seen_offsets[u] : held.seen_offsets[u + 1]]] for u in range(columns.USERS)]
    rows[0], rows[1] = rows[0][:-1], [*rows[1], held.target_items[held.target_offsets[1]]]
    assert held.users.tolist() == [*range(columns.USERS)]
    seen_offsets = np.cumsum([0, *map(len, rows)])
    made = Bundle.open(
        columns.write_bundle_of(
            data.path, name="seen", seen_offsets=seen_offsets, seen_items=[item for row in rows for item in row]
        )
    )
    service.ServiceRanker("http://x", Served.match(made, open_index(made), data), data, K)(held)
    (queries,) = client.batches
    names = data.items["item_id"]
    for user, query in enumerate(queries):
        masked = {names[int(item)] for item in held.seen_items[held.seen_offsets[user] : held.seen_offsets[user + 1]]}
        assert (query["exclude_seen"], sorted(query["exclude"])) == (False, sorted(masked))
