"""A blessing: `NAME.blessing.json` beside a bundle, the record that it passed a gate.

It is bound by SHA-256 to the bundle, its baseline, the data set, the rules and the reports. It is no signature: it
finds what has changed, not who changed it.
"""

import json
import os
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipelines.dataset.manifest import digest_of
from pipelines.errors import GateError
from serving.bundle.digest import bundle_digest
from serving.bundle.manifest import DIGEST, json_digest
from serving.files.staging import staged

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
AGAIN = "`towers gate` judges it again"


class Record(BaseModel):
    """A frozen part of a file that only commands write."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Judgement(Record):
    """One rule with what it found.

    Attributes:
        rule: what was measured, in words.
        figure: what it was; None if the rule has no number.
        limit: what it must be, in words.
        passed: whether it was.
        note: why it was not judged, or what was found.
    """

    rule: str
    figure: float | None
    limit: str
    passed: bool
    note: str = ""


class Blessing(Record):
    """The content of the file, without its `digest`.

    Attributes:
        created_at: when the gate passed.
        candidate: digest of the bundle.
        baseline: digest of the bundle with which it was compared, if any.
        dataset: fingerprint of the data set of the reports, if there are any.
        rules: SHA-256 of the file of rules.
        section: the rules that applied: those of a new model or those of a renewal.
        files: SHA-256 of the rules and of each file of the reports, by its path from the blessing's folder.
        judgements: every rule with its figure and limit.
    """

    schema_version: Literal[1] = 1
    created_at: datetime
    candidate: Sha256
    baseline: Sha256 | None
    dataset: str | None
    rules: Sha256
    section: Literal["new model", "renewal"]
    files: dict[str, Sha256]
    judgements: tuple[Judgement, ...]


def blessing_path(bundle: Path) -> Path:
    """The place of a bundle's blessing."""
    place = bundle.resolve()
    return place.with_name(f"{place.name}.blessing.json")


def evidence(bundle: Path, files: Iterable[Path]) -> dict[str, str]:
    """SHA-256 of files on which a blessing rests, by their paths from its folder: all of them may move together."""
    folder = blessing_path(bundle).parent
    return {os.path.relpath(file.resolve(), folder): digest_of(file) for file in files}


def write_blessing(blessing: Blessing, bundle: Path) -> Path:
    """Writes the blessing of a bundle, replacing an earlier one; returns its path."""
    path = blessing_path(bundle)
    content = json.loads(blessing.model_dump_json())
    with staged(path, overwrite=True) as staging:
        text = json.dumps({**content, DIGEST: json_digest(content)}, indent=2, ensure_ascii=False)
        staging.write_text(text + "\n", encoding="utf-8")
    return path


def valid_blessing(bundle: Path) -> Blessing:
    """Reads the blessing of a bundle and compares it with the bundle, the rules and the reports as they are now.

    Raises:
        GateError: there is none, it was altered, or it is of other content.
        BundleError: the manifest of the bundle is damaged.
    """
    path, now = blessing_path(bundle), bundle_digest(bundle)
    try:
        content = json.loads(path.read_bytes())
        digest = content.pop(DIGEST)
        whole = digest == json_digest(content)
        blessing = Blessing.model_validate_json(json.dumps(content))
    except FileNotFoundError:
        raise GateError(f"{bundle}: has no blessing, {path.name}; `towers gate` judges it") from None
    except (AttributeError, KeyError, TypeError, ValidationError, ValueError, RecursionError):
        whole = False
    if not whole:
        raise GateError(f"{path}: altered: its {DIGEST} is not that of its content; {AGAIN}")
    if blessing.candidate != now:
        raise GateError(f"{bundle}: changed since its blessing; {AGAIN}")
    for name, expected in blessing.files.items():
        file = path.parent / name
        if not file.is_file():
            raise GateError(f"{file}: missing; the blessing of {bundle} rests on it; put it back, or {AGAIN}")
        if digest_of(file) != expected:
            raise GateError(f"{file}: changed since the blessing of {bundle}, which rests on it; {AGAIN}")
    return blessing
