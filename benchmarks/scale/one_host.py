"""What a training holds for each row of an embedding table, and how many rows fit: a table of docs/project/scale.md.

In: the result `table_rows`. `python -m benchmarks.scale.on_paper` writes the table.
"""

from typing import Any

from benchmarks.harness.pages import source
from benchmarks.training.table_rows import MOMENTS, OPTIMIZERS, label

TYPES = {"float32": 4, "bfloat16": 2}


def formula(name: str, dimension: int, *, average: bool, dtype: str) -> str:
    """The arithmetic of `benchmarks.training.table_rows.held`, as the table shows it."""
    floats = MOMENTS[name] + average
    weights = f"({TYPES[dtype]} + {floats} x 4)" if floats else TYPES[dtype]
    return f"{dimension} x {weights} + {'2 x ' if average else ''}8"


def table(result: dict[str, Any], memory: float) -> str:
    """A line for each optimizer, float32 before bfloat16, and how many rows fit into `memory`."""
    lines = [
        f"| optimizer, table | bytes of a row, d = {result['sizes']['dimension']} | variables | process after a step | "
        f"its peak | rows in {memory / 1e9:.0f} GB |",
        "|---|---|---|---|---|---|",
    ]
    for dtype in TYPES:
        for name, average in OPTIMIZERS:
            sizes = result["bytes_a_row"][label(name, average, dtype)]
            dimension = result["sizes"]["dimension"]
            lines.append(
                f"| `{name}`{', `average`' if average else ''}, {dtype} | "
                f"{formula(name, dimension, average=average, dtype=dtype)} | {sizes['variables']:.0f} B | "
                f"{sizes['resident']:.0f} B | {sizes['peak']:.0f} B | {memory / sizes['peak'] / 1e6:.0f} million |"
            )
    return "\n".join([*lines, "", source("table_rows")])
