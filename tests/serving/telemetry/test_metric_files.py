"""The metrics of a worker whose temporary directory is full: it goes on, or says why it does not start."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from serving.telemetry.metric_files import KINDS, reserve
from tests.support.paths import ROOT

FILL = """
def fill():
    with open("filler", "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)) == 4096:
                pass
        except OSError:
            pass
"""
LOAD = "from serving.telemetry import metrics"
# As many routes as the service has.
USE = """
for number in range(12):
    metrics.served(f"/{number}", "POST", 200, 0.01)
metrics.flush()
print(metrics.exposition()[0].count(b'towers_requests_total{'))
"""


# Processes one after another, each of which counts its start.
RESTARTS = """
import subprocess, sys
from pathlib import Path
from serving.telemetry.metric_files import release

WORKER = '''
from serving.telemetry import metrics
metrics.started()
print(*[line for line in metrics.exposition()[0].decode().splitlines() if line.startswith("towers_worker_starts_")])
'''
for _ in range(4):
    with subprocess.Popen([sys.executable, "-c", WORKER]) as worker:
        pass
    release(Path(), worker.pid)
"""
ONE_THAT_CANNOT_START = """
import subprocess, sys
print(subprocess.run([sys.executable, "-c", "from serving.telemetry import metrics"], stderr=-3).returncode)
"""


def on_a_small_disk(tmp_path: Path, *code: str, kind: str = "tmpfs -o size=2m") -> "subprocess.CompletedProcess[str]":
    """Runs a process whose working directory and metrics are on a disk of 2 MB, of its own."""
    mount = ["unshare", "-Urm", "sh", "-c", f'mount -t {kind} none {tmp_path} && cd {tmp_path} && exec "$@"']
    if subprocess.run([*mount, "sh", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody mount a small file system of their own (unshare -Urm)")
    return subprocess.run(
        [*mount, "sh", sys.executable, "-c", "\n".join(code)],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_disk_that_fills_up_ends_no_process_and_loses_no_count(tmp_path: Path) -> None:
    done = on_a_small_disk(tmp_path, FILL, LOAD, "fill()", USE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "12\n", "")


def test_a_process_that_starts_on_a_full_disk_says_so(tmp_path: Path) -> None:
    done = on_a_small_disk(tmp_path, FILL, "fill()", LOAD)
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith(f"DiskFullError: {tmp_path}: No space left on device")


@pytest.mark.long
def test_a_process_that_could_not_start_leaves_those_that_run_their_metrics(tmp_path: Path) -> None:
    done = on_a_small_disk(tmp_path, FILL, LOAD, "fill()", ONE_THAT_CANNOT_START, USE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n12\n", "")


def test_where_no_file_system_reserves_space_a_process_starts(tmp_path: Path) -> None:
    done = on_a_small_disk(tmp_path, LOAD, USE, kind="ramfs")
    assert (done.returncode, done.stdout, done.stderr) == (0, "12\n", "")


@pytest.mark.long
def test_processes_that_end_keep_their_counts_and_not_their_space(tmp_path: Path) -> None:
    done = on_a_small_disk(tmp_path, RESTARTS)
    told = "".join(f"towers_worker_starts_total {number}.0\n" for number in (1, 2, 3, 4))
    assert (done.returncode, done.stdout, done.stderr) == (0, told, "")


def test_a_process_with_the_number_of_a_dead_one_goes_on_with_its_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 7)
    (tmp_path / "counter_7.db").write_bytes(b"counts")
    reserve(tmp_path)
    assert (tmp_path / "counter_7.db").read_bytes().rstrip(b"\0") == b"counts"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"{kind}_7.db" for kind in KINDS)
