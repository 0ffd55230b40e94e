"""Overload and slow clients over real sockets: accepted requests get right answers, the others one form of refusal."""

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from benchmarks.serving import slow_loris
from benchmarks.serving.load import generator
from tests.support.processes.running_service import RunningService, eventually
from tests.support.worlds.serving import USERS, item_vectors, loop_search, query_vector, seen_rows, write_whole_world

pytestmark = pytest.mark.long

K = 5
MOST = 4  # requests in flight: a burst of a few hundred is far beyond
TIMEOUT_S = 1.0  # of a body that does not arrive
BODIES = [json.dumps({"user_id": f"u{user}", "k": K, "exclude_seen": True}).encode() for user in range(USERS)]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("calm")
    bundle = write_whole_world(folder)
    with RunningService(bundle, log=folder / "log", max_concurrent=MOST, body_timeout_s=TIMEOUT_S) as running:
        yield running


@pytest.fixture(scope="module")
def expected() -> list[list[str]]:
    """The items of each user by the world's formula, their seen ones left out."""
    queries = [query_vector({"user": f"u{user}"}) for user in range(USERS)]
    rows, _ = loop_search(item_vectors(), queries, K, [seen_rows(user) for user in range(USERS)])
    return [[f"i{row}" for row in each] for each in rows]


def test_a_burst_gets_200_with_its_own_items_or_429_in_the_one_shape_and_probes_are_answered(
    service: RunningService, expected: list[list[str]]
) -> None:
    asked = [_post(BODIES[place % USERS]) for place in range(300)] + [_get("/healthz"), _get("/readyz")] * 5
    refused = 0
    for _ in range(3):
        answers = _at_once(service.url, asked)
        for place, (status, headers, body) in enumerate(answers[:300]):
            assert status in (200, 429), (status, body)
            if status == 200:
                assert [item["id"] for item in json.loads(body)["items"]] == expected[place % USERS]
                continue
            refused += 1
            assert int(headers["retry-after"]) >= 1
            assert headers["content-type"] == "application/json"
            assert headers["x-request-id"]
            error = json.loads(body)
            assert set(error) == {"error"} and set(error["error"]) == {"code", "message", "field"}
            assert (error["error"]["code"], error["error"]["field"]) == ("too_many_requests", None)
        assert {status for status, _, _ in answers[300:]} == {200}
    assert refused > 0
    _all_is_well(service, expected)


def test_a_flood_without_a_pause_refuses_many_answers_others_and_ends_well(
    service: RunningService, expected: list[list[str]]
) -> None:
    answers = _answers(service, expected)
    probed: list[int] = []
    over = threading.Event()

    def probe() -> None:
        with httpx.Client(base_url=service.url, timeout=30) as client:
            while not over.is_set():
                probed.extend(client.get(path).status_code for path in ("/healthz", "/readyz"))

    probing = threading.Thread(target=probe)
    probing.start()
    try:
        found = generator.closed(f"{service.url}/recall", BODIES, 64, 2.0, answers=answers)
    finally:
        over.set()
        probing.join()
    assert set(found.statuses) == {200, 429}
    assert not found.errors and not found.wrong and not found.unasked
    assert probed and set(probed) == {200}
    _all_is_well(service, expected)


def test_slow_connections_are_answered_408_and_closed_and_the_others_are_answered(
    service: RunningService, expected: list[list[str]]
) -> None:
    dripped: dict[str, Any] = {}
    dripping = threading.Thread(target=lambda: dripped.update(slow_loris.drip(service.url, 200, 30 * TIMEOUT_S)))
    dripping.start()
    answered = 0
    with httpx.Client(base_url=service.url, timeout=30) as client:
        while dripping.is_alive():
            for body, items in zip(BODIES, expected, strict=True):
                answer = client.post("/recall", content=body, headers={"content-type": "application/json"})
                assert answer.status_code == 200, answer.text
                assert [item["id"] for item in answer.json()["items"]] == items
                answered += 1
    dripping.join()
    assert answered
    assert dripped["closed"] == dripped["connections"] == 200
    assert dripped["statuses"] == {"408": 200}


@pytest.mark.parametrize("beginning", slow_loris.BEGINNINGS, ids=["length", "chunks", "large"])
def test_half_a_body_gets_408_in_the_one_shape(service: RunningService, beginning: bytes) -> None:
    [(status, headers, body)] = _at_once(service.url, [beginning])
    assert status == 408
    assert headers["connection"] == "close"
    assert set(json.loads(body)["error"]) == {"code", "message", "field"}


def _all_is_well(service: RunningService, expected: list[list[str]]) -> None:
    """Every user gets their items again; a caller who was refused may need to ask once more."""
    for body, items in zip(BODIES, expected, strict=True):
        asked = json.loads(body)
        eventually(lambda asked=asked, items=items: _recalled(service, asked) == items, "all is as before")


def _recalled(service: RunningService, asked: dict[str, Any]) -> list[str] | None:
    answer = service.client.post("/recall", json=asked)
    return [item["id"] for item in answer.json()["items"]] if answer.status_code == 200 else None


def _answers(service: RunningService, expected: list[list[str]]) -> list[bytes]:
    """The body of each answer, once it is seen to hold the items that the formula gives."""
    bodies = []
    for body, items in zip(BODIES, expected, strict=True):
        answer = service.client.post("/recall", content=body, headers={"content-type": "application/json"})
        assert [item["id"] for item in answer.json()["items"]] == items
        bodies.append(answer.content)
    return bodies


def _post(body: bytes) -> bytes:
    head = b"POST /recall HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


def _get(path: str) -> bytes:
    return b"GET %s HTTP/1.1\r\nHost: a\r\n\r\n" % path.encode()


def _at_once(url: str, messages: list[bytes]) -> list[tuple[int, dict[str, str], bytes]]:
    """Sends each message on a connection of its own, all before any answer is read; gives status, headers and body."""
    address = url.removeprefix("http://").split(":")
    sockets = [socket.create_connection((address[0], int(address[1])), timeout=30) for _ in messages]
    try:
        for each, message in zip(sockets, messages, strict=True):
            each.sendall(message)
        return [_answer(each) for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _answer(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    data = b""
    while (end := data.find(b"\r\n\r\n")) < 0:
        data += _more(connection)
    first, *lines = data[:end].decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    while len(data) < end + 4 + int(headers["content-length"]):
        data += _more(connection)
    return int(first.split()[1]), headers, data[end + 4 :]


def _more(connection: socket.socket) -> bytes:
    data = connection.recv(1 << 16)
    assert data, "closed in the middle of an answer"
    return data
