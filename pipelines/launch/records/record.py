"""The record that a tracker keeps: settings, figures, figures by epoch, text, files; and how outputs are read for it.

Reads what commands left on disk, so that an output can be tracked at any later time. Names in `params` are those of the
recipe; names in `figures` and `series` are paths such as ``exact/recall@20`` or ``train/loss``. Trackers allow fewer
signs than these: no two names of ours become one of theirs. A name that loses something ends with a mark, the first
digits of its SHA-256: ``a/b`` and ``a_b`` stay two names.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelines.errors import DataError

BOARD = "tensorboard"
MARK = 8  # hexadecimal digits
LONGEST_PART = 200  # of the 250 characters that MLflow allows
# What every name of a rule or figure holds, and what takes its place: a name is whole if this leads back to it.
REVERSIBLE = {"@": "_at_", ", ": "_ ", "baseline's": "baseline_s"}


@dataclass(frozen=True)
class Point:
    """One value of a series: step, and time in seconds since 1970."""

    name: str
    value: float
    step: int
    time: float


@dataclass(frozen=True)
class Record:
    """What a tracker records about one output.

    Attributes:
        kind: "run", "report" or "gate".
        output: the directory or file.
        identity: SHA-256 of what determines the output; a tracker that knows it updates its entry.
        time: when the output was made, in seconds since 1970.
        params: settings by name.
        figures: final figures by name.
        series: figures by epoch.
        text: a summary in Markdown.
        files: the files to keep with the entry; none of them names a user.
        board: where TensorBoard's files go.
    """

    kind: str
    output: Path
    identity: str
    time: float
    params: dict[str, str]
    figures: dict[str, float]
    text: str
    files: list[Path]
    board: Path
    series: list[Point] = field(default_factory=list)


def read_object(file: Path, what: str) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
        DataError: the file is not `what`.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{file.parent}: not {what} (no {file.name})") from None
    except ValueError as error:
        raise DataError(f"{file}: not {what}: {error}") from None
    if not isinstance(content, dict):
        raise DataError(f"{file}: not {what}: it holds no object")
    return content


def identity(kind: str, content: Mapping[str, Any]) -> str:
    """Returns the `identity` of a record: the SHA-256 of its kind and of what determines it."""
    return hashlib.sha256(json.dumps([kind, content], sort_keys=True).encode()).hexdigest()


def leaves(tree: Any, name: str = "", separator: str = "/") -> Iterator[tuple[str, Any]]:
    """Yields each value of nested mappings with its path."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from leaves(value, f"{name}{separator}{key}" if name else key, separator)
    else:
        yield name, tree


def flat(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings by dotted name, as text; a list is JSON, None is left out."""
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in leaves(settings, separator=".")
        if value is not None
    }


def one_part(name: str) -> str:
    """Returns a name that is one part of a path, without a slash: a value of a column may be an address."""
    return _marked(name.replace("/", "_"), name) if "/" in name else name


def mlflow_name(path: str) -> str:
    """Returns the name in MLflow: ``exact/recall_at_20`` of ``exact/recall@20``; other signs that it forbids are _."""
    return "/".join(map(_mlflow_part, path.split("/")))


def _mlflow_part(part: str) -> str:
    told = part
    for ours, theirs in REVERSIBLE.items():
        told = told.replace(ours, theirs)
    told = back = re.sub(r"[^\w.: -]", "_", told)
    for ours, theirs in REVERSIBLE.items():
        back = back.replace(theirs, ours)
    return told if back == part and len(told) <= LONGEST_PART else _marked(told[:LONGEST_PART], part)


def _marked(told: str, name: str) -> str:
    return f"{told}-{hashlib.sha256(name.encode()).hexdigest()[:MARK]}"
