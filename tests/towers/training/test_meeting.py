"""Workers wait for one another: for those that come late, not for ever, and never at another program's port."""

import socket
import threading
import time

import pytest

from pipelines.training.local_workers import free_ports
from towers.errors import ConfigError, LostWorkerError
from towers.training import meeting
from towers.training.meeting import meet


def test_those_that_come_late_are_met(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "LOOK_S", 0.01)
    monkeypatch.setattr(meeting, "PATIENCE_S", 0.05)
    addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
    told: list[str] = []
    servers: list[socket.socket] = []

    def come(rank: int, tell: list[str]) -> None:
        meet(addresses, rank, tell.append, limit=30.0)
        # TensorFlow listens there from now on.
        servers.append(socket.create_server(("127.0.0.1", int(addresses[rank].rpartition(":")[2]))))

    threads = [threading.Thread(target=come, args=(rank, told if not rank else [])) for rank in range(3)]
    threads[0].start()
    threads[1].start()
    deadline = time.monotonic() + 60
    while not told:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    threads[2].start()
    for thread in threads:
        thread.join()
    assert len(servers) == 3
    for server in servers:
        server.close()
    assert told[0].startswith("worker 0 of 3 waits for ")
    assert addresses[2] in told[0]


def test_one_that_never_comes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "LOOK_S", 0.01)
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    with pytest.raises(
        LostWorkerError, match=f"worker 1 of 2: no answer from {addresses[0]} in 0 s; start that worker"
    ):
        meet(addresses, 1, print, limit=0.05)


def test_a_port_that_another_process_has_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError, match=f"TF_CONFIG: another process of this machine has port {port}, of localhost"
        ):
            meet([f"localhost:{port}", "localhost:1"], 0, print)
