"""What eight GPUs would exchange in a training step, from the result `workers`: a table of docs/model/workers.md.

In: bytes and time of a step with one and with two processes. Nothing was run with eight GPUs.
`python -m benchmarks.scale.on_paper` writes the table.
"""

from typing import Any

GPUS, FLOAT, NUMBER = 8, 4, 8
RATES = {"GPUs of one machine": 20e9, "machines with 10 Gbit/s": 1.25e9}  # bytes/s that each receives
# Of each example: its item's vector, twice the gradient of that (a ring sums, then spreads the sums), the gradients of
# the rows of user and item; beside them three numbers: the item's and those of both rows.
VECTORS, NUMBERS = 5, 3


def example_bytes(dimension: int) -> int:
    """Bytes that a step exchanges for each example of the global batch; a worker receives (N - 1) / N of them."""
    return VECTORS * dimension * FLOAT + NUMBERS * NUMBER


def received(bytes_of_two: float, gpus: int) -> float:
    """Bytes that each GPU receives in a step, if each has as many examples as two workers shared.

    Two workers each receive half of what their batch exchanges, so together all of it.

    Args:
        bytes_of_two: what two workers together received.
        gpus: N.
    """
    exchanged = gpus * bytes_of_two
    return (gpus - 1) / gpus * exchanged


def table(result: dict[str, Any]) -> str:
    """The measured rows, and those that follow from them."""
    sizes = result["sizes"]
    batch, dimension = sizes["batch"], sizes["dimension"]
    cases = {(each["items"], each["workers"]): each for each in result["cases"]}
    catalogues = sorted({items for items, _ in cases})
    rows = []
    for items in catalogues:
        one, two = (cases[items, count] for count in (1, 2))
        rows.append(
            (
                f"a step among {items:,} items, one process / two",
                f"measured, a batch of {batch:,} in all, both on the same 2 cores",
                f"{one['median_ms']:.0f} / {two['median_ms']:.0f} ms",
            )
        )
    for items in catalogues:
        rows.append(
            (
                f"bytes of a step among {items:,} items, two processes",
                "measured at the loopback device: what both receive, with the overhead of gRPC and TCP",
                f"{cases[items, 2]['bytes_a_step'] / 1e6:.2f} MB",
            )
        )
    most = max(cases[items, 2]["bytes_a_step"] for items in catalogues)
    every, whole = received(most, GPUS), GPUS * batch
    rows.append(
        (
            "of it, counted",
            f"{batch:,} examples x ({VECTORS} vectors x {dimension} x {FLOAT} B + {NUMBERS} numbers x {NUMBER} B)",
            f"{batch * example_bytes(dimension) / 1e6:.2f} MB",
        )
    )
    rows.append(
        (
            f"{GPUS} GPUs, {batch:,} examples each: bytes that each receives in a step",
            f"{GPUS - 1}/{GPUS} x {GPUS} x {most / 1e6:.2f} MB",
            f"{every / 1e6:.1f} MB",
        )
    )
    for name, rate in RATES.items():
        rows.append(
            (
                f"… time of that between {name}",
                f"{every / 1e6:.1f} MB / {rate / 1e9:g} GB/s",
                f"{1e3 * every / rate:.1f} ms",
            )
        )
    operations = 3 * 2 * batch * whole * dimension
    rows.append(
        (
            "… in-batch products of each",
            f"3 products x 2 x {batch:,} queries x {whole:,} candidates x {dimension}",
            f"{operations / 1e9:.1f} GFLOP, {GPUS} times those of one GPU alone",
        )
    )
    lines = ["| what | arithmetic | result |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
