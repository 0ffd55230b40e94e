"""The rows of the measured figures that are about the running service, for `benchmarks.table`.

In: committed results. Out: what was measured, the figure, the command that measures it again.
"""

from typing import Any

Rows = list[tuple[str, str, str]]


def serving(result: dict[str, Any]) -> Rows:
    """Rates beside the peers, half load, a swap."""
    per_s, ratios, half, swap = result["per_s"], result["ratios"], result["half_load"], result["swap"]
    tutorial = {kind: max(each[kind] for each in result["tutorial_per_s"].values()) for kind in ("known", "history")}
    known, history, batch, empty = (per_s[name]["median"] for name in ("known", "history", "batch", "empty"))
    command = "serving --bundle BUNDLE"
    return [
        (
            f"One worker on one core, {result['sizes']['items']:,} items, k = {result['sizes']['k']}: requests/s for "
            "known users without their seen items",
            f"{known:,.0f}; the server of the tutorials {tutorial['known']:,.0f} ({ratios['known to tutorial']:.1f}x), "
            f"an empty FastAPI route {empty:,.0f} ({ratios['known to empty']:.2f} of it)",
            command,
        ),
        (
            "… histories, through the query tower",
            f"{history:,.0f}; the server of the tutorials {tutorial['history']:,.0f} "
            f"({ratios['history to tutorial']:.1f}x); alone a query waits {result['idle_ms']['wait_ms']:.2g} ms for "
            "others",
            command,
        ),
        (
            f"… queries/s in batches of {result['sizes']['batch']}",
            f"{batch:,.0f}, {ratios['batch to known']:.1f}x of single ones",
            command,
        ),
        (
            "… p99 in open loop at half of saturation, and of the empty route at half of its own",
            f"{half['p99_ms']['known']:.1f} ms, {half['p99_ms']['empty']:.1f} ms",
            command,
        ),
        (
            "… the active bundle is exchanged in that load: requests that fail, slowest answer",
            f"{swap['others']}, {swap['max_ms']:.0f} ms",
            command,
        ),
    ]


def calm(result: dict[str, Any]) -> Rows:
    """p99 of what is accepted under overload."""
    rows, result = [], result["overload"]
    normal = result["normal"]["latency_ms"]["200"]["p99"]
    for name, what in (("twice_saturation", "twice the saturation"), ("connections_512", "512 hammering connections")):
        run = result[name]
        figure = (
            f"{run['latency_ms']['200']['p99']:.1f} ms ({normal:.1f} ms at half of saturation); "
            f"{run['rate']['200']:,.0f} answers/s, {run['rate'].get('429', 0):,.0f} refusals/s"
        )
        rows.append((f"Overload, {what}: p99 of what is accepted", figure, "calm --bundle BUNDLE"))
    return rows


def soak(result: dict[str, Any]) -> Rows:
    """Memory at the end against that before."""
    written, memory = result["written"], result["memory"]
    what = (
        f"{result['minutes']:g} minutes with {written['swaps']} swaps, {written['upserts']:,} changed items and "
        "recalls: memory of the last quarter against the second"
    )
    return [(what, f"{memory['rss_last_over_second']:.3f}", "soak --bundle BUNDLE")]
