"""The metrics of a worker whose temporary directory is full: it goes on, or says why it does not start."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


def on_a_small_disk(tmp_path: Path, *code: str) -> "subprocess.CompletedProcess[str]":
    """Runs a process whose working directory and metrics are on a disk of 2 MB, of its own."""
    mount = ["unshare", "-Urm", "sh", "-c", f'mount -t tmpfs -o size=2m tmpfs {tmp_path} && cd {tmp_path} && exec "$@"']
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
