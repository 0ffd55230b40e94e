"""The tables and the plot of docs/model/losses.md that come from real data, out of the committed results.

In: a result of `benchmarks.losses.on_data`. Out: Markdown; SVG in docs/plots.
"""

from pathlib import Path
from typing import Any

from benchmarks.harness.plots import PLOTS, figure, line
from benchmarks.losses.grid import CHOSEN_BY, NAMES, NO_SAMPLER, ROWS, best_of

Result = dict[str, Any]

STRENGTH = "strength c of the correction"


def matrix(result: Result) -> str:
    """Loss by sampler: recall@20 on test of the setting that validation chose; bold the sampler it chose."""
    lines = [f"| loss | {' | '.join(f'`{name}`' for name in NAMES)} |", f"|---|{'---|' * len(NAMES)}"]
    for row, cells in result["cells"].items():
        best = best_of(cells)
        if NO_SAMPLER in cells:
            figure = _figure(cells[NO_SAMPLER], best == NO_SAMPLER)
            lines.append(f"| {shown(row)} | {figure} (no sampler) |{' |' * (len(NAMES) - 1)}")
            continue
        figures = [_figure(cells.get(name), name == best) for name in NAMES]
        lines.append(f"| {shown(row)} | {' | '.join(figures)} |")
    return "\n".join(lines)


def chosen(result: Result) -> str:
    """Each loss at its best, the best on validation first."""
    best = {row: (name, cells[name]) for row, cells in result["cells"].items() if (name := best_of(cells)) is not None}
    return _ranking(best)


def large(result: Result) -> str:
    """Each loss with one sampler, the best on validation first."""
    best = {row: (cell["sampler"], cell) for row, cell in result["cells"].items() if "valid" in cell}
    return _ranking(best)


def strengths(result: Result) -> str:
    """What the strength of the correction does."""
    lines = [
        "| c | recall@20, validation | NDCG@20, validation | recall@20, test | training events of a recommended item "
        "| share of the catalogue that is recommended |",
        "|---|---|---|---|---|---|",
    ]
    for run in result["runs"]:
        valid = run["valid"]
        lines.append(
            f"| {run['correction']:g} | {valid['recall@20']:.4f} | {valid['ndcg@20']:.4f} | "
            f"{run['test']['recall@20']:.4f} | {valid['mean_popularity']:.0f} | {valid['coverage']:.1%} |".replace(
                "%", " %"
            )
        )
    return "\n".join(lines)


def plot_logq(result: Result, folder: Path = PLOTS) -> None:
    """Quality, and how popular the recommended items are, over the correction's strength."""
    strengths = [run["correction"] for run in result["runs"]]
    with figure("losses_logq", 2, folder) as (quality, popularity):
        for number, name in enumerate(("recall@20", "ndcg@20")):
            quality.plot(strengths, [run["valid"][name] for run in result["runs"]], **line(number), label=name)
        quality.set(xlabel=STRENGTH, ylabel="on validation", title="quality", ylim=(0, None))
        quality.legend()
        popularity.plot(strengths, [run["valid"]["mean_popularity"] for run in result["runs"]], **line(2))
        popularity.set(
            xlabel=STRENGTH, ylabel="training events of a recommended item", title="popularity", ylim=(0, None)
        )


def _ranking(best: dict[str, tuple[str, dict[str, Any]]]) -> str:
    lines = [
        "| loss | sampler | setting | recall@20, validation | recall@20, test | recall@50, test | NDCG@20, test "
        "| s an epoch, the fastest |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row, (name, cell) in sorted(best.items(), key=lambda each: -each[1][1]["valid"][CHOSEN_BY]):
        test = cell["test"]
        where, key = ROWS[row].tuned
        lines.append(
            f"| {shown(row)} | {'–' if name == NO_SAMPLER else f'`{name}`'} | "
            f"`{where}.{key} = {cell['recipe'][where][key]:g}` | {cell['valid'][CHOSEN_BY]:.3f} | "
            f"{test['recall@20']:.3f} ± {test['recall@20 standard error']:.3f} | {test['recall@50']:.3f} | "
            f"{test['ndcg@20']:.3f} | {cell['seconds_per_epoch']:.1f} |"
        )
    return "\n".join(lines)


def shown(row: str) -> str:
    """A row's name in Markdown."""
    name, comma, variant = row.partition(", ")
    return f"`{name}`{comma}{variant}"


def _figure(cell: dict[str, Any] | None, bold: bool) -> str:
    if cell is None:
        return "–"
    if "test" not in cell:
        return "failed"
    figure = f"{cell['test'][CHOSEN_BY]:.3f}"
    return f"**{figure}**" if bold else figure
