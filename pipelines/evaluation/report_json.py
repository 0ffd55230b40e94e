"""`report.json` with its `digest`, and `files`, the SHA-256 of each table beside it: an altered report is refused."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.dataset.manifest import digest_of
from pipelines.errors import DataError
from serving.bundle.digest import bundle_digest
from serving.bundle.manifest import DIGEST, json_digest

REPORT, PER_USER, PER_ITEM = "report.json", "per_user.parquet", "per_item.parquet"
FILES = "files"


def write_report(content: dict[str, Any], directory: Path, *tables: str) -> None:
    """Writes `report.json`, and adds to `content` the digests of tables that are there already, and its own."""
    content[FILES] = {name: digest_of(directory / name) for name in tables}
    # Through JSON, so that the digest covers exactly what a reader will find.
    content[DIGEST] = json_digest(json.loads(json.dumps(content)))
    text = json.dumps(content, indent=2, allow_nan=False)
    (directory / REPORT).write_text(text + "\n", encoding="utf-8")


def read_report(directory: Path) -> dict[str, Any]:
    """Reads `report.json`.

    Raises:
        DataError: there is none, it was altered, or a table beside it is missing or altered.
    """
    path, again = directory / REPORT, "run `towers report` again"
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{directory}: no report: it has no {REPORT}; `towers report` writes one") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: altered, not valid JSON: {error}; {again}") from None
    if not isinstance(content, dict) or DIGEST not in content:
        raise DataError(f"{path}: has no {DIGEST}: of an earlier release, or altered; {again}")
    covered = {key: value for key, value in content.items() if key != DIGEST}
    if content[DIGEST] != json_digest(covered):
        raise DataError(f"{path}: altered: its {DIGEST} is not that of its content; {again}")
    for name, digest in content[FILES].items():
        table = directory / name
        if not table.is_file():
            raise DataError(f"{table}: missing; {again}")
        if digest_of(table) != digest:
            raise DataError(f"{table}: altered since {REPORT} was written; {again}")
    return content


def refuse_other_digest(bundle: Path, digest: str) -> None:
    """Refuses a report of a bundle that has changed since its digest was taken: it would pass for one of the new.

    Raises:
        DataError: it has another digest now, also where it only has another index.
        BundleError: there is none.
    """
    if (now := bundle_digest(bundle)) != digest:
        raise DataError(
            f"{bundle}: was {digest[:12]} when the report began, and is {now[:12]}; another command, such as `towers "
            "index`, has changed it meanwhile; nothing was written: run `towers report` again"
        )


def protocol_of(content: Mapping[str, Any]) -> str:
    """The protocol of a report in words: the method, and a sentence for each option that is not at its default."""
    return " ".join([content["protocol"], *content["protocol_options"]["words"]])


def finding(content: Mapping[str, Any], name: str) -> str:
    """The text of a finding of a report; empty if it has none of this name."""
    return next((each["text"] for each in content.get("findings", ()) if each["name"] == name), "")
