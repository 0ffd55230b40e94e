"""deploy/nginx.conf, with the real nginx before two real services: hostile callers, a killed replica, a restart."""

import getpass
import json
import os
import re
import select
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.window.form import MOST_CHARACTERS
from tests.support.exposition import Exposed
from tests.support.paths import ROOT
from tests.support.processes.postgres_cluster import PostgresCluster
from tests.support.processes.running_service import RunningService, free_port
from tests.support.worlds.serving import save_towers, write_whole_world, write_world

pytestmark = pytest.mark.long

CONF = ROOT / "deploy" / "nginx.conf"
OPERATIONS = " ".join((ROOT / "docs" / "service" / "operations.md").read_text(encoding="utf-8").split())
# Read at import, so that the short run, too, ends where the page loses the words.
((TIMEOUT_S, PAUSE_S),) = re.findall(r"`fail_timeout=(\d+)s`\): wait (\d+) s", OPERATIONS)
JSON = b"Content-Type: application/json\r\n"
BODY = b'{"user_id": "u5", "k": 3}'
ITEMS = ["i9", "i13", "i17"]  # of group 1, without i1 and i5, which u5 has seen
KEY_PAIR = ("-keyout", "key.pem", "-out", "fullchain.pem")
WAIT_S = 60
CONNECTIONS = 512
LARGE = json.dumps({"queries": [{"k": 60}] * 256}).encode()
EVENT = {"user_id": "u7", "item_id": "i3", "time": 1_700_000_000}
SHOWN = {"request_id": "r", "user_id": "u7", "item_ids": ["i3"], "time": 1_700_000_000}


class Proxy:
    """nginx with the shipped file: ports, paths and times are the test's, all else unchanged.

    Of an answer that is not read the system takes little.

    With `tls` it listens as the lines say that are comments, with a certificate that it trusts itself.
    """

    def __init__(self, folder: Path, replicas: list[int], patience_s: int = 1, *, tls: bool = False) -> None:
        binary = shutil.which("nginx")
        if binary is None:
            reason = "nginx is not on PATH; Debian's package is called nginx"
            (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
        self.port = free_port()
        paths = "".join(f"{name}_temp_path {folder / name};\n" for name in ("client_body", "proxy"))
        paths += "".join(f"{name}_temp_path {folder / name};\n" for name in ("fastcgi", "uwsgi", "scgi"))
        text = CONF.read_text(encoding="utf-8")
        if tls:
            text, found = re.subn(r"listen 8080 [^\n]*|# (?=listen 443|ssl_)", "", text)
            assert found == 6
            words = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
            subprocess.run([*words.split(), *KEY_PAIR], cwd=folder, check=True, capture_output=True)
            text = text.replace("/etc/towers/tls/", f"{folder}/").replace("listen 443 ssl ", "listen 8080 ssl ")
        for pattern, given in (
            (r"user www-data;", f"user {getpass.getuser()}; daemon off;"),
            (r"pid [^;]+;", f"pid {folder / 'pid'};"),
            (r"http \{", f"http {{\n{paths}"),
            (r"server 127\.0\.0\.1:8000([^;]*;)", "".join(rf"server 127.0.0.1:{port}\1" for port in replicas)),
            (r"listen 8080 ", f"listen 127.0.0.1:{self.port} sndbuf=8k "),
            (r"(client_header|client_body|send)_timeout 10s;", rf"\1_timeout {patience_s}s;"),
        ):
            text, found = re.subn(pattern, given, text)
            assert found, pattern
        (folder / "nginx.conf").write_text(text, encoding="utf-8")
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([binary, "-c", str(folder / "nginx.conf")], stderr=log)
        trusted = ssl.create_default_context(cafile=folder / "fullchain.pem") if tls else True
        scheme = "https" if tls else "http"
        self.client = httpx.Client(base_url=f"{scheme}://127.0.0.1:{self.port}", timeout=30, verify=trusted)
        try:
            until(self._up, "nginx answers")
        except BaseException:
            self.process.kill()
            self.process.wait()
            self.client.close()
            raise

    def _up(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        with suppress(httpx.TransportError):
            return self.client.get("/healthz").status_code == 200
        return False

    def connection(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S)

    def said(self, sent: bytes) -> bytes:
        """All that comes back until nginx closes the connection."""
        with self.connection() as connection:
            connection.sendall(sent)
            received = b""
            with suppress(ConnectionResetError):
                while piece := connection.recv(65_536):
                    received += piece
            return received

    def recalled(self) -> list[str]:
        answer = self.client.post("/recall", content=BODY, headers={"content-type": "application/json"})
        assert answer.status_code == 200, answer.text
        return [item["id"] for item in answer.json()["items"]]

    def stop(self) -> None:
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(WAIT_S)


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"not so after {WAIT_S} s: {what}"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_whole_world(tmp_path_factory.mktemp("nginx"))


@pytest.fixture(scope="module")
def service(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    if shutil.which("nginx") is None:
        Proxy(Path(), [])  # which says so
    folder = tmp_path_factory.mktemp("service")
    with RunningService(bundle, folder / "state", log=folder / "log") as running:
        yield running


@pytest.fixture
def proxy(service: RunningService, tmp_path: Path) -> Iterator[Proxy]:
    running = Proxy(tmp_path, [service.port])
    yield running
    running.stop()


def error(answer: bytes) -> tuple[int, str]:
    """Status and code of the one error that is the whole response."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head.lower() and b"x-request-id: " in head.lower()
    detail = json.loads(body)["error"]
    assert detail.keys() == {"code", "message", "field"}
    return int(head.split()[1]), detail["code"]


def refused(service: RunningService, reason: str) -> float:
    return Exposed(service.client.get("/metrics").text).sum("towers_requests_refused_total", reason=reason)


def connections(service: RunningService) -> int:
    """Those that are open, of nginx and of this test's own client."""
    table = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(local.endswith(f":{service.port:04X}") and state == "01" for _, local, _, state, *_ in table)


def test_slow_heads_and_bodies_are_closed_and_reach_no_replica(proxy: Proxy, service: RunningService) -> None:
    head = b"POST /recall HTTP/1.1\r\nHost: x\r\n" + JSON
    slow = [proxy.connection() for _ in range(20)]
    for place, each in enumerate(slow):
        each.sendall(head + (b"X-Slow: " if place % 2 else b"Content-Length: 90000\r\n\r\n" + b" " * 70_000))
    assert proxy.recalled() == ITEMS
    assert connections(service) <= 10
    for each in slow:
        with suppress(ConnectionResetError):
            assert each.recv(1_000)[:12] in (b"", b"HTTP/1.1 408")
        each.close()
    assert refused(service, "slow") == 0


def test_answers_that_are_not_read_cost_the_replica_nothing(proxy: Proxy, service: RunningService) -> None:
    request = b"POST /recall/batch HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n%b" % (JSON, len(LARGE), LARGE)
    deaf = []
    for _ in range(40):  # more than there are places for batches
        each = proxy.connection()
        each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        each.sendall(request)
        deaf.append(each)
        assert each.recv(12) == b"HTTP/1.1 200"
    assert proxy.recalled() == ITEMS
    assert connections(service) <= 10
    assert refused(service, "unread") == refused(service, "heavy") == 0
    for each in deaf:
        each.close()


def test_a_hundred_megabytes_are_refused_at_once(proxy: Proxy) -> None:
    head = b"POST /recall HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\nConnection: close\r\n\r\n"
    assert error(proxy.said(head % (JSON, 100 * 2**20))) == (413, "too_large")
    assert proxy.recalled() == ITEMS


@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
def test_an_upgrade_with_a_body_gets_its_one_answer(proxy: Proxy, protocol: str) -> None:
    words = f"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAEAAEAA\r\nUpgrade: {protocol}\r\n".encode()
    with proxy.connection() as connection:
        head = b"POST /recall HTTP/1.1\r\nHost: x\r\n%b%bContent-Length: %d\r\n\r\n" % (JSON, words, len(BODY))
        connection.sendall(head + BODY)
        last = b"GET /nowhere HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        answers = b""
        while b"\r\n\r\n{" not in answers:
            answers += connection.recv(65_536)
        connection.sendall(last)
        while piece := connection.recv(65_536):
            answers += piece
    assert re.findall(rb"HTTP/1\.1 (\d+)", answers) == [b"200", b"404"]
    assert [item["id"] for item in json.loads(answers.split(b"\r\n\r\n")[1].split(b"HTTP/1.1")[0])["items"]] == ITEMS


JAVA = """
import java.net.URI;
import java.net.http.*;

public class Ask {
    public static void main(String[] words) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(words[0]))
            .header("Content-Type", "application/json")
            .POST(HttpRequest.BodyPublishers.ofString(words[1]))
            .build();
        HttpResponse<String> answer = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
        System.out.println(answer.statusCode());
        System.out.println(answer.body());
    }
}
"""


def test_javas_default_client_gets_its_answer_behind_the_proxy_and_a_reason_without(
    proxy: Proxy, service: RunningService, tmp_path: Path
) -> None:
    if shutil.which("javac") is None:
        reason = "javac is not on PATH; Debian's package is called default-jdk-headless"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    program = tmp_path / "Ask.java"
    program.write_text(JAVA, encoding="utf-8")

    def ask(port: int) -> tuple[int, dict[str, Any]]:
        words = ["java", str(program), f"http://127.0.0.1:{port}/recall", BODY.decode()]
        done = subprocess.run(words, capture_output=True, text=True, timeout=WAIT_S, check=True)
        status, body = done.stdout.splitlines()
        return int(status), json.loads(body)

    status, answer = ask(proxy.port)
    assert (status, [item["id"] for item in answer["items"]]) == (200, ITEMS)
    status, answer = ask(service.port)
    assert status == 400 and "HTTP/1.1 without Upgrade" in answer["error"]["message"]


POST = b"POST /recall HTTP/1.1\r\nHost: x\r\n"
MALFORMED = {
    "no HTTP at all": b"hello\r\n\r\n",
    "two lengths": POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "length and chunks": POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "header without a colon": b"GET /nowhere HTTP/1.1\r\nHost x\r\nConnection: close\r\n\r\n",
    "wrong chunk": POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "method that nginx refuses": b"TRACE /nowhere HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "unknown coding": POST + b"Transfer-Encoding: gzip\r\nConnection: close\r\n\r\n{}",
    "unknown version": b"GET /nowhere HTTP/2.0\r\nHost: x\r\nConnection: close\r\n\r\n",
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_http_never_reaches_a_replica(proxy: Proxy, service: RunningService, name: str) -> None:
    before = Exposed(service.client.get("/metrics").text).sum("towers_requests_total", route="/recall")
    assert error(proxy.said(MALFORMED[name])) == (400, "invalid_http")
    assert Exposed(service.client.get("/metrics").text).sum("towers_requests_total", route="/recall") == before


def test_with_tls_a_caller_without_it_is_told(service: RunningService, tmp_path: Path) -> None:
    proxy = Proxy(tmp_path, [service.port], tls=True)
    try:
        assert proxy.recalled() == ITEMS
        answer = proxy.said(b"POST /recall HTTP/1.1\r\nHost: x\r\n" + JSON + b"Content-Length: 2\r\n\r\n{}")
        assert error(answer) == (400, "invalid_http") and b"use https" in answer
    finally:
        proxy.stop()


@pytest.mark.parametrize("place", ["/_malformed", "/_long_head"])
def test_the_place_of_refusals_is_no_path(proxy: Proxy, place: str) -> None:
    answer = proxy.client.get(place)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


def test_an_address_as_long_as_the_window_takes_reaches_the_service(proxy: Proxy) -> None:
    assert proxy.client.get(f"/nowhere?history={'a' * MOST_CHARACTERS}").json()["error"]["code"] == "not_found"


@pytest.mark.parametrize("start", [b"GET /nowhere HTTP/1.1\r\nHost: x\r\nX-Long: ", b"GET /"])
def test_a_long_head_is_refused(proxy: Proxy, start: bytes) -> None:
    assert error(proxy.said(start + b"a" * 40_000 + b"\r\nConnection: close\r\n\r\n")) == (431, "too_large")


def test_of_many_connections_of_one_caller_256_get_their_answer(service: RunningService, tmp_path: Path) -> None:
    proxy = Proxy(tmp_path, [service.port], patience_s=WAIT_S)
    request = b"POST /recall HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\nConnection: close\r\n\r\n%b"
    connections = [proxy.connection() for _ in range(CONNECTIONS)]
    for each in connections:
        each.sendall(request % (JSON, len(BODY), BODY[:9]))
    refusals: list[socket.socket] = []

    def refuse() -> bool:
        refusals[:] = select.select(connections, [], [], 0)[0]
        return len(refusals) >= CONNECTIONS - 256

    until(refuse, "all above 256 are refused")
    for each in connections:
        if each in refusals:
            answer = each.recv(65_536)
            assert error(answer) == (429, "too_many_requests") and b"retry-after: 1" in answer.lower()
        else:
            each.sendall(BODY[9:])
            answer = b"".join(iter(lambda each=each: each.recv(65_536), b""))
            assert answer.startswith(b"HTTP/1.1 200")
            assert [item["id"] for item in json.loads(answer.partition(b"\r\n\r\n")[2])["items"]] == ITEMS
    for each in connections:
        each.close()
    assert len(refusals) == CONNECTIONS - 256
    assert proxy.recalled() == ITEMS
    proxy.stop()


def test_the_file_says_what_another_system_and_tls_change() -> None:
    text = CONF.read_text(encoding="utf-8")
    assert re.search(r"^user \S+;  # CHANGE", text, re.MULTILINE)
    (beside,) = re.findall(r"listen 8080 [^\n]*\n([^;]*)# listen 443 ", text)
    assert "replace the one above" in beside and "keys in plain text" in beside


def test_operators_paths_are_closed_to_others(proxy: Proxy) -> None:
    allowed = re.search(r"location ~ (\S+) \{\s*allow 127\.0\.0\.1;[^}]*deny all;", CONF.read_text(encoding="utf-8"))
    assert allowed is not None
    closed = ("/admin/reload", "/metrics", "/healthz", "/readyz", "/window", "/window/window.js")
    paths = (*closed, "/recall", "/items/metrics", "/windows")
    assert [path for path in paths if re.search(allowed[1], path)] == [*closed]
    assert proxy.client.get("/metrics").status_code == 200  # from here


class Callers:
    """Four callers who ask the proxy again and again; `wrong` holds what is not the known answer.

    If they are `writing`, each also posts an event and an impression after each recall; `written` holds the ids.
    """

    def __init__(self, proxy: Proxy, *, writing: bool = False) -> None:
        self.wrong: list[str] = []
        self.written: list[str] = []
        self._writing = writing
        self._url, self._asked, self._over = f"http://127.0.0.1:{proxy.port}", 0, threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(4)]

    def __enter__(self) -> "Callers":
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for each in self._threads:
            each.join()

    def until_answered(self) -> None:
        """Until they have got fifty more answers."""
        then = self._asked
        until(lambda: self._asked > then + 50, "callers are answered")

    def _ask(self) -> None:
        with httpx.Client(base_url=self._url, timeout=30) as client:
            while not self._over.is_set():
                try:
                    answer = client.post("/recall", content=BODY, headers={"content-type": "application/json"})
                except httpx.HTTPError as error:
                    self.wrong.append(repr(error))
                    continue
                self._asked += 1
                if answer.status_code != 200 or [item["id"] for item in answer.json()["items"]] != ITEMS:
                    self.wrong.append(answer.text)
                if self._writing:
                    self._write(client)

    def _write(self, client: httpx.Client) -> None:
        name = uuid.uuid4().hex
        self.written.append(name)
        for path, body in (("events", EVENT), ("impressions", SHOWN)):
            try:
                answer = client.post(f"/{path}", json={path: [body | {"id": name}]})
            except httpx.HTTPError as error:
                self.wrong.append(repr(error))
                continue
            if answer.status_code != 200:
                self.wrong.append(answer.text)


@pytest.mark.parametrize("how", ["killed", "restarted"])
def test_no_recall_is_lost_where_a_replica_goes_away_and_comes_back(
    bundle: Path, service: RunningService, tmp_path: Path, how: str
) -> None:
    other = RunningService(bundle, log=tmp_path / "first", linger_s=1)
    proxy = Proxy(tmp_path, [service.port, other.port])
    try:
        with Callers(proxy) as callers:
            callers.until_answered()
            other.process.send_signal(signal.SIGKILL if how == "killed" else signal.SIGTERM)
            other.process.wait(WAIT_S)
            callers.until_answered()
            other.kill()
            other = RunningService(bundle, log=tmp_path / "second", port=other.port)
            until_asked(other)
    finally:
        proxy.stop()
        other.kill()
    assert callers.wrong == []


def until_asked(replica: RunningService) -> None:
    def recalls() -> float:
        return Exposed(replica.client.get("/metrics").text).sum("towers_requests_total", route="/recall")

    before = recalls()
    until(lambda: recalls() > before, "the one that came back is asked, too")


def test_a_rolling_restart_as_the_operations_page_says_loses_no_recall(bundle: Path, tmp_path: Path) -> None:
    (shipped,) = re.findall(r"^ *server [^;]* fail_timeout=(\d+)s;", CONF.read_text(encoding="utf-8"), re.MULTILINE)
    assert shipped == TIMEOUT_S
    replicas = [RunningService(bundle, log=tmp_path / f"{number}", linger_s=1) for number in range(2)]
    proxy = Proxy(tmp_path, [each.port for each in replicas])
    try:
        with Callers(proxy) as callers:
            for number in (0, 1, 0):
                callers.until_answered()
                replicas[number].process.send_signal(signal.SIGTERM)
                replicas[number].process.wait(WAIT_S)
                replicas[number].kill()
                port = replicas[number].port
                replicas[number] = RunningService(bundle, log=tmp_path / f"{number}", port=port, linger_s=1)
                time.sleep(int(PAUSE_S))
    finally:
        proxy.stop()
        for each in replicas:
            each.kill()
    assert callers.wrong == []


REPEATABLE: dict[str, dict[str, Any]] = {
    "recall": {"user_id": "u5"},
    "recall/batch": {"queries": [{"user_id": "u5"}]},
    "similar": {"items": ["i1"]},
    "embed": {"queries": [{"user_id": "u5"}]},
    "events": {"events": [EVENT | {"id": "tried twice"}]},
    "impressions": {"impressions": [SHOWN | {"id": "tried twice"}]},
}


class Dying:
    """A replica that dies of every request: it takes it and closes the connection. `paths` holds what was asked."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._die)

    def __enter__(self) -> "Dying":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # ends the wait for a caller
        self._thread.join()
        self._listener.close()

    def _die(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection:
                    self.paths.append(connection.recv(65_536).split()[1].decode())


@pytest.mark.parametrize("path", REPEATABLE)
def test_what_may_be_done_twice_is_asked_of_another_replica(service: RunningService, tmp_path: Path, path: str) -> None:
    with Dying() as dying:
        proxy = Proxy(tmp_path, [dying.port, service.port])
        answers: list[httpx.Response] = []

        def tried() -> bool:
            answers.append(proxy.client.post(f"/{path}", json=REPEATABLE[path]))
            return f"/{path}" in dying.paths

        until(tried, "the first replica is asked")
        proxy.stop()
    assert {answer.status_code for answer in answers} == {200}, answers[-1].text


def written(cluster: PostgresCluster, url: str, kind: str) -> list[str]:
    query = f"SELECT convert_from({kind}_id, 'UTF8') FROM towers.{kind}s"
    return sorted(cluster.execute(query, url.rpartition("/")[2]).splitlines())


def test_three_replicas_of_one_database_lose_nothing(bundle: Path, tmp_path: Path) -> None:
    write_world(tmp_path / "newer", write_towers=save_towers, model_version="newer")
    cluster = PostgresCluster()
    url = cluster.new_database()
    replicas = [RunningService(bundle, url, log=tmp_path / f"{number}", linger_s=1) for number in range(3)]
    proxy = Proxy(tmp_path, [each.port for each in replicas])
    try:
        with Callers(proxy, writing=True) as callers:
            callers.until_answered()
            replicas[0].kill()
            callers.until_answered()
            replicas[1].process.send_signal(signal.SIGTERM)
            replicas[1].process.wait(WAIT_S)
            replicas[1].kill()
            replicas[1] = RunningService(
                tmp_path / "newer", url, log=tmp_path / "rolled", port=replicas[1].port, linger_s=1
            )
            until_asked(replicas[1])
        events, shown = (written(cluster, url, kind) for kind in ("event", "impression"))
        with Callers(proxy) as readers:
            cluster.kill()
            readers.until_answered()
            cluster.start()
            readers.until_answered()
            answers = [each.client.post("/recall", json={"k": 1}).json()["model_version"] for each in replicas[1:]]
    finally:
        proxy.stop()
        for each in replicas:
            each.kill()
        cluster.remove()
    assert answers == ["newer", "world-1"]
    assert callers.wrong == readers.wrong == []
    assert events == shown == sorted(callers.written)
