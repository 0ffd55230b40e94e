"""Complete output or none: a path is written beside its place and renamed into it.

In: the final path. Out: a hidden sibling to write to, renamed on success, removed on failure. A sibling carries machine
and process in its name: `.OUT.MACHINE.PROCESS.partial`, and `.old` for content that is being replaced. What a killed
process left is removed at the next attempt.
"""

import errno
import hashlib
import os
import platform
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from serving.disk_full import telling_full_disk


class OutputExistsError(Exception):
    """The output path is taken, and nothing said that it may be replaced."""


@contextmanager
def staged(out: Path, *, overwrite: bool = False, marker: str | None = None) -> Iterator[Path]:
    """Yields the path to write to (a file or a directory that does not exist yet); publishes it at the end.

    Args:
        out: the final path, file or directory.
        overwrite: replace what is there; the old content stays in place until the new one is whole.
        marker: see `refuse_existing`.

    Raises:
        OutputExistsError: `out` exists and `overwrite` is False.
        OSError: the directory of `out` is none, or may not be written to.
        DiskFullError: there is no room for it; what was written is removed.
    """
    refuse_existing(out, overwrite=overwrite, marker=marker)
    asked, out = out, out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    remove_left_overs(out)
    staging = sibling(out, "partial")
    remove(staging)
    try:
        with telling_full_disk(asked):
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
    old = sibling(out, "old")
    if out.is_dir():
        remove(old)
        out.rename(old)
    try:
        staging.replace(out)
    except BaseException:
        if old.exists():
            old.rename(out)
        raise
    flush(out.parent)
    remove(old)
    remove_left_overs(out)


def sibling(out: Path, kind: str) -> Path:
    """This process's hidden path beside `out`; kind "partial" or "old"."""
    return out.parent / f".{out.name}.{_machine()}.{os.getpid()}.{kind}"


def remove_left_overs(out: Path) -> None:
    """Removes what processes of this machine that live no more left beside `out`.

    Old content stays while there is no `out`: after a kill between the two renames it is the only one.
    """
    pattern = re.compile(rf"\.{re.escape(out.name)}\.{_machine()}\.(\d{{1,9}})\.(partial|old)")
    for path in list(out.parent.iterdir()):
        match = pattern.fullmatch(path.name)
        if match and not _lives(int(match[1])) and (match[2] == "partial" or out.exists()):
            # Another process may be removing it, too; what cannot be removed is in nobody's way.
            with suppress(OSError):
                remove(path)


def refuse_existing(out: Path, *, overwrite: bool = False, marker: str | None = None) -> None:
    """Refuses an output path that is taken or cannot be written; call it before the long work.

    Args:
        out: the output path.
        overwrite: it may be replaced, but only by its like: a mistyped path must not cost the inputs.
        marker: the file that every directory of this kind holds; None where the output is a file.

    Raises:
        OutputExistsError: it is taken, and may not be replaced.
        OSError: its directory is none, or may not be written to.
    """
    if out.exists():
        if not overwrite:
            raise OutputExistsError(f"{out} already exists; remove it, name another --out, or give --overwrite")
        empty = out.is_dir() and not any(out.iterdir())
        if not (empty or (out.is_file() if marker is None else (out / marker).is_file())):
            kind = "a directory" if marker is None else f"no directory with {marker}"
            raise OutputExistsError(
                f"{out} is {kind}: --overwrite replaces only what this command writes; name another --out"
            )
    # Whether `out` can be made in its directory, or that directory in the nearest one that is there.
    place = next(each for each in out.absolute().parents if each.exists())
    if not place.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, f"cannot be written: {place} is not a directory", str(out))
    # Writing beside `out` is what counts, even where `out` is there: the new content is renamed into its place.
    if not os.access(place, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise PermissionError(errno.EACCES, f"cannot be written: no permission to write in {place}", str(out))


def flush_to_disk(path: Path) -> None:
    """Asks the system to write a file or a whole directory to the disk: a rename must not overtake its data."""
    for each in [path, *path.rglob("*")] if path.is_dir() else [path]:
        flush(each)


def remove(path: Path) -> None:
    """Removes a file or a directory tree, or nothing where there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Flushes one file, or of a directory only its entries: the names, and not what they hold."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _machine() -> str:
    # Process numbers of another machine, or container, that shares the folder say nothing about who lives here.
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)  # Signal 0 only asks.
    except ProcessLookupError:
        return False
    except PermissionError:  # of another user
        pass
    return True
