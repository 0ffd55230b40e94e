"""Callers with a key: the client and `towers query` send it, to a service that asks for one; it is never shown."""

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from pipelines.errors import DataError
from pipelines.service import query
from serving.client.client import AsyncClient, Client, ServiceError
from serving.client.retries import Service

KEY = "k3y-Of_the-caller"
RECALLED = b'{"items":[],"model_version":"v","source":"user"}'
WRONG = b'{"error":{"code":"wrong_key","message":"this key is not known","field":null}}'


@pytest.fixture
def url() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            good = self.headers.get_all("authorization") == [f"Bearer {KEY}"]
            body = RECALLED if good else WRONG
            self.send_response(200 if good else 401)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_both_clients_send_the_key(url: str) -> None:
    async def awaited() -> None:
        async with AsyncClient(url, api_key=KEY) as client:
            assert (await client.recall("u1")).items == []

    with Client(url, api_key=KEY) as client:
        assert client.recall("u1").items == []
    asyncio.run(awaited())


@pytest.mark.parametrize("key", [None, "another"])
def test_a_wrong_key_is_final_and_not_tried_again(url: str, key: str | None) -> None:
    with Client(url, api_key=key) as client, pytest.raises(ServiceError) as caught:
        client.recall("u1")
    assert (caught.value.status, caught.value.code) == (401, "wrong_key")


@pytest.mark.parametrize("key", ["", "two words", "line\nbreak", "ключ"])
def test_a_key_that_no_header_holds_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ValueError, match=r"^api_key: must be printable ASCII without spaces$"):
        Client("http://x", api_key=key)


def test_the_key_is_not_in_what_a_program_may_print() -> None:
    service = Service("http://anna:s3cret@x", 1.0, 1)
    assert "s3cret" not in repr(service) and service.address == "http://***@x"
    assert KEY not in repr(Service("http://x", 1.0, 1, KEY))


def test_a_key_beside_a_password_is_refused() -> None:
    """Both are the one header, and httpx sends the password."""
    for address in ("http://anna:s3cret@x", "http://anna@x"):
        with pytest.raises(ValueError, match=r"^api_key: the address has a user or a password.*; give one of them$"):
            Client(address, api_key=KEY)


def test_no_answer_shows_a_password() -> None:
    with Client("http://anna:s3cret@127.0.0.1:1", tries=1) as client, pytest.raises(ServiceError) as caught:
        client.recall("u1")
    assert str(caught.value).startswith("POST http://***@127.0.0.1:1: ") and "s3cret" not in str(caught.value)


def test_query_sends_the_key_of_the_environment(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOWERS_API_KEY", KEY)
    query.run("u1", url=url)
    shown = capsys.readouterr()
    assert "source: user" in shown.out and KEY not in shown.out + shown.err


def test_query_refuses_a_key_beside_a_password(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOWERS_API_KEY", KEY)
    told = rf"^TOWERS_API_KEY: {url.replace('//', '//[*]{3}@')}/recall has a user or a password, .*; give one of them$"
    with pytest.raises(DataError, match=told):
        query.run("u1", url=url.replace("//", "//anna:s3cret@"))


@pytest.mark.parametrize("key", [f"{KEY}\n", f"{KEY}é", f"{KEY} {KEY}"])
def test_query_refuses_a_key_that_no_header_holds_and_does_not_show_it(
    url: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOWERS_API_KEY", key)
    with pytest.raises(DataError, match=r"^TOWERS_API_KEY: must be printable ASCII without spaces$"):
        query.run("u1", url=url)
