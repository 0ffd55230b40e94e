"""The files through which workers share their metrics, with disk space of their own before the first value is written.

prometheus-client maps sparse files. A page that found no space later would kill the process without a message.
"""

import errno
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

from prometheus_client.multiprocess import mark_process_dead

from serving.files.disk_full import telling_full_disk

METRICS = "PROMETHEUS_MULTIPROC_DIR"
# As prometheus-client names the files of the kinds of `serving.telemetry.metrics`, each with the process's number.
KINDS = ("counter", "gauge_livemax", "gauge_livesum", "histogram")
ROOM_BYTES = 2**18  # several times what they hold: of a longer file the new part is sparse again
NOTHING_BYTES = 8  # the head of a file without values


def reserve(directory: Path) -> None:
    """Creates this process's files, before prometheus-client does: all of them or, if there is no space, none.

    Raises:
        DiskFullError: there is no space for them.
    """
    directory.mkdir(parents=True, exist_ok=True)  # one below /tmp or /run is gone after each start of the machine
    if not hasattr(os, "posix_fallocate"):  # macOS has none
        return
    paths = [directory / f"{kind}_{os.getpid()}.db" for kind in KINDS]
    # Others read every file of `directory` as whole: these come to it with their space.
    with telling_full_disk(directory), TemporaryDirectory(dir=directory) as aside:
        for path in paths:
            with Path(aside, path.name).open("w+b") as file:
                if path.exists():  # of a dead process that had this number
                    file.write(path.read_bytes())
                os.posix_fallocate(file.fileno(), 0, ROOM_BYTES)
        for path in paths:
            Path(aside, path.name).replace(path)


def give_back() -> None:
    """Removes what `reserve` made in this process: a start that fails, again and again, must not fill the disk."""
    if METRICS in os.environ:
        for path in Path(os.environ[METRICS]).glob(f"*_{os.getpid()}.db"):
            path.unlink(missing_ok=True)


def release(directory: Path, process: int) -> None:
    """Keeps what a dead process counted, and gives back the rest of its space."""
    mark_process_dead(process, str(directory))  # type: ignore[no-untyped-call]
    for path in directory.glob(f"*_{process}.db"):
        with path.open("r+b") as file:
            used = int.from_bytes(file.read(4), sys.byteorder)  # how prometheus-client begins its files
            file.truncate(max(used, NOTHING_BYTES))


@contextmanager
def shared_metrics() -> Iterator[Path]:
    """Sets PROMETHEUS_MULTIPROC_DIR to a directory for the workers' metrics and removes it at the end.

    If the variable is already set, its directory is emptied of metrics, used and kept.

    Raises:
        FileExistsError: it holds another file that would be read as one of metrics.
    """
    own = os.environ.get(METRICS) or None
    directory = Path(own or mkdtemp(prefix="towers-metrics-"))
    directory.mkdir(parents=True, exist_ok=True)
    for old in (path for kind in KINDS for path in directory.glob(f"{kind}_*.db")):
        old.unlink()
    if other := next(directory.glob("*.db"), None):
        raise FileExistsError(errno.EEXIST, f"{METRICS} needs a directory of its own, this one holds {other.name}", own)
    os.environ[METRICS] = str(directory)
    try:
        yield directory
    finally:
        if own is None:
            del os.environ[METRICS]
            shutil.rmtree(directory, ignore_errors=True)
