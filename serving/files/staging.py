"""Complete output or none: writes to a hidden sibling and renames it to the final path.

The sibling is removed on failure. Its name carries machine and process: `.OUT.MACHINE.PROCESS.partial`, and `.old` for
content that is being replaced. The next attempt removes what a killed process left.
"""

import errno
import hashlib
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from serving.files.disk_full import telling_full_disk
from serving.files.local_path import refuse_url

# The paths of this process. Its number alone says nothing: process 1 of a container that starts again has the same.
_ours: set[Path] = set()


class OutputExistsError(Exception):
    """The output path exists and may not be replaced."""


@contextmanager
def staged(
    out: Path, *, overwrite: bool = False, marker: str | None = None, check: Callable[[], object] | None = None
) -> Iterator[Path]:
    """Yields the path to write to (a file or a directory that does not exist yet); publishes it at the end.

    Args:
        out: the final path, file or directory.
        overwrite: replace what is there; the old content stays in place until the new one is complete.
        marker: see `refuse_existing`.
        check: called as the last before the output takes its place; if it raises, nothing is published.

    Raises:
        OutputExistsError: `out` exists and may not be replaced, also if it was made meanwhile.
        OSError: the parent of `out` is not a directory, or not writable.
        DiskFullError: there is no space for it; what was written is removed.
    """
    refuse_existing(out, overwrite=overwrite, marker=marker)
    asked, out = out, out.absolute()

    def last() -> None:
        refuse_existing(asked, overwrite=overwrite, marker=marker)  # another process may have made it meanwhile
        if check is not None:
            check()

    out.parent.mkdir(parents=True, exist_ok=True)
    remove_left_overs(out.parent, out.name)
    staging = sibling(out, "partial")
    remove(staging)
    try:
        with telling_full_disk(asked):
            yield staging
            publish(staging, out, last)
    except BaseException:
        remove(staging)
        raise


def publish(staging: Path, out: Path, check: Callable[[], object] | None = None) -> None:
    """Renames `staging` to `out`, replacing what is there; both are in one directory. `check` as of `staged`.

    A directory cannot be replaced in one rename, so an old one is moved aside first and removed last.
    """
    flush_to_disk(staging)  # it may take minutes, so before the check
    if check is not None:
        check()
    old = sibling(out, "old")
    try:
        if out.is_dir():
            remove(old)
            out.rename(old)
        staging.replace(out)
    except BaseException:  # of a signal perhaps just after a rename was done
        if old.exists() and not out.exists():
            old.rename(out)
        raise
    flush(out.parent)
    remove(old)
    remove_left_overs(out.parent, out.name)


def sibling(out: Path, kind: str) -> Path:
    """This process's hidden path beside `out`; kind "partial" or "old"."""
    path = out.parent / f".{out.name}.{_machine()}.{os.getpid()}.{kind}"
    _ours.add(_one_name(path))
    return path


def put_back(folder: Path, name: str | None = None, *, alone: bool = False) -> None:
    """Gives outputs in a folder their old content back if a process of this machine was killed while it replaced them.

    A kill between the two renames leaves the old and the new content beside the empty place.

    Args:
        folder: the parent of the outputs.
        name: only the output of this name.
        alone: also if there is no new content of such a name, as of what `publish` gets under a name of its caller's.
    """
    for out, kind, path in _left_overs(folder, name):
        if kind == "old" and not out.exists() and (alone or path.with_suffix(".partial").exists()):
            path.rename(out)
            flush(folder)


def remove_left_overs(folder: Path, name: str | None = None) -> None:
    """Removes what dead processes of this machine left beside outputs; arguments as of `put_back`.

    If the output does not exist, its old content, which is then the only copy, stays for `put_back`, and so does the
    new content beside it.
    """
    for out, _, path in _left_overs(folder, name):
        if out.exists() or not path.with_suffix(".old").exists():
            # Another process may be removing it, too; what cannot be removed does no harm.
            with suppress(OSError):
                remove(path)


def unclear(folder: Path, name: str | None = None) -> list[tuple[Path, str, Path]]:
    """Output, kind and path of directories beside outputs of which nothing here tells whether they are needed.

    Arguments as of `put_back`. Those of other machines and containers, where a killed process looks like a living one,
    and after `put_back` old content that has neither an output nor new content beside it.
    """
    others = _siblings(folder, name, f"(?!{_machine()})[0-9a-f]{{8}}")
    found = [(folder / match[1], match[3], path) for match, path in others if path.is_dir()]
    found += [left for left in _left_overs(folder, name) if left[1] == "old" and not left[0].exists()]
    return sorted(found)


def _left_overs(folder: Path, name: str | None) -> list[tuple[Path, str, Path]]:
    """Output, kind and path of all that dead processes of this machine left in a folder."""
    found = _siblings(folder, name, _machine())
    return [(folder / match[1], match[3], path) for match, path in found if not _lives(int(match[2]), path)]


def _siblings(folder: Path, name: str | None, machine: str) -> list[tuple[re.Match[str], Path]]:
    """The hidden paths beside outputs that machines of a pattern made, with name, process and kind."""
    pattern = re.compile(rf"\.({'.+' if name is None else re.escape(name)})\.{machine}\.(\d{{1,9}})\.(partial|old)")
    inside = folder.iterdir() if folder.is_dir() else ()
    return [(match, path) for path in inside if (match := pattern.fullmatch(path.name))]


def refuse_existing(
    out: Path,
    *,
    overwrite: bool = False,
    marker: str | None = None,
    starts: bytes = b"",
    inputs: Iterable[Path | str | None] = (),
) -> None:
    """Refuses an output path that exists or cannot be written; call it before the long work.

    Args:
        out: the output path.
        overwrite: it may be replaced, but only by the same kind: a mistyped path must not destroy the inputs.
        marker: the file that every directory of this kind holds; None if the output is a file.
        starts: what every file of this kind starts with.
        inputs: what the command reads, which is never replaced, nor a directory that holds it; None is skipped.

    Raises:
        OutputExistsError: it exists and may not be replaced.
        OSError: it is a URL, or its parent is not a directory, or not writable.
    """
    refuse_url(out)
    if out.is_symlink() and not out.exists():
        raise OutputExistsError(f"{out} is a link to {out.readlink()}, which does not exist; remove it, or name that")
    if out.exists():
        if not overwrite:
            raise OutputExistsError(f"{out} already exists; remove it, name another --out, or give --overwrite")
        for read in (Path(str(each).removeprefix("file://")) for each in inputs if each is not None):
            if out.is_dir() and read.resolve().is_relative_to(out.resolve()):
                raise OutputExistsError(f"{out} is or holds what this command reads ({read}); name another --out")
            if read.exists() and out.samefile(read):
                raise OutputExistsError(f"{out} is what this command reads; name another --out")
        if out.is_dir():
            replaceable = not any(out.iterdir()) or (marker is not None and (out / marker).is_file())
            kind = "a directory" if marker is None else f"no directory with {marker}"
        else:
            replaceable = marker is None and out.is_file() and _start(out, len(starts)) in (b"", starts)
            kind = "another kind of file" if marker is None else f"no directory with {marker}"
        if not replaceable:
            raise OutputExistsError(
                f"{out} is {kind}: --overwrite replaces only what this command writes; name another --out"
            )
    # The nearest parent that is there: `out`, or its missing parents, are created in it.
    place = next(each for each in out.absolute().parents if os.path.lexists(each))
    if not place.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, f"cannot be written: {place} is not a directory", str(out))
    # Writing beside `out` is what counts, even if `out` exists: the new content is renamed into its place.
    if not os.access(place, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise PermissionError(errno.EACCES, f"cannot be written: no permission to write in {place}", str(out))


def _start(file: Path, count: int) -> bytes:
    """The first bytes of a file."""
    with file.open("rb") as opened:
        return opened.read(count)


def flush_to_disk(path: Path) -> None:
    """Flushes a file or a whole directory to disk: a rename must not overtake its data."""
    for each in [path, *path.rglob("*")] if path.is_dir() else [path]:
        flush(each)


def remove(path: Path) -> None:
    """Removes a file or a directory tree, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Flushes one file; of a directory only its entries, not their contents."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _one_name(path: Path) -> Path:
    """A path by which it is known whatever links lead to its folder."""
    return path.parent.resolve() / path.name


def _machine() -> str:
    # Process ids of another machine or container that shares the folder say nothing about processes here.
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


def _lives(process: int, path: Path) -> bool:
    """Whether the process that made a path still runs."""
    if process == os.getpid():
        return _one_name(path) in _ours
    try:
        os.kill(process, 0)  # Signal 0 only checks.
    except ProcessLookupError:
        return False
    except PermissionError:  # of another user
        pass
    return True
