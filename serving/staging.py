"""Complete output or none: a path is written beside its place and renamed into it.

In: the final path. Out: a hidden sibling to write to, renamed on success, removed on failure.
"""

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class OutputExistsError(Exception):
    """The output path is taken, and nothing said that it may be replaced."""


@contextmanager
def staged(out: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yields the path to write to (a file or a directory that does not exist yet); publishes it at the end.

    Args:
        out: the final path, file or directory.
        overwrite: replace what is there; the old content stays in place until the new one is whole.

    Raises:
        OutputExistsError: `out` exists and `overwrite` is False.
    """
    refuse_existing(out, overwrite=overwrite)
    out = out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    staging = out.parent / f".{out.name}.{os.getpid()}.partial"
    remove(staging)
    try:
        yield staging
        publish(staging, out)
    except BaseException:
        remove(staging)
        raise


def publish(staging: Path, out: Path) -> None:
    """Renames `staging` to `out`, replacing what is there; both lie in one directory.

    A directory cannot be replaced in one rename, so an old one is moved aside first and removed last.
    """
    flush_to_disk(staging)
    old = out.parent / f".{out.name}.{uuid.uuid4().hex}.old"
    if out.is_dir():
        out.rename(old)
    try:
        staging.replace(out)
    except BaseException:
        if old.exists():
            old.rename(out)
        raise
    flush_to_disk(out.parent)
    remove(old)


def refuse_existing(out: Path, *, overwrite: bool = False) -> None:
    """Raises OutputExistsError where `out` is taken and may not be replaced; call it before the long work."""
    if out.exists() and not overwrite:
        raise OutputExistsError(f"{out} already exists; remove it, name another --out, or give --overwrite")


def flush_to_disk(path: Path) -> None:
    """Asks the system to write a file or a whole directory to the disk: a rename must not overtake its data."""
    paths = [path, *path.rglob("*")] if path.is_dir() else [path]
    for each in paths:
        handle = os.open(each, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def remove(path: Path) -> None:
    """Removes a file or a directory tree, or nothing where there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
