"""`towers train --workers N`: starts N workers on this machine, shows what the first one says, stops them together.

Each worker is the same command under its own `TF_CONFIG` (`towers.training.workers`). If one ends early, the others
would wait for ever, so they are killed: training resumes from the last checkpoint, which no kill can damage.
"""

import json
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress

from pipelines.console import say
from pipelines.service.sigterm import end_with_parent

LOOK_S = 0.2
GRACE_S = 5.0  # for the others to end by themselves, so that the first error is the one that is shown
STOP_S = 60.0  # for a checkpoint after SIGTERM or Ctrl-C; a second Ctrl-C does not wait
STOPPED = 130  # the exit code after either
LOCAL = "127.0.0.1"
TAIL = 2_000  # characters of what a failed worker said last


def run(count: int, words: Sequence[str]) -> int:
    """Runs `towers` with `words` as `count` workers.

    Returns:
        0 if all of them ended well, else the exit code of the first to fail, 1 if a signal ended it; 130 if the first
        was stopped, which has then said what is kept.
    """
    cluster = {"worker": [f"{LOCAL}:{port}" for port in free_ports(count)]}
    workers: list[subprocess.Popen[bytes]] = []
    with ExitStack() as stack:
        logs = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(count - 1)]
        try:
            for rank in range(count):
                config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})
                workers.append(
                    subprocess.Popen(
                        # -P: nothing of the current directory is imported.
                        [sys.executable, "-P", "-m", "pipelines", *words],
                        env=os.environ | {"TF_CONFIG": config},
                        stderr=logs[rank - 1] if rank else None,
                        # Ctrl-C in a terminal would reach each of them at another step.
                        start_new_session=True,
                        preexec_fn=end_with_parent,
                    )
                )
            failed = _first_failure(workers)
        except KeyboardInterrupt:
            # They stop after the same step, and the first one saves it.
            for worker in workers:
                worker.terminate()
            until = time.monotonic() + STOP_S
            for worker in workers:
                with suppress(subprocess.TimeoutExpired):
                    worker.wait(max(0.0, until - time.monotonic()))
            if workers and workers[0].returncode == STOPPED:
                return STOPPED  # the first has said what is kept
            raise
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        if failed is None:
            return 0
        code = workers[failed].returncode
        if failed:
            log = logs[failed - 1]
            log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL))
            for line in log.read().decode(errors="replace").splitlines():
                say(f"worker {failed}: {line}")
        if code < 0:
            say(
                f"error: worker {failed} of {count} was ended by {signal.Signals(-code).name}, and the others with it; "
                "the last checkpoint is kept, and the same command resumes from there"
            )
        return max(code, 1)


def _first_failure(workers: Sequence["subprocess.Popen[bytes]"]) -> int | None:
    """Waits until all have ended well, or one has not; the number of that one, whose end made the others fail, too."""
    first, until = None, math.inf
    while time.monotonic() < until:
        codes = [worker.poll() for worker in workers]
        if all(code == 0 for code in codes):
            return None
        # Of several that ended since the last look, one that a signal ended.
        failed = sorted((rank for rank, code in enumerate(codes) if code), key=lambda rank: (codes[rank] or 0) > 0)
        if first is None and failed:
            first = failed[0]
            code = codes[first] or 0
            until = time.monotonic() + (STOP_S if code == STOPPED else GRACE_S if code > 0 else 0)
        if None not in codes:
            break
        time.sleep(LOOK_S)
    # A mistake that all of them found is reported by the first one; 1 may mean that it lost the one that failed.
    return 0 if first is None or (codes[0] == codes[first] and (codes[0] or 0) > 1) else first


def free_ports(count: int) -> list[int]:
    """Ports that are free now, all different."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((LOCAL, 0))
        return [int(each.getsockname()[1]) for each in sockets]
