"""Plots of the docs, all in one style, and the same bytes for the same figures.

In: what to draw. Out: `docs/plots/NAME.svg`, readable on white, with colours that colour-blind readers can tell apart.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from benchmarks.harness.machine import ROOT

PLOTS = ROOT / "docs" / "plots"
# Okabe & Ito 2008, without their yellow, which is too pale on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
STYLE: Any = {
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.titlesize": 10,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "legend.fontsize": 8,
    # Ids in the file are hashes; salted by a constant they do not change from run to run.
    "svg.hashsalt": "towers",
    # Text as outlines: it looks alike on every reader's machine.
    "svg.fonttype": "path",
}
WIDTH, HEIGHT = 3.9, 2.9  # inches of one panel


@contextlib.contextmanager
def figure(name: str, panels: int = 1, folder: Path = PLOTS) -> Iterator[tuple[Any, ...]]:
    """Gives `panels` axes side by side; writes `folder`/NAME.svg at the end.

    A line of its own colour and marker: ``axes.plot(x, y, **line(0), label=…)``.
    """
    with mpl.rc_context(STYLE):
        drawing, axes = plt.subplots(1, panels, figsize=(WIDTH * panels, HEIGHT), squeeze=False, layout="constrained")
        try:
            yield tuple(axes[0])
            folder.mkdir(parents=True, exist_ok=True)
            # No date, and no version of the library that wrote it.
            drawing.savefig(folder / f"{name}.svg", format="svg", metadata={"Date": None, "Creator": None})
        finally:
            plt.close(drawing)


def line(number: int) -> dict[str, str]:
    """Colour and marker of the `number`-th line, from 0."""
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}
