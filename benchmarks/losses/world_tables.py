"""The tables of docs/model/losses.md that come from synthetic worlds, out of the committed results.

In: results of `benchmarks.losses.known_world`, `nce_samples`, `nce_speed`, `choice_of_q`. Out: Markdown.
"""

from typing import Any

import numpy as np

from benchmarks.losses.world_plots import step_milliseconds

Result = dict[str, Any]


def known(result: Result) -> str:
    """Distance to the closed form by loss and k, with the spread over seeds."""
    forms, table = result["settings"]["forms"], result["table"]
    ks = list(next(iter(table.values())))
    rows = [
        [name, forms[name], *(f"{np.mean(by_k[k]['error']):.3f} ({by_k[k]['spread']:.3f})" for k in ks)]
        for name, by_k in table.items()
    ]
    return _markdown(["loss", "closed form", *(f"k = {int(k):,}" for k in ks)], rows)


def quality(result: Result, speed: Result) -> str:
    """Each loss against full softmax, at equal steps and at equal time, at every N."""
    rows = []
    for size, found in result["quality"].items():
        milliseconds = step_milliseconds(result, speed, int(size))
        full = found["full_softmax"]["path"][-1]
        seconds = full["step"] * milliseconds["full_softmax"] / 1e3
        for name, one in found.items():
            same_steps = next(look for look in one["path"] if look["step"] == full["step"])
            same_time = [look for look in one["path"] if look["step"] * milliseconds[name] / 1e3 <= seconds * 1.001]
            best = same_time[-1]
            reached = [look for look in one["path"] if look["kl"] <= full["kl"]]
            time = f"{reached[0]['step'] * milliseconds[name] / 1e3:.1f} s" if reached else "not reached"
            rows.append(
                [
                    f"{int(size):,}",
                    name,
                    f"{one['rate']:g}",
                    f"{milliseconds[name]:.1f}",
                    f"{same_steps['kl']:.3f}, {same_steps['recall']:.1%}".replace("%", " %"),
                    f"{best['kl']:.3f}, {best['recall']:.1%} ({best['step']:,})".replace("%", " %"),
                    time,
                ]
            )
    head = [
        "N", "loss", "learning rate", "ms a step", "KL, recall after as many steps as full softmax",
        "KL, recall in at most its time (steps)", "time to its KL",
    ]  # fmt: skip
    return _markdown(head, rows)


def speed(result: Result) -> str:
    """Median milliseconds of a step, and times as fast as full softmax in blocks; how busy the machine was."""
    rows = []
    names = list(dict.fromkeys(name for row in result["speed"] for name in row["milliseconds"]))
    for row in result["speed"]:
        own = [f"{row['items']:,}", str(row["batch"]), str(row["dimension"])]
        for name in names:
            taken = row["milliseconds"].get(name)
            times = row["times_as_fast_as_full"].get(name)
            own.append("–" if taken is None else f"{taken:,.1f} ({times:.1f}x)")
        rows.append(own)
    loads = ", ".join(f"{row['load_average']:.1f}" for row in result["speed"])
    return f"{_markdown(['N', 'B', 'D', *names], rows)}\n\nThe machine's load average before each row: {loads}."


def q(result: Result) -> str:
    """KL by loss, k and sampler, and how far the samplers are apart."""
    rows = []
    for loss, by_k in result["kl"].items():
        for sampler in next(iter(by_k.values())):
            rows.append([loss, sampler, *(f"{np.mean(cells[sampler]['kl']):.3f}" for cells in by_k.values())])
        rows.append([loss, "largest less smallest", *(f"**{result['spread'][loss][k]:.3f}**" for k in by_k)])
    ks = list(next(iter(result["kl"].values())))
    return _markdown(["loss", "sampler", *(f"k = {int(k):,}" for k in ks)], rows)


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
