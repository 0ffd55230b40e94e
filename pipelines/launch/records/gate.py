"""The record of a gate's result."""

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from pipelines.errors import DataError
from pipelines.evaluation.page import cell
from pipelines.launch.records.names import one_part
from pipelines.launch.records.record import BOARD, Record, identity, read_object

UNBOUND = ("created_at", "digest")  # new each time


def read_gate(file: Path) -> Record:
    """Reads the file that a gate wrote; see `of_gate`.

    Raises:
        DataError: it is not such a file.
    """
    content = read_object(file, "a gate's result")
    if not isinstance(content.get("judgements"), list):
        raise DataError(f"{file}: not a gate's result: it has no list of judgements, but {', '.join(content)}")
    return of_gate(content, file)


def of_gate(content: Mapping[str, Any], file: Path) -> Record:
    """Makes the record of a gate's result. The same rules, digests and verdict have one identity.

    Args:
        content: texts (digests, names), which become settings; `created_at`, ISO 8601; `judgements`, a list of objects
            with `rule` (its name), `figure` (a number or null), `limit` (text, which becomes a setting), `passed` and
            maybe `note`. The verdict is "passed" if all of them are. Rules of one name are told apart by their limits.
        file: where the result is, or would be had it passed: TensorBoard's files lie beside it.
    """
    judgements = content["judgements"]
    params = {name: value for name, value in content.items() if isinstance(value, str) and name not in UNBOUND}
    params["verdict"] = "passed" if all(each["passed"] for each in judgements) else "refused"
    times = Counter(each["rule"] for each in judgements)
    names = [each["rule"] if times[each["rule"]] == 1 else f"{each['rule']}, {each['limit']}" for each in judgements]
    rules = [(f"rules/{one_part(name)}", each) for name, each in zip(names, judgements, strict=True)]
    figures = {f"{rule}/passed": float(each["passed"]) for rule, each in rules}
    figures |= {f"{rule}/figure": float(each["figure"]) for rule, each in rules if each["figure"] is not None}
    rows = [
        (each["rule"], each["figure"], each["limit"], "yes" if each["passed"] else "no", each.get("note"))
        for each in judgements
    ]
    table = "".join(f"| {' | '.join('' if value is None else cell(value) for value in row)} |\n" for row in rows)
    return Record(
        kind="gate",
        output=file,
        identity=identity("gate", params),
        time=datetime.fromisoformat(content["created_at"]).timestamp(),
        params=params | {f"{rule}/limit": each["limit"] for rule, each in rules},
        figures=figures,
        text=f"**{params['verdict']}**\n\n| rule | figure | limit | passed | note |\n|---|---|---|---|---|\n{table}",
        files=[file] if file.exists() else [],
        board=file.with_name(f"{file.stem}.{BOARD}"),
    )
