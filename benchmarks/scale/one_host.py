"""What a training holds for each row of an embedding table, and how many rows fit: a table of docs/project/scale.md.

In: the result `table_rows`. `python -m benchmarks.scale.on_paper` writes the table.
"""

from typing import Any

from benchmarks.harness.pages import source

MOMENTS = {"sgd": 0, "adagrad": 1, "adam": 2}
BYTES = {"float32": 4, "bfloat16": 2}


def formula(name: str, dimension: int, *, average: bool, dtype: str) -> str:
    """The arithmetic of `benchmarks.training.table_rows.held`, as the table shows it."""
    floats = MOMENTS[name] + average
    weights = f"({BYTES[dtype]} + {floats} x 4)" if floats else BYTES[dtype]
    return f"{dimension} x {weights} + {'2 x ' if average else ''}8"


def table(result: dict[str, Any], memory: float) -> str:
    """A line for each cell of the result, and how many rows fit into `memory`."""
    dimension = result["sizes"]["dimension"]
    lines = [
        f"| optimizer, table | bytes of a row, d = {dimension} | variables | process after a step | its peak | "
        f"rows in {memory / 1e9:.0f} GB |",
        "|---|---|---|---|---|---|",
    ]
    for cell, sizes in result["bytes_a_row"].items():
        name, *more, dtype = cell.split(", ")
        lines.append(
            f"| {', '.join([f'`{each}`' for each in (name, *more)])}, {dtype} | "
            f"{formula(name, dimension, average=bool(more), dtype=dtype)} | {sizes['variables']:.0f} B | "
            f"{sizes['resident']:.0f} B | {sizes['peak']:.0f} B | {memory / sizes['peak'] / 1e6:.0f} million |"
        )
    return "\n".join([*lines, "", source("table_rows")])
