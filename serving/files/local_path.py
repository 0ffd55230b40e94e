"""Outputs are paths on this machine."""

import errno
import re
from pathlib import Path

URL = re.compile(r"([A-Za-z][\w+.-]+):/")  # as `Path` writes one


def refuse_url(out: Path) -> None:
    """Refuses an output that is a URL, of which a path would be a folder such as `s3:` here.

    Raises:
        NotADirectoryError: it is one; the message has no more of it than the scheme, as the rest may hold a password.
    """
    if url := URL.match(str(out)):
        told = f"cannot be written: must be a path on this machine (a folder called {url[1]}: by its absolute path)"
        raise NotADirectoryError(errno.ENOTDIR, told, f"{url[1]}://…")
