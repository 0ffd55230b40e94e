"""The plots of docs/model/losses.md that come from synthetic worlds, out of the committed results.

In: a result of `benchmarks.losses.known_world`, `nce_samples` with `nce_speed`, or `choice_of_q`. Out: SVG in
    docs/plots.
"""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.plots import PLOTS, figure, line

Result = dict[str, Any]
WIDE = 4.0  # lines that lie on one another get narrower, so that all are seen
SHARED = "k, noise samples shared by the batch"


def known(result: Result, folder: Path = PLOTS) -> None:
    """Distance to the closed form over steps, and at the end by k."""
    with figure("losses_known", 2, folder) as (left, right):
        for number, (name, path) in enumerate(result["paths"].items()):
            steps, distance = np.array(path).T
            label = f"{name}: {result['settings']['forms'][name]}"
            left.plot(steps, distance, **line(number), linewidth=WIDE - number, markevery=4, label=label)
        for number, by_k in enumerate(result["table"].values()):
            ks = [int(k) for k in by_k]
            error = [np.mean(one["error"]) for one in by_k.values()]
            right.plot(ks, error, **line(number), linewidth=WIDE - number)
            spread = [one["spread"] for one in by_k.values()]
            right.plot(ks, spread, color=line(number)["color"], linestyle=":", linewidth=1.0)
        left.set(yscale="log", xlabel="step", ylabel="RMS distance to its closed form, nats")
        left.set_title(f"one seed, k = {result['settings']['path of k']}")
        left.legend()
        right.set(xscale="log", yscale="log", xlabel=SHARED, ylabel="RMS, nats")
        right.set_title("at the end; dotted: spread over seeds")


def q(result: Result, folder: Path = PLOTS) -> None:
    """KL to the truth by k, a line for each sampler, a panel for each loss; the band is that of the seeds."""
    with figure("losses_q", len(result["kl"]), folder) as panels:
        for axes, (loss, by_k) in zip(panels, result["kl"].items(), strict=True):
            ks = [int(k) for k in by_k]
            for number, sampler in enumerate(next(iter(by_k.values()))):
                values = np.array([cells[sampler]["kl"] for cells in by_k.values()])
                axes.plot(ks, values.mean(axis=1), **line(number), label=sampler)
                axes.fill_between(ks, values.min(axis=1), values.max(axis=1), color=line(number)["color"], alpha=0.15)
            axes.set(xscale="log", yscale="log", xlabel=SHARED, ylabel="KL to P, nats")
            axes.set_title(loss)
        panels[0].legend()


def nce(result: Result, speed: Result, folder: Path = PLOTS) -> None:
    """KL to the truth over the seconds that the steps take, a panel for each N."""
    shown = ("full_softmax", "nce k=5", "nce k=25", "nce k=100", "nce k=1000", "sampled_softmax k=1000")
    with figure("losses_nce", len(result["quality"]), folder) as panels:
        for axes, (size, found) in zip(panels, result["quality"].items(), strict=True):
            milliseconds = step_milliseconds(result, speed, int(size))
            for number, name in enumerate(name for name in shown if name in found):
                steps = np.array([look["step"] for look in found[name]["path"]])
                kl = [look["kl"] for look in found[name]["path"]]
                axes.plot(steps * milliseconds[name] / 1e3, kl, **line(number), label=name)
            axes.set(xscale="log", yscale="log", xlabel="seconds of training", ylabel="KL to P, nats")
            axes.set_title(f"N = {int(size):,}")
        panels[0].legend()


def step_milliseconds(result: Result, speed: Result, size: int) -> dict[str, float]:
    """Of each loss at this N and at the batch and width of the quality runs."""
    settings = result["settings"]
    wanted = (size, settings["batch"], settings["dimension"])
    rows = [row for row in speed["speed"] if (row["items"], row["batch"], row["dimension"]) == wanted]
    # How log Z is set does not change what a step costs.
    return {name: rows[0]["milliseconds"][name.partition(",")[0]] for name in result["quality"][str(size)]}
