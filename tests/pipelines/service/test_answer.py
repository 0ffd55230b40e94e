"""`towers query --url`: titles from the service, and one clear line for each way in which no answer comes."""

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import uvicorn

from pipelines.errors import DataError
from pipelines.service import answer as service_answer
from pipelines.service import query
from pipelines.service.answer import Answer, ask
from serving.http.app import create_app
from serving.settings import Settings
from tests.support.worlds.serving import ITEMS, save_towers, write_world


def write(directory: Path, **columns: list[Any]) -> Path:
    write_world(directory / "bundle", item_attributes=pl.DataFrame(columns), write_towers=save_towers)
    return directory / "bundle"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """service(**columns) serves a world whose items have these columns, and gives its address."""
    running: list[tuple[uvicorn.Server, threading.Thread]] = []

    def start(**columns: list[Any]) -> str:
        bundle = write(tmp_path_factory.mktemp("service"), **columns)
        config = uvicorn.Config(create_app(Settings(bundle=bundle, max_k=9)), port=0, log_config=None)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, daemon=True)
        running.append((server, thread))
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        return f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"

    yield start
    for server, thread in running:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def titled(service: Callable[..., str]) -> str:
    return service(year=[2000] * ITEMS, title=[None if row == 13 else f"Title [{row}]" for row in range(ITEMS)])


@pytest.fixture(scope="module")
def untitled(service: Callable[..., str]) -> str:
    return service(year=[2000] * ITEMS)


def score(row: int) -> Any:
    """Of an item of the user's own group; see the serving world."""
    return pytest.approx(2 - row / ITEMS)


def test_the_service_names_the_items(titled: str, capsys: pytest.CaptureFixture[str]) -> None:
    best = [("i9", score(9)), ("i13", score(13))]
    assert ask(titled, "u5", 2) == Answer(best, "user", ["Title [9]", None])
    assert ask(f"{titled}/recall/", "u5", 2, titled=False) == Answer(best, "user", None)
    query.run("u5", url=titled, k=2)
    shown = capsys.readouterr()
    assert "Title [9]" in shown.out and "None" not in shown.out and shown.err == ""


def test_titles_that_are_lists_of_words_are_put_together(
    service: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    query.run("u5", url=service(movie_title=[["Item", "Number", str(row)] for row in range(ITEMS)]), k=1)
    assert "Item Number 9" in capsys.readouterr().out


def test_a_service_without_titles_is_asked_for_none(untitled: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(untitled, "u5", 1) == Answer([("i9", score(9))], "user", None)
    query.run("u5", url=untitled, k=1)
    assert "title" not in capsys.readouterr().out


def test_a_bundle_beside_the_address_gives_the_titles(
    untitled: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = write(tmp_path, name=[f"Name {row}" for row in range(ITEMS)])
    query.run("u5", bundle=bundle, url=untitled, k=1)
    assert "Name 9" in capsys.readouterr().out


def test_a_k_beyond_the_services_limit_names_the_option(titled: str) -> None:
    told = f"--k must be at most 9, got 10: the limit of the service at {titled}/recall"
    with pytest.raises(DataError, match=f"^{re.escape(told)}$"):
        ask(titled, "u5", 10)


def whole_request(connection: socket.socket) -> bytes:
    came = b""
    while piece := connection.recv(65_536):
        came += piece
        head, end, body = came.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head.lower())
        if end and len(body) >= int(length[1] if length else 0):
            break
        if not came.startswith((b"GET", b"POST")):
            break
    return came


class Stranger:
    """Listens, and answers what comes on each connection with the next bytes; with None it waits, and says nothing."""

    def __init__(self, *answers: bytes | None) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.asked: list[bytes] = []
        self._held: list[socket.socket] = []
        threading.Thread(target=self._serve, args=(answers,), daemon=True).start()

    def _serve(self, answers: tuple[bytes | None, ...]) -> None:
        with suppress(OSError):  # the test is over
            for answer in answers:
                connection, _ = self.socket.accept()
                self._held.append(connection)
                connection.settimeout(5)
                self.asked.append(whole_request(connection))
                if answer is not None:
                    connection.sendall(answer)
                    connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for each in (self.socket, *self._held):
            each.close()


@pytest.fixture
def stranger() -> Iterator[Callable[..., Stranger]]:
    made: list[Stranger] = []

    def make(*answers: bytes | None) -> Stranger:
        made.append(Stranger(*answers))
        return made[-1]

    yield make
    for each in made:
        each.close()


def http(status: str, body: object) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"HTTP/1.1 %b\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (
        status.encode(), len(content), content,
    )  # fmt: skip


def error(code: str, message: str, field: str | None = None) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "field": field}}


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            "http://127.0.0.1:1",
            "http://127.0.0.1:1/recall: nothing answers there (connection refused); start the service with "
            "`towers serve --bundle BUNDLE --port 1`, or give --url its address",
        ),
        (
            "https://127.0.0.1:1",
            "https://127.0.0.1:1/recall: nothing answers there (connection refused); "
            "is the proxy that speaks HTTPS up?",
        ),
        (
            "http://no-such-host.invalid:8000/",
            "http://no-such-host.invalid:8000/recall: no host of the name 'no-such-host.invalid' is known; check --url",
        ),
        *(
            (
                url,
                f"{url.rstrip('/')}/recall: not the address of a service; --url takes one like http://127.0.0.1:8000",
            )
            for url in ("localhost:8000", "nonsense", "ftp://x", "http://", "http://[::1")
        ),
    ],
)
def test_an_address_where_nothing_answers_is_one_clear_line(url: str, message: str) -> None:
    with pytest.raises(DataError, match=f"^{re.escape(message)}$"):
        ask(url, "u1", 1)


NO_END = "must hold no ? and no #: the path of each call comes at its end"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:1?x=1", f"--url http://127.0.0.1:1?***: {NO_END}"),
        ("http://anna:s3cret@127.0.0.1:1/#", f"--url http://***@127.0.0.1:1/#: {NO_END}"),
        ("http://127.0.0.1:65537", "--url http://127.0.0.1:65537: the port must be from 0 to 65535"),
        ("http://a..b", "--url http://a..b: not a valid address"),
        ("http://127.0.0.1:1/\udcff", "--url http://127.0.0.1:1/\udcff: not a valid address"),
    ],
)
def test_an_address_that_leads_elsewhere_is_refused(url: str, message: str) -> None:
    with pytest.raises(DataError, match=f"^{re.escape(message)}$"):
        ask(url, "u1", 1)


def test_a_user_that_no_request_holds_is_named() -> None:
    message = r"--user 'a\udcff': not UTF-8, which a request is written in"
    with pytest.raises(DataError, match=f"^{re.escape(message)}$"):
        ask("http://127.0.0.1:1", "a\udcff", 1)


def test_a_proxy_of_the_environment_is_told_and_how_to_go_past_it(
    stranger: Callable[..., Stranger], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("http_proxy", raising=False)
    monkeypatch.setenv("NO_PROXY", "unread.example")  # no_proxy is there and wins
    past = "if the request goes through it, the failure is its own; no_proxy=%s127.0.0.1 avoids it"
    for proxy, told in (
        ("http://127.0.0.1:1", "nothing answers there (connection refused); "),
        (stranger(*[NONE, http("503 Unavailable", b"<html>")] * 2).url, f"the server there (status 503) {NOT_OURS}; "),
    ):
        monkeypatch.setenv("HTTP_PROXY", proxy)
        for direct in ("", "localhost,"):
            monkeypatch.setenv("no_proxy", direct)
            whole = f"http://127.0.0.1:2/recall: {told}"
            with pytest.raises(DataError, match=f"^{re.escape(whole)}.*{re.escape(past % direct)}$"):
                ask("http://127.0.0.1:2", "u1", 1)
    for direct in ("127.0.0.1", "localhost, *"):
        monkeypatch.setenv("no_proxy", direct)
        with pytest.raises(DataError, match=r"nothing answers there.*or give --url its address$"):
            ask("http://127.0.0.1:1", "u1", 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("all_proxy", "socks://a:s3cret@x"),
        ("all_proxy", "socks5://a:s3cret@x"),
        ("all_proxy", "http://a:s3cret/y@x"),
        ("no_proxy", "localhost,[::1]"),
    ],
)
def test_a_proxy_that_cannot_be_used_is_told(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    told = "ALL_PROXY, HTTP_PROXY, HTTPS_PROXY or an entry of no_proxy cannot be used: .*; unset the variable"
    with pytest.raises(DataError, match=f"^{told} for this command$") as caught:
        ask("http://127.0.0.1:1", "u1", 1)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["http://anna:s3cret@127.0.0.1:1", "anna:s3cret@127.0.0.1:1", "http://anna:s3cret@[::1", "http://a:s3cret/x@h"],
)
def test_no_error_shows_a_password(url: str) -> None:
    with pytest.raises(DataError, match=r"^(http://)?\*\*\*@") as caught:
        ask(url, "u1", 1)
    assert "cret" not in str(caught.value) and "anna" not in str(caught.value)


NOT_OURS = "is not `towers serve`; give --url the address that it listens on"
DOCUMENT = http(
    "200 OK",
    {"components": {"schemas": {"RecallRequest": {"properties": {"attributes": {"items": {"enum": ["title"]}}}}}}},
)
NONE = http("404 Not Found", b"<html>")
RECALLED = {"items": [{"id": "i1", "score": 0.5}], "model_version": "v", "source": "user"}


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([b"SSH-2.0-OpenSSH_9.2\r\n"], "/recall: the server there does not speak HTTP, or closed the connection"),
        ([b""], "/recall: the server there does not speak HTTP, or closed the connection"),
        (
            [NONE, b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{"],
            "/recall: the server there does not speak HTTP, or",
        ),
        ([NONE, http("404 Not Found", b"<html>")], f"/recall: the server there (status 404) {NOT_OURS}"),
        ([NONE, http("200 OK", b"<html>")], f"/recall: the server there (status 200) {NOT_OURS}"),
        ([NONE, http("200 OK", {"items": [{"id": "a"}], "source": "user"})], f"(status 200) {NOT_OURS}"),
        ([NONE, http("200 OK", {"items": [{"id": "a", "score": "x"}], "source": "y"})], f"(status 200) {NOT_OURS}"),
        ([NONE, http("400 Bad Request", {"error": "x"})], f"(status 400) {NOT_OURS}"),
        ([NONE, http("503 Unavailable", error("not_ready", "no bundle yet"))], "/recall: no bundle yet"),
        (
            [NONE, http("401 Unauthorized", error("no_key", "send a key"))],
            "/recall: send a key; the variable TOWERS_API_KEY gives the key to `towers query`",
        ),
        ([DOCUMENT, http("200 OK", RECALLED)], f"(status 200) {NOT_OURS}"),
    ],
)
def test_an_answer_that_is_none_is_one_clear_line(
    stranger: Callable[..., Stranger], answers: list[bytes], message: str
) -> None:
    other = stranger(*answers)
    with pytest.raises(DataError) as caught:
        ask(other.url, "u1", 1)
    assert str(caught.value).startswith(f"{other.url}/recall: ") and message in str(caught.value)


def test_https_where_none_is_spoken(stranger: Callable[..., Stranger]) -> None:
    url = stranger(b"HTTP/1.1 400 Bad Request\r\n\r\n").url.replace("http", "https")
    told = r"no HTTPS there \(.*\); `towers serve` itself speaks plain HTTP: give --url an address with http://$"
    with pytest.raises(DataError, match=f"^{url}/recall: {told}"):
        ask(url, "u1", 1)


def test_silence_ends_with_the_time_that_was_waited(
    stranger: Callable[..., Stranger], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_answer, "TIMEOUT_S", 0.25)
    url = stranger(None).url
    with pytest.raises(DataError, match=rf"^{url}/recall: no answer within 0\.25 s; "):
        ask(url, "u1", 1)


def test_a_canary_without_that_column_still_answers(stranger: Callable[..., Stranger]) -> None:
    refused = http("422 Unprocessable", error("invalid_request", "attributes: no such column 'title'", "attributes"))
    other = stranger(DOCUMENT, refused, http("200 OK", RECALLED))
    assert ask(other.url, "u1", 1) == Answer([("i1", 0.5)], "user", None)
    bodies = [json.loads(asked.partition(b"\r\n\r\n")[2] or b"null") for asked in other.asked]
    assert bodies == [None, {"user_id": "u1", "k": 1, "attributes": ["title"]}, {"user_id": "u1", "k": 1}]
