"""The one file between the two commands: dicts and lists with arrays in them, as JSON and each array once.

No TensorFlow and no JAX.
"""

import hashlib
import json
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np
from numpy.typing import NDArray

FORMAT = 1


def save(path: Path, content: dict[str, Any]) -> None:
    """Writes `content`, an `.npz`."""
    arrays: dict[str, NDArray[Any]] = {}

    def key(value: Any) -> dict[str, str]:
        array = np.asarray(value)
        name = hashlib.sha256(f"{array.dtype} {array.shape} ".encode() + array.tobytes()).hexdigest()
        arrays[name] = array
        return {"array": name}

    text = json.dumps({"format": FORMAT, **content}, default=key)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        np.savez_compressed(file, content=np.array(text), **arrays)


def load(path: Path) -> dict[str, Any]:
    """Reads what `save` wrote.

    Raises:
        ValueError: there is no such file, or another version of `save` wrote it.
    """
    arrays = dict(np.load(path)) if is_zipfile(path) else {}
    text = str(arrays.get("content", "{}"))
    content: dict[str, Any] = json.loads(text, object_hook=lambda d: arrays[d["array"]] if d.keys() == {"array"} else d)
    if content.get("format") != FORMAT:
        raise ValueError(
            f"{path}: format {content.get('format')}, must be {FORMAT}; make it by python -m benchmarks.gpu.export"
        )
    return content
