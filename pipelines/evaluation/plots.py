"""Draws the plots of a report as SVG texts, for a page on light or dark ground."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

# Okabe & Ito 2008: colour-blind readers can tell them apart, and each has contrast on white and on near-black.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999")
INK = "#808080"  # of axes; the page gives texts its own colour
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "towers",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.edgecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.grid": True,
    "grid.color": INK,
    "grid.alpha": 0.25,
    "legend.frameon": False,
}
Interval = Mapping[str, float]


@contextmanager
def _figure(width: float, height: float) -> Iterator[tuple[Axes, list[str]]]:
    """Yields axes to draw on, and a list that gets the SVG at the end."""
    out: list[str] = []
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure.subplots(), out
        text = StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    # Without the XML head: the SVG stands within a page.
    out.append(text.getvalue().partition("<svg")[1] + text.getvalue().partition("<svg")[2])


def recall_over_k(ks: Sequence[int], curves: Mapping[str, Sequence[Interval]]) -> str:
    """Draws recall with its intervals over the length of the list, a curve for each ranker's title."""
    with _figure(7, 4) as (axes, out):
        for colour, (title, estimates) in zip(COLOURS, curves.items(), strict=False):
            values = [each["value"] for each in estimates]
            errors = [[e["value"] - e["low"] for e in estimates], [e["high"] - e["value"] for e in estimates]]
            axes.errorbar(ks, values, errors, label=title, color=colour, marker="o", markersize=4, capsize=3)
        axes.set(xscale="log", xlabel="k", ylabel="recall@k", ylim=(0, None))
        axes.set_xticks(list(ks), [str(k) for k in ks])
        axes.minorticks_off()
        axes.legend()
    return out[0]


def by_slice(names: Sequence[str], rankers: Mapping[str, Sequence[Interval]], figure: str) -> str:
    """Draws a figure with its interval for each slice, a colour for each ranker's title."""
    with _figure(7, 1 + 0.3 * len(names)) as (axes, out):
        for place, (colour, (title, estimates)) in enumerate(zip(COLOURS, rankers.items(), strict=False)):
            values = [each["value"] for each in estimates]
            errors = [[e["value"] - e["low"] for e in estimates], [e["high"] - e["value"] for e in estimates]]
            rows = np.arange(len(names)) + 0.15 * (2 * place - len(rankers) + 1)
            axes.errorbar(values, rows, xerr=errors, fmt="o", color=colour, markersize=4, capsize=3, label=title)
        axes.set_yticks(range(len(names)), list(names))
        axes.set(xlabel=figure, ylim=(len(names) - 0.5, -0.5), xlim=(0, None))
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.08 - 0.4 / len(names)), ncols=len(rankers))
    return out[0]


def differences(names: Sequence[str], estimates: Sequence[Interval], figure: str) -> str:
    """Draws a difference with its interval for each name, beside a line at 0."""
    with _figure(7, 1 + 0.3 * len(names)) as (axes, out):
        values = [each["value"] for each in estimates]
        # Rounding puts the bounds of equal differences beside them, and errors below 0 are refused.
        errors = [
            [max(e["value"] - e["low"], 0) for e in estimates],
            [max(e["high"] - e["value"], 0) for e in estimates],
        ]
        axes.axvline(0, color=INK, linestyle="--")
        axes.errorbar(values, range(len(names)), xerr=errors, fmt="o", color=COLOURS[0], markersize=4, capsize=3)
        axes.set_yticks(range(len(names)), list(names))
        axes.set(xlabel=figure, ylim=(len(names) - 0.5, -0.5))
    return out[0]


def popularity_curves(popularity: NDArray[np.int64], counts: Mapping[str, NDArray[np.int64]]) -> str:
    """Draws what share of all places (or targets) the most popular items have, a curve for each title.

    Args:
        popularity: [N] events of each item.
        counts: title -> [N] how often each item was recommended, or taken.
    """
    order = np.argsort(-popularity, kind="stable")
    share = np.arange(1, len(order) + 1) / len(order)
    # At most 200 points: the curve of a million items looks the same.
    shown = np.unique(np.geomspace(1, len(order), 200).astype(np.int64)) - 1
    with _figure(7, 4) as (axes, out):
        for colour, (title, each) in zip(COLOURS, counts.items(), strict=False):
            total = max(int(each.sum()), 1)
            axes.plot(share[shown], np.cumsum(each[order])[shown] / total, label=title, color=colour)
        axes.set(xscale="log", xlabel="share of the catalogue, most popular items first", ylabel="share of all places")
        axes.set_ylim(0, 1)
        axes.legend()
    return out[0]


def training_curves(epochs: Sequence[Mapping[str, float]], metric: str, best: int) -> str:
    """Draws loss and validation metric by epoch, and marks the epoch that was chosen."""
    with _figure(7, 3.5) as (axes, out):
        numbers = [each["epoch"] for each in epochs]
        axes.plot(numbers, [each["loss"] for each in epochs], color=COLOURS[0], label="loss (left)")
        axes.set(xlabel="epoch", ylabel="loss")
        other = axes.twinx()
        other.plot(numbers, [each.get(metric, np.nan) for each in epochs], color=COLOURS[1], label=f"{metric} (right)")
        other.set_ylabel(metric)
        other.grid(visible=False)
        axes.axvline(best, color=INK, linestyle="--", label=f"epoch {best} was chosen")
        axes.figure.legend(loc="outside lower center", ncols=3)
    return out[0]
