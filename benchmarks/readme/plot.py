"""The plot of the README: recall beside published figures, requests per second beside other servers."""

from pathlib import Path

from benchmarks.harness.machine import load, results
from benchmarks.harness.plots import COLOURS, PLOTS, figure
from benchmarks.harness.published import PUBLISHED
from benchmarks.readme.figures import cheap_baseline

GREY = "#999999"
CHEAP = "strongest cheap"
# A result and its split; what is published reads no order.
SETS = {
    "Gowalla": ("quality_gowalla", "gowalla"),
    "Gowalla\n(towers: with order)": ("quality_gowalla_ordered", "gowalla"),
    "MovieLens-1M": ("quality_ml_1m_split", "ml-1m-split"),
}


def draw(folder: Path = PLOTS) -> None:
    """Writes `folder`/measured.svg."""
    figures = {}
    paths = results()
    for shown, (name, split) in SETS.items():
        if name not in paths:
            continue
        result = load(name)
        own = result["figures"]["validation"]["recall@20"]["mean"]
        _, cheap, _ = cheap_baseline(result, split)
        published = PUBLISHED[split]["servable"]["recall@20"]
        figures[shown] = {"towers": own, "best published": published, CHEAP: cheap["recall@20"]}
    serving = load("serving")
    rates = {
        "towers": serving["per_s"]["known"]["median"],
        "empty FastAPI route": serving["per_s"]["empty"]["median"],
        "server of the tutorials": max(each["known"] for each in serving["tutorial_per_s"].values()),
    }
    with figure("measured", 2, folder) as (recall, speed):
        recall.get_gridspec().set_width_ratios([3, 2])
        for axes in (recall, speed):
            axes.set_axisbelow(True)
        for place, name in enumerate(("towers", "best published", CHEAP)):
            at = [number + 0.28 * (place - 1) for number in range(len(figures))]
            bars = recall.bar(at, [each[name] for each in figures.values()], 0.26, color=COLOURS[place], label=name)
            recall.bar_label(bars, fmt="{:.3f}", fontsize=7)
        recall.set(xticks=range(len(figures)), xticklabels=list(figures), title="recall@20", ylim=(0, 0.4))
        recall.grid(axis="x", visible=False)
        recall.legend(ncols=3, loc="upper left", handlelength=1, columnspacing=1)
        colours = [COLOURS[0] if name == "towers" else GREY for name in rates]
        bars = speed.barh(list(rates)[::-1], list(rates.values())[::-1], color=colours[::-1])
        speed.bar_label(bars, fmt="{:,.0f}", fontsize=8, padding=2)
        speed.set(title="requests/s on one core, k = 100")
        speed.margins(x=0.2)  # room for the figure beside the longest bar
        speed.locator_params(axis="x", nbins=4)
        speed.xaxis.set_major_formatter("{x:,.0f}")
        speed.grid(axis="y", visible=False)
