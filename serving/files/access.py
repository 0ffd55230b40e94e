"""Who may read files that several users replace in turn."""

import os
import stat
from contextlib import suppress
from pathlib import Path


def keep_access(staging: Path, out: Path) -> None:
    """Gives new content owner and mode of the file that it will replace, whatever the umask: a service reads it.

    If the owner cannot be kept, the mode is no narrower than before. What replaces nothing has owner and readers of its
    folder.
    """
    like = next(each for each in (out, *out.parents) if each.exists())
    before = like.stat()
    mode = stat.S_IMODE(before.st_mode)
    if like.is_dir() and not staging.is_dir():
        mode = stat.S_IWUSR | mode & 0o444
    try:
        os.chown(staging, before.st_uid, before.st_gid)
    except OSError:
        with suppress(OSError):
            os.chown(staging, -1, before.st_gid)
        mode |= stat.S_IMODE(staging.stat().st_mode)
    staging.chmod(mode)


def keep_all_access(staging: Path, out: Path) -> None:
    """Does the work of `keep_access` for a directory and all that it holds."""
    for path in (staging, *staging.rglob("*")):
        keep_access(path, out / path.relative_to(staging))
