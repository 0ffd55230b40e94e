"""Who may ask what: keys by role, exchanged without a restart; no secret in the log."""

import hashlib
import http.client
import json
import logging
import os
import resource
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi.testclient import TestClient

from pipelines.service.whole_responses import PROTOCOLS
from serving.http import api_keys
from serving.http.api_keys import KeyRing, KeysError, read_keys
from serving.http.app import create_app
from serving.http.auth import Access
from serving.http.route_table import ROUTES, Route
from serving.settings import Settings
from tests.support.served import served
from tests.support.worlds.serving import write_whole_world

READ_KEY, ADMIN_KEY = "read-key-0123456789", "admin-key-0123456789"
ITEM = {"features": {"group": "g1"}, "attributes": {}}
EVENT = {"events": [{"id": "e1", "user_id": "u1", "item_id": "i1", "time": 1}]}
SHOWN = {"impressions": [{"id": "s1", "request_id": "r", "user_id": "u1", "item_ids": ["i1"], "time": 1}]}
OPEN = [("GET", "/healthz"), ("GET", "/readyz")]
READING = [
    ("POST", "/recall", {}), ("POST", "/recall/batch", {"queries": [{}]}), ("POST", "/similar", {"items": ["i1"]}),
    ("POST", "/embed", {"queries": [{}]}), ("GET", "/docs", None), ("GET", "/openapi.json", None),
    ("GET", "/docs/swagger-ui-bundle.js", None), ("GET", "/docs/swagger-ui.css", None),
    ("GET", "/metrics", None), ("GET", "/no/such/path", None),
]  # fmt: skip
CHANGING = [
    ("PUT", "/items/x", ITEM), ("PUT", "/items", {"items": [{"id": "x", **ITEM}]}), ("DELETE", "/items/x", None),
    ("POST", "/events", EVENT), ("POST", "/impressions", SHOWN),
    ("POST", "/admin/reload", None), ("POST", "/admin/a-route-of-tomorrow", None),
    ("GET", "/admin/a-route-of-tomorrow", None), ("POST", "/a-route-of-tomorrow", None), ("PATCH", "/recall", None),
]  # fmt: skip


def entry(name: str, role: str, key: str) -> str:
    return f'[[key]]\nname = "{name}"\nrole = "{role}"\nsha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\n'


def write(file: Path, *entries: str) -> None:
    """As 'towers keys' does: whole, in the place of the old one."""
    new = file.with_suffix(".new")
    new.write_text("".join(entries), encoding="utf-8")
    new.chmod(0o600)
    new.replace(file)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    write(path, entry("shop", "read", READ_KEY), entry("loader", "admin", ADMIN_KEY))
    return path


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    directory = tmp_path_factory.mktemp("access")
    write(directory / "keys.toml", entry("shop", "read", READ_KEY), entry("loader", "admin", ADMIN_KEY))
    settings = Settings(
        bundle=write_whole_world(directory),
        state=directory / "state",
        keys=directory / "keys.toml",
        access_log="all",
        window=True,
    )
    with TestClient(create_app(settings), raise_server_exceptions=False) as client:
        yield client


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_a_path_with_a_parameter_declares_nothing_that_is_looked_up_by_path() -> None:
    careful = {each.name: each.default for each in fields(Route)}
    for route in (route for route in ROUTES if "{" in route.path):
        for name in ("key", "work", "fast"):
            assert getattr(route, name) == careful[name], (route.path, name)


@pytest.mark.parametrize(("method", "path"), OPEN)
def test_probes_need_no_key(client: TestClient, method: str, path: str) -> None:
    assert client.request(method, path).status_code == 200


def test_a_head_needs_the_key_of_a_get(client: TestClient) -> None:
    assert [client.head("/metrics", headers=headers).status_code for headers in ({}, bearer(READ_KEY))] == [401, 200]
    assert client.head("/admin/a-route-of-tomorrow", headers=bearer(READ_KEY)).status_code == 403


@pytest.mark.parametrize(("method", "path", "body"), READING + CHANGING)
def test_everything_else_needs_a_good_one(client: TestClient, method: str, path: str, body: Any) -> None:
    for headers in (
        {},
        bearer("wrong"),
        {"authorization": READ_KEY},
        {"authorization": f"Basic {READ_KEY}"},
        bearer(""),
    ):
        answer = client.request(method, path, json=body, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith('Bearer realm="towers"')
        assert answer.json()["error"].keys() == {"code", "message", "field"}
        assert answer.headers["x-request-id"]
        assert answer.headers["connection"] == "close"  # Nobody reads the body.


@pytest.mark.parametrize(("method", "path", "body"), READING)
def test_a_read_key_reads(client: TestClient, method: str, path: str, body: Any) -> None:
    status = client.request(method, path, json=body, headers=bearer(READ_KEY)).status_code
    assert status == (404 if path == "/no/such/path" else 200)


@pytest.mark.parametrize(("method", "path", "body"), CHANGING)
def test_a_read_key_changes_nothing(client: TestClient, method: str, path: str, body: Any) -> None:
    answer = client.request(method, path, json=body, headers=bearer(READ_KEY))
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "read_only")


@pytest.mark.parametrize("path", ["/window", *(path for method, path, _ in READING if path != "/no/such/path")])
def test_a_path_with_a_line_feed_is_another_one(client: TestClient, path: str) -> None:
    assert client.get(path, headers=bearer(ADMIN_KEY)).status_code in (200, 405)
    for key in (READ_KEY, ADMIN_KEY):
        assert client.get(f"{path}%0A", headers=bearer(key)).status_code == 404


@pytest.mark.parametrize(("method", "path", "body"), READING + CHANGING)
def test_an_admin_key_may_all(client: TestClient, method: str, path: str, body: Any) -> None:
    assert client.request(method, path, json=body, headers=bearer(ADMIN_KEY)).status_code in (200, 404, 405)


@pytest.mark.parametrize("scheme", ["bearer", "BEARER"])
def test_the_scheme_is_of_any_case(client: TestClient, scheme: str) -> None:
    answer = client.post("/recall", json={}, headers={"authorization": f"{scheme} {READ_KEY}"})
    assert answer.status_code == 200


def test_two_keys_are_none(client: TestClient) -> None:
    headers = [("authorization", f"Bearer {READ_KEY}"), ("authorization", f"Bearer {ADMIN_KEY}")]
    assert client.post("/recall", json={}, headers=headers).status_code == 401


@pytest.mark.parametrize("parser", PROTOCOLS)
def test_whoever_sends_a_large_body_and_then_reads_finds_the_401_or_403(file: Path, parser: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("no request is passed on")

    def told(port: int, headers: dict[str, str]) -> tuple[int, str]:
        """By a client that reads nothing until all is sent, as most do."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("PUT", "/items", b"x" * 3_000_000, headers)
        answer = connection.getresponse()
        assert answer.headers["connection"] == "close"
        return answer.status, json.loads(answer.read())["error"]["message"]

    config = uvicorn.Config(
        Access(app, file), port=0, http=PROTOCOLS[parser], ws="none", lifespan="off", log_config=None
    )
    with served(config) as url:
        port = int(url.rpartition(":")[2])
        for _ in range(5):
            assert told(port, {}) == (401, "send a key: Authorization: Bearer KEY")
            assert told(port, bearer("wrong")) == (401, "this key is not known")
            assert told(port, bearer(READ_KEY)) == (
                403,
                "this key may read; for changes and administration another one is needed",
            )


def test_no_key_and_nothing_of_a_body_or_query_string_is_logged(
    client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        for key in (READ_KEY, ADMIN_KEY, "wrong-key-9876543210"):
            client.post("/recall?secret-question", json={"user_id": "secret-user"}, headers=bearer(key))
            client.post("/events", json={"secret-field": 1}, headers=bearer(key))
    ours = [record for record in caplog.records if record.name.startswith("uvicorn")]
    assert len(ours) >= 6
    for record in ours:
        whole = json.dumps(record.__dict__, default=str)
        for secret in ("key-0123456789", "key-9876543210", "secret-question", "secret-field"):
            assert secret not in whole
        # It is in a field, which the formatter leaves out unless a setting asks for it.
        assert "secret-user" not in record.getMessage()


def test_the_document_says_which_routes_want_a_key(client: TestClient) -> None:
    document = client.get("/openapi.json", headers=bearer(READ_KEY)).json()
    assert document["components"]["securitySchemes"] == {"key": {"type": "http", "scheme": "bearer"}}
    wanted = {
        (method, path): set(operation["responses"]) & {"401", "403"}
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if operation.get("security") == [{"key": []}]
    }
    assert wanted["post", "/recall"] == wanted["get", "/metrics"] == {"401"}
    assert wanted["put", "/items"] == wanted["post", "/admin/reload"] == {"401", "403"}
    assert not {path for _, path in wanted} & {"/healthz", "/readyz"}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def asked_for(clock: Clock, ring: KeyRing, hundredths: int) -> None:
    """Asks the ring a hundred times a second."""
    for _ in range(hundredths):
        clock.now += 0.01
        ring.role(b"whoever")


@pytest.mark.parametrize("since_a_look", [0, 1, 20, 39])
def test_a_change_of_the_file_counts_within_a_second(file: Path, since_a_look: int) -> None:
    clock = Clock()
    ring = KeyRing(file, clock)
    assert (ring.role(READ_KEY.encode()), ring.role(b"new")) == ("read", None)
    asked_for(clock, ring, since_a_look)
    write(file, entry("shop", "admin", "new"))
    asked_for(clock, ring, 99)
    assert (ring.role(READ_KEY.encode()), ring.role(ADMIN_KEY.encode()), ring.role(b"new")) == (None, None, "admin")
    write(file)
    asked_for(clock, ring, 99)
    assert ring.role(b"new") is None


def test_a_change_of_long_ago_counts_for_the_first_who_asks(file: Path) -> None:
    clock = Clock()
    ring = KeyRing(file, clock)
    write(file, entry("shop", "read", "new"))
    clock.now += 60  # without a request
    assert (ring.role(READ_KEY.encode()), ring.role(b"new")) == (None, "read")


def test_a_file_that_is_written_in_place_counts_whole_at_the_next_look(file: Path) -> None:
    clock = Clock()
    ring = KeyRing(file, clock)
    file.write_text(entry("shop", "read", READ_KEY), encoding="utf-8")
    asked_for(clock, ring, 45)
    with file.open("a", encoding="utf-8") as rest:
        rest.write(entry("loader", "admin", ADMIN_KEY) + entry("third", "read", "new"))
    asked_for(clock, ring, 45)
    assert [ring.role(key) for key in (READ_KEY.encode(), ADMIN_KEY.encode(), b"new")] == ["read", "admin", "read"]


def levels(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Of what is said about keys: a service of another test may tell in the meantime what it turned away."""
    return [record.levelname for record in caplog.records if record.module == "api_keys"]


@pytest.mark.parametrize("harm", ["broken", "gone", "a directory"])
def test_a_broken_file_keeps_the_keys_and_is_told_once(file: Path, caplog: pytest.LogCaptureFixture, harm: str) -> None:
    clock = Clock()
    ring = KeyRing(file, clock)
    if harm == "broken":
        file.write_text(f'[[key]]\nname = "{READ_KEY}', encoding="utf-8")
    else:
        file.unlink()
        if harm == "a directory":
            file.mkdir()
    with caplog.at_level(logging.INFO, "uvicorn.error.serving"):
        for _ in range(3):
            clock.now += 1
            assert (ring.role(READ_KEY.encode()), ring.role(b"x")) == ("read", None)
        assert levels(caplog) == ["ERROR"]
        assert str(file) in caplog.text and READ_KEY not in caplog.text
        if harm == "a directory":
            file.rmdir()
        write(file, entry("shop", "read", "new"))
        asked_for(clock, ring, 99)
        assert (ring.role(READ_KEY.encode()), ring.role(b"new")) == (None, "read")


def test_a_change_that_could_not_be_read_counts_once_it_can(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By this process, that is: the file itself does not change again."""
    clock = Clock()
    ring = KeyRing(file, clock)
    write(file, entry("shop", "read", "new"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with caplog.at_level(logging.INFO, "uvicorn.error.serving"):
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))  # no file handle is free
        try:
            for _ in range(3):
                clock.now += 1
                assert ring.role(READ_KEY.encode()) == "read"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert levels(caplog) == ["ERROR"]
        asked_for(clock, ring, 99)
    assert (ring.role(READ_KEY.encode()), ring.role(b"new")) == (None, "read")
    assert levels(caplog) == ["ERROR", "INFO"]


def test_every_entry_is_compared_by_its_digest(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    monkeypatch.setattr(api_keys.hmac, "compare_digest", lambda a, b: compared.append((a, b)) or a == b)
    assert KeyRing(file).role(READ_KEY.encode()) == "read"
    came = hashlib.sha256(READ_KEY.encode()).digest()
    assert compared == [(hashlib.sha256(key.encode()).digest(), came) for key in (READ_KEY, ADMIN_KEY)]


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o400, False), (0o640, True), (0o644, True)])
def test_a_file_that_others_may_read_is_warned_of(
    file: Path, caplog: pytest.LogCaptureFixture, mode: int, warned: bool
) -> None:
    file.chmod(mode)
    with caplog.at_level(logging.WARNING, "uvicorn.error.serving"):
        KeyRing(file)
    assert bool(caplog.messages) == warned


GOOD = entry("a", "read", "x")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("key = 5", r"must hold tables \[\[key\]\]"),
        ("other = 1\n" + GOOD, r"must hold tables \[\[key\]\] and nothing else"),
        (GOOD + GOOD, r"\[\[key\]\] 2: duplicate name"),
        (GOOD + entry("b", "admin", "x"), r"\[\[key\]\] 2: duplicate key"),
        (GOOD.replace("read", "write"), r"\[\[key\]\] 1: role: must be 'read' or 'admin'"),
        (GOOD.replace('"a"', '"a b"'), r"\[\[key\]\] 1: name: must be 1 to 64"),
        (GOOD.replace('sha256 = "', 'sha256 = "zz'), r"\[\[key\]\] 1: sha256: must be 64 hex"),
        (GOOD.replace("sha256", "key"), r"\[\[key\]\] 1: must have name, role and sha256"),
        (GOOD + "x = 1", r"\[\[key\]\] 1: must have name, role and sha256, and nothing else"),
        ('[[key]]\nname = "top-secret', r"not a TOML file"),
        ("\udcff", r"not a TOML file"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_without_what_stands_in_it(
    tmp_path: Path, content: str, message: str
) -> None:
    path = tmp_path / "keys.toml"
    path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(KeysError, match=message) as caught:
        read_keys(path)
    told = str(caught.value)
    assert told.startswith(f"{path}: ") and "top-secret" not in told and hashlib.sha256(b"x").hexdigest() not in told


def test_keys_in_a_pipe_are_refused_and_not_taken_for_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    os.mkfifo(path)
    with pytest.raises(KeysError, match=f"^{path}: a pipe, which can be read only once; name a file$"):
        read_keys(path)
