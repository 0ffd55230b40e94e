"""Finished runs of a benchmark, kept one file each, so that an interrupted benchmark resumes.

In: a run's settings and the function that makes it. Out: its result, from the folder where it is there already.
"""

import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


class Store:
    """A folder of finished runs.

    The settings are all that names a run: after a change of the code that makes it, start with an empty folder.

    Args:
        directory: made where it is missing; holds `HASH.json` files: settings, result, seconds.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def run(self, settings: Mapping[str, Any], function: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The result of the run with these settings: read, or made by `function` and written.

        What comes back has been through JSON either way: keys are strings, tuples are lists.

        Args:
            settings: JSON values; their order does not matter.
            function: makes the result, JSON values.

        Raises:
            TypeError, ValueError: settings or result are no JSON, or hold NaN or infinity.
        """
        path = self.path(settings)
        if not path.exists():
            begin = time.monotonic()
            made = function()
            _write(path, {"settings": settings, "result": made, "seconds": round(time.monotonic() - begin, 3)})
        kept = json.loads(path.read_text(encoding="utf-8"))
        print(f"{kept['seconds']:8.1f} s {_canonical(settings)}", file=sys.stderr, flush=True)
        result: dict[str, Any] = kept["result"]
        return result

    def path(self, settings: Mapping[str, Any]) -> Path:
        """Where the run with these settings is, or would be."""
        return self.directory / f"{hashlib.sha256(_canonical(settings).encode()).hexdigest()[:20]}.json"

    def has(self, settings: Mapping[str, Any]) -> bool:
        """Whether that run is finished."""
        return self.path(settings).exists()


def _canonical(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True, allow_nan=False)


def _write(path: Path, content: dict[str, Any]) -> None:
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    # Beside its place and renamed into it: a file that is there is complete.
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, suffix=".part", delete=False) as file:
        file.write(text)
    Path(file.name).replace(path)
