"""Stops `towers forget` where a command on another machine, or in another container, may have left the user.

A container that starts in the place of a killed one has another host name, and no process of that one can be looked up.
"""

from pathlib import Path

from pipelines.errors import DataError
from serving.files.staging import unclear


def refuse_left_overs(folder: Path, name: str | None = None) -> None:
    """Refuses a folder in which directories lie that cannot be finished or removed from here.

    Args:
        folder: the parent of outputs, after `put_back`.
        name: only of the output of this name.

    Raises:
        DataError: names each, and what to do with it.
    """
    todo = [
        f"rename {path} to {out.name}" if kind == "old" and not out.exists() else f"remove {path}"
        for out, kind, path in unclear(folder, name)
    ]
    if todo:
        raise DataError(
            f"{folder}: a command on another machine or in another container is at work in it or was killed, and what "
            f"it writes may hold the user: wait for it, or if it has ended, {', '.join(todo)}; then give the command "
            "again"
        )
