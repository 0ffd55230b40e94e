"""Who may read a file that several users replace in turn."""

import os
import stat
from contextlib import suppress
from pathlib import Path


def keep_access(staging: Path, out: Path) -> None:
    """Gives new content owner and mode of the file that it will replace, whatever the umask: a service reads it.

    If the owner cannot be kept, the mode is no narrower than before. A first file can be read by whom its folder can.
    """
    if not out.exists():
        staging.chmod(stat.S_IWUSR | out.parent.stat().st_mode & 0o444)
        return
    before = out.stat()
    mode = stat.S_IMODE(before.st_mode)
    try:
        os.chown(staging, before.st_uid, before.st_gid)
    except OSError:
        with suppress(OSError):
            os.chown(staging, -1, before.st_gid)
        mode |= stat.S_IMODE(staging.stat().st_mode)
    staging.chmod(mode)
