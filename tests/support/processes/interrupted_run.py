"""Stops a command on its way, again and again, and gives it once more each time: `python interrupted_run.py JOB`.

JOB is JSON: the command's `words`; `points`, a list of [what, which, count], each where one process is stopped; `by`:
`kill`, `term` (SIGTERM), `full` (from there on `disk` takes no more) or `limit` (no file grows any more). The last
process goes to the end. Each is a fork of one that has imported TensorFlow and not run it. Writes a list of how each
`ended`, what it `told`, and what was `left` on the disk.

What: `step`, `validation`, `tower` (of a bundle): before the one of that count. `write`: a checkpoint whose path has
`which` in it; to kill means inside write(2) here, where the kernel ends a process at its limit of a file's size. Else
an audit event of Python (os.rename, shutil.rmtree, open, ...), just before it happens to a path with `which` in it.
"""

import json
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from pipelines.bundles import export
from pipelines.cli import app
from towers.evaluation.validation import Validation
from towers.training.protocols import LossWatch

HALF = 2048  # bytes that are written of a file
FILLER = "filler"


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def kill_in_write() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit()


def limit() -> None:
    """Python ignores SIGXFSZ, so what is written beyond fails."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (HALF, HALF))


def fill(filler: Path) -> None:
    """Takes all the room."""
    handle = os.open(filler, os.O_CREAT | os.O_WRONLY)
    try:
        while True:
            os.write(handle, bytes(4096))
    except OSError:
        os.close(handle)


def arm(what: str, which: str, count: int, stop: Callable[[], None]) -> None:
    """Makes this process stop at that point."""
    left = count

    def reached(path: object) -> None:
        nonlocal left
        if which in str(path):
            left -= 1
            if left == 0:
                stop()

    def before(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def replaced(*arguments: Any, **options: Any) -> Any:
            reached(arguments[1:])
            return real(*arguments, **options)

        setattr(owner, name, replaced)

    places = {
        "step": (LossWatch, "add"),
        "validation": (Validation, "measure"),
        "write": (tf.train.Checkpoint, "write"),
        "tower": (export, "save_tower"),
    }
    if what in places:
        before(*places[what])
    else:
        sys.addaudithook(lambda event, arguments: reached(arguments[0]) if event == what else None)


def run(job: dict[str, Any], point: list[Any] | None) -> dict[str, str]:
    """One process."""
    with tempfile.TemporaryFile("w+") as told:
        child = os.fork()
        if not child:
            for stream in (1, 2):  # the first of this process is for the result
                os.dup2(told.fileno(), stream)
            if point is not None:
                stops = {"full": lambda: fill(Path(job["disk"]) / FILLER), "limit": limit, "term": terminate}
                arm(*point, stops.get(job["by"], kill_in_write if point[0] == "write" else kill))
            sys.argv = ["towers", *job["words"]]
            app.main()
        _, status = os.waitpid(child, 0)
        told.seek(0)
        ended = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else str(os.WEXITSTATUS(status))
        left = sorted(str(path) for path in Path(job["disk"]).rglob("*")) if job["disk"] else []
        return {"ended": ended, "told": told.read(), "left": " ".join(left)}


def main(text: str) -> None:
    job = json.loads(text)
    ends = []
    for point in [*job["points"], None]:
        ends.append(run(job, point))
        if job["disk"]:
            (Path(job["disk"]) / FILLER).unlink(missing_ok=True)
    sys.stdout.write(json.dumps(ends))


if __name__ == "__main__":
    main(sys.argv[1])
