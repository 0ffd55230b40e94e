"""Draws the plots of a report as SVG texts, for a page on light or dark ground."""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
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
    "text.parse_math": False,  # names from the data may hold dollar signs
}
MARKERS = ("o", "^")  # the second where there are more curves than colours
EPOCHS_NAMED = 10
MOST_KS = 10  # as many labels of k, of up to seven digits, stand side by side
LONGEST = 30  # characters of a name in a legend
WIDEST = 45  # and next to a plot, which gets the room that is left
Interval = Mapping[str, float]


@contextmanager
def _figure(width: float, height: float) -> Iterator[tuple[Axes, list[str]]]:
    """Yields axes to draw on, and a list that gets the SVG at the end."""
    out: list[str] = []
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure.subplots(), out
        text = StringIO()
        with warnings.catch_warnings():
            # Only its own font lacks them: the page's reader has others, and the SVG holds text, not outlines.
            warnings.filterwarnings("ignore", "Glyph .* missing from font")
            figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    # Without the XML head, as the SVG stands within a page, and without the names of its groups, which other plots of
    # the page have, too.
    svg = "".join(text.getvalue().partition("<svg")[1:])
    out.append(re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", svg))


def _log_scale(axes: Axes, numbers: Sequence[int]) -> None:
    """Marks `numbers` of each decade in plain digits: matplotlib's powers of ten would need its mathematics."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=numbers))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())


def _short(names: Sequence[str]) -> list[str]:
    return [name if len(name) <= WIDEST else f"{name[: WIDEST - 1]}…" for name in names]


def _errors(estimates: Sequence[Interval]) -> list[list[float]]:
    # Rounding puts the bounds of equal values beside them, and errors below 0 are refused.
    return [
        [max(each["value"] - each["low"], 0) for each in estimates],
        [max(each["high"] - each["value"], 0) for each in estimates],
    ]


def recall_over_k(ks: Sequence[int], curves: Mapping[str, Sequence[Interval]], metric: str = "recall") -> str:
    """Draws recall, or precision, with its intervals over the length of the list, a curve for each ranker's title."""
    with _figure(7, 4) as (axes, out):
        looks = [(colour, marker) for marker in MARKERS for colour in COLOURS]
        for (colour, marker), (title, estimates) in zip(looks[: len(curves)], curves.items(), strict=True):
            values = [each["value"] for each in estimates]
            axes.errorbar(
                ks, values, _errors(estimates), label=title, color=colour, marker=marker, markersize=4, capsize=3
            )
        axes.set(xscale="log", xlabel="k", ylabel=f"{metric}@k", ylim=(0, None))
        named: list[int] = []
        for k in reversed(ks):  # the last and, before it, those whose numbers have room beside one another
            if not named or np.log(named[-1] / k) * MOST_KS >= np.log(ks[-1] / ks[0]):
                named.append(k)
        axes.set_xticks(named[::-1], [str(k) for k in named[::-1]])
        axes.minorticks_off()
        axes.legend()
    return out[0]


def by_slice(
    names: Sequence[str], rankers: Mapping[str, Sequence[Interval]], figure: str, *, difference: bool = False
) -> str:
    """Draws a figure with its interval for each slice, a colour for each ranker's title; a difference beside 0."""
    with _figure(7, 1 + 0.3 * len(names)) as (axes, out):
        if difference:
            axes.axvline(0, color=INK, linestyle="--")
        for place, (colour, (title, estimates)) in enumerate(zip(COLOURS, rankers.items(), strict=False)):
            values = [each["value"] for each in estimates]
            rows = np.arange(len(names)) + 0.15 * (2 * place - len(rankers) + 1)
            axes.errorbar(
                values, rows, xerr=_errors(estimates), fmt="o", color=colour, markersize=4, capsize=3, label=title
            )
        axes.set_yticks(range(len(names)), _short(names))
        axes.set(xlabel=figure, ylim=(len(names) - 0.5, -0.5))
        if difference:
            axes.locator_params(axis="x", nbins=5)  # more labels of four digits would overlap beside long names
        else:
            axes.set_xlim(0, None)
            axes.figure.legend(loc="outside lower center", ncols=len(rankers))
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
        _log_scale(axes, [1])
        axes.set(xlabel="share of the catalogue, most popular items first", ylabel="share of all places")
        axes.set_ylim(0, 1)
        axes.legend()
    return out[0]


def training_curves(epochs: Sequence[Mapping[str, float]], metric: str, best: int) -> str:
    """Draws loss and validation metric over the minutes of a stage, and marks the epoch that was chosen.

    Args:
        epochs: `history` of a stage; one without times is drawn over its epochs.
        metric: the validation metric; "" for a stage without validation.
        best: the epoch that was chosen.
    """
    numbers = [int(each["epoch"]) for each in epochs]
    minutes = minutes_of(epochs)
    places: Sequence[float] = numbers if minutes is None else minutes
    with _figure(7, 3.5) as (axes, out):
        axes.plot(places, [each["loss"] for each in epochs], color=COLOURS[0], marker=".", label="loss (left)")
        axes.set(xlabel="epoch" if minutes is None else "minutes", ylabel="loss")
        if minutes is not None:
            named = np.unique(np.linspace(0, len(numbers) - 1, EPOCHS_NAMED).astype(int))
            top = axes.secondary_xaxis("top")
            top.set_ticks([minutes[place] for place in named], [str(numbers[place]) for place in named])
            top.set_xlabel("epoch")
        if metric:
            other = axes.twinx()
            values = [each.get(metric, np.nan) for each in epochs]
            other.plot(places, values, color=COLOURS[1], marker=".", label=f"{metric} (right)")
            other.set_ylabel(metric)
            other.grid(visible=False)
        if metric and best in numbers:
            axes.axvline(places[numbers.index(best)], color=INK, linestyle="--", label=f"epoch {best} was chosen")
        axes.figure.legend(loc="outside lower center", ncols=3)
    return out[0]


def minutes_of(epochs: Sequence[Mapping[str, float]]) -> list[float] | None:
    """Returns when each epoch of a stage ended, with its validation, in minutes; None for a run without times."""
    if not all("train_seconds" in each for each in epochs):
        return None
    seconds = np.cumsum([each["train_seconds"] + each.get("validation_seconds", 0.0) for each in epochs])
    return [float(each) for each in seconds / 60]


def index_curve(curve: Mapping[str, Any]) -> str:
    """Draws the recall of an index over the time of a query, single and in a batch, and marks the chosen settings.

    Args:
        curve: of `pipelines.rankers.index_curve.curve`.
    """
    points = curve["points"]
    own = next(point for point in points if point["chosen"])
    with _figure(7, 4) as (axes, out):
        for colour, (time, name) in zip(
            COLOURS, (("single_ms", "one query"), ("batched_ms", "in a batch")), strict=False
        ):
            for marker, line, kept in (("o", "-", "rescored"), ("^", ":", "leaves_searched")):
                some = sorted(
                    (p for p in points if p[kept] == own[kept]), key=lambda p: (p["leaves_searched"], p["rescored"])
                )
                label = f"{name}, {'leaves' if kept == 'rescored' else 'candidates'}"
                x, y = [p[time] for p in some], [p["recall"] for p in some]
                axes.plot(x, y, color=colour, marker=marker, linestyle=line, markersize=4, label=label)
            chosen = "chosen" if time == "single_ms" else None
            axes.plot(own[time], own["recall"], "D", color=INK, fillstyle="none", markersize=11, label=chosen)
            axes.plot(curve["exact"][time], 1.0, "*", color=colour, markersize=11, label=f"{name}, exact search")
        _log_scale(axes, [1, 2, 5])
        axes.set(xlabel="ms per query", ylabel=f"recall@{curve['k']} against exact search")
        axes.legend(fontsize="small")
    return out[0]


def item_map(points: NDArray[np.float64], groups: Mapping[str, NDArray[np.bool_]]) -> str:
    """Draws items as points, a colour and shape for each group.

    Args:
        points: [M, 2].
        groups: name -> [M] its items, at most 12; an item of several has the look of the first.
    """
    left = np.ones(len(points), np.bool_)
    with _figure(7, 6) as (axes, out):
        looks = [(colour, marker) for marker in MARKERS for colour in COLOURS[:-1]]
        for (colour, marker), (name, mask) in zip(looks, groups.items(), strict=False):
            # Matplotlib hides a label that begins with an underscore.
            label = f" {name[:LONGEST]}: {int(mask.sum()):,}"
            axes.plot(*points[mask & left].T, marker, color=colour, markersize=3, label=label)
            left &= ~mask
        widest = max(len(name[:LONGEST]) for name in groups)
        axes.set(xticks=[], yticks=[], aspect="equal")
        for side in ("left", "bottom"):
            axes.spines[side].set_visible(False)
        axes.figure.legend(loc="outside lower center", ncols=max(1, min(3, 80 // (widest + 14))), markerscale=2)
    return out[0]
