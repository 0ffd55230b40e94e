"""The plot of docs/losses.md that comes from real data, out of a result of `benchmarks.losses_on_data`.

In: the result of the part `logq`. Out: SVG in docs/plots.
"""

from pathlib import Path
from typing import Any

from benchmarks.plots import PLOTS, figure, line

STRENGTH = "strength c of the correction"


def logq(result: dict[str, Any], folder: Path = PLOTS) -> None:
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
