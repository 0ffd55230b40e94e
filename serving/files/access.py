"""Who may read a file that replaces another one."""

import os
import stat
from contextlib import suppress
from pathlib import Path


def keep_access(staging: Path, out: Path) -> None:
    """Gives new content the mode and, if possible, the owner of the file that it will replace, whatever the umask."""
    if out.exists():
        before = out.stat()
        with suppress(OSError):
            os.chown(staging, before.st_uid, before.st_gid)
        staging.chmod(stat.S_IMODE(before.st_mode))
