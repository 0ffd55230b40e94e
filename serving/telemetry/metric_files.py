"""The files through which workers share their metrics, with disk space of their own before the first value is written.

prometheus-client maps sparse files. A page that found no space later would kill the process without a message.
"""

import os
from pathlib import Path

from serving.files.disk_full import telling_full_disk

# As prometheus-client names the files of the kinds of `serving.telemetry.metrics`, each with the process's number.
KINDS = ("counter", "gauge_livemax", "gauge_livesum", "histogram")
ROOM_BYTES = 2**18  # several times what they hold: of a longer file the new part is sparse again


def reserve(directory: Path) -> None:
    """Creates this process's files, before prometheus-client does.

    Raises:
        DiskFullError: there is no space for them.
    """
    for kind in KINDS:
        with telling_full_disk(directory), (directory / f"{kind}_{os.getpid()}.db").open("ab") as file:
            if hasattr(os, "posix_fallocate"):  # macOS has none
                os.posix_fallocate(file.fileno(), 0, ROOM_BYTES)
