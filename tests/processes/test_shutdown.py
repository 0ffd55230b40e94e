"""SIGTERM under load: /readyz says so at once, every request that is taken is answered, callers are told to go."""

import asyncio
import json
import os
import signal
import socket
import threading
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest

from tests.support.processes.held_request import PATIENT, HeldRequest, until_refused
from tests.support.processes.running_service import RunningService
from tests.support.worlds.serving import write_whole_world

CALLERS = 16
REQUEST = b"POST /recall HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"


class Load:
    """Callers in a closed loop, each on a connection of its own, who go where they are told to go."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.answered = self.told_to_go = 0
        self.lost: list[str] = []

    async def caller(self, number: int) -> None:
        body = json.dumps({"user_id": f"u{number % 12}", "k": 3}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            while await self.ask(reader, writer, body):
                pass
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            self.lost.append(repr(error))
        finally:
            writer.close()

    async def ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> bool:
        writer.write(REQUEST % (len(body), body))
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
        answer = json.loads(await reader.readexactly(length))
        if b" 200 " not in head or len(answer["items"]) != 3:
            self.lost.append(repr(answer))
        self.answered += 1
        self.told_to_go += b"connection: close" in head
        return b"connection: close" not in head


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2])
def test_no_request_that_was_taken_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    with RunningService(write_whole_world(tmp_path), workers=workers, linger_s=30) as service:
        load = Load(int(service.url.rpartition(":")[2]))
        ready: list[tuple[int, str]] = []

        async def stop() -> None:
            while load.answered < 200:
                await asyncio.sleep(0.01)
            os.kill(service.process.pid, signal.SIGTERM)
            while load.told_to_go == 0:
                await asyncio.sleep(0.005)
            async with httpx.AsyncClient(timeout=30) as client:

                async def readiness() -> tuple[int, str]:
                    # A connection of its own, which either worker may take.
                    answer = await client.get(f"{service.url}/readyz", headers={"Connection": "close"})
                    return answer.status_code, answer.json().get("error", {}).get("code", "")

                in_a_row = 0
                while in_a_row < 20:  # the supervisor sends the signal on to each worker
                    in_a_row = in_a_row + 1 if await readiness() == (503, "stopping") else 0
                for number in range(4):  # who comes anew is still answered
                    await load.caller(number)
                ready.extend([await readiness() for _ in range(5)])

        async def main() -> None:
            async with asyncio.timeout(120):
                await asyncio.gather(stop(), *(load.caller(number) for number in range(CALLERS)))

        asyncio.run(main())
        assert service.process.wait(60) in (0, -signal.SIGTERM)
        assert load.lost == []
        assert load.told_to_go == CALLERS + 4
        assert set(ready) == {(503, "stopping")}


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2])
def test_after_the_linger_nobody_is_let_in_to_wait_for_nothing(tmp_path: Path, workers: int) -> None:
    """While one request is still worked on, a caller who comes anew is refused by the system, at once."""
    with RunningService(write_whole_world(tmp_path), workers=workers, linger_s=0.5, **PATIENT) as service:
        port = int(service.url.rpartition(":")[2])
        held = HeldRequest(port, user_id="u5", k=3)
        os.kill(service.process.pid, signal.SIGTERM)
        until_refused(port, within_s=30)
        status, answer = held.answer()
        assert (status, [item["id"] for item in answer["items"]]) == (200, ["i9", "i13", "i17"])
        assert service.process.wait(30) in (0, -signal.SIGTERM)


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2])
def test_who_connects_anew_at_a_stop_is_answered_or_refused_and_never_reset(tmp_path: Path, workers: int) -> None:
    with RunningService(write_whole_world(tmp_path), workers=workers, linger_s=0.5) as service:
        address, body = ("127.0.0.1", service.port), b'{"user_id": "u5", "k": 3}'
        request = REQUEST.replace(b"Host: x", b"Host: x\r\nConnection: close") % (len(body), body)
        outcomes: Counter[str] = Counter()

        def call() -> str:
            try:
                connection = socket.create_connection(address, timeout=30)
            except ConnectionRefusedError:
                return "refused"
            try:
                with connection:
                    connection.sendall(request)
                    answer = b"".join(iter(lambda: connection.recv(65_536), b""))
            except ConnectionError as error:
                return repr(error)
            return "answered" if answer.startswith(b"HTTP/1.1 200 ") and b"i17" in answer else repr(answer)

        def caller() -> None:
            while not outcomes["refused"]:
                outcomes[call()] += 1

        callers = [threading.Thread(target=caller) for _ in range(CALLERS)]
        for each in callers:
            each.start()
        deadline = time.monotonic() + 60
        while outcomes["answered"] < 200:
            # The end of the service, which a failure brings, is the callers', too.
            assert time.monotonic() < deadline, outcomes
            time.sleep(0.01)
        service.process.send_signal(signal.SIGTERM)
        for each in callers:
            each.join(60)
        assert outcomes.keys() == {"answered", "refused"}, outcomes
        assert service.process.wait(30) in (0, -signal.SIGTERM)
