"""The rows of the measured table that are about search and the running service."""

from collections.abc import Callable
from statistics import median

from benchmarks.harness.machine import load
from benchmarks.readme.figures import Result, Rows, several

BACK_S = 5.0  # `benchmarks.serving.overload` looks at so many seconds


def serving(result: Result) -> Rows:
    """Rates beside the peers, half load, a swap."""
    per_s, ratios, half, swap = result["per_s"], result["ratios"], result["half_load"], result["swap"]
    tutorial = {kind: max(each[kind] for each in result["tutorial_per_s"].values()) for kind in ("known", "history")}
    known, history, batch, empty = (per_s[name]["median"] for name in ("known", "history", "batch", "empty"))
    command = "serving.throughput --bundle BUNDLE"
    return [
        (
            f"One worker on one core, {result['sizes']['items']:,} items, k = {result['sizes']['k']}: requests/s for "
            "known users (stored vectors, without the contrast, seen items excluded)",
            f"{known:,.0f}; the server of the tutorials, whose tower encodes every request, {tutorial['known']:,.0f} "
            f"({ratios['known to tutorial']:.1f}x, median of the rounds; histories, through the tower on both sides, "
            f"{ratios['history to tutorial']:.1f}x), an empty FastAPI route {empty:,.0f} "
            f"({ratios['known to empty']:.2f} of it)",
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
            f"{batch:,.0f}, {batch / known:.1f}x of single ones",
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


def calm(result: Result) -> Rows:
    """p99 of what is accepted under overload, medians of the turns; by turn what comes after, and slow clients."""
    rows, turns, command = [], result["overload"], "serving.overload --bundle BUNDLE"
    normal = median(turn["normal"]["latency_ms"]["200"]["p99"] for turn in turns)
    # The generator is the same in both: how long it takes tells how fast the machine was.
    own, fast = _turn_ms([turn["normal"] for turn in turns]), _turn_ms(load("serving")["half_load"]["runs"]["known"])
    machine = f"a slower machine: a turn of the generator took {own:.3f} ms, in the run of the rates above {fast:.3f}"
    saturation = several([turn["saturation"]["per_s"] for turn in turns], ",.0f")
    for name, what in (("twice_saturation", "twice the saturation"), ("connections_512", "512 hammering connections")):
        runs = [turn[name] for turn in turns]
        p99 = median(run["latency_ms"]["200"]["p99"] for run in runs)
        answers, refusals = (median(run["rate"].get(status, 0) for run in runs) for status in ("200", "429"))
        times = f"{p99:.1f} ms ({normal:.1f} ms at half of a saturation of {saturation} requests/s by turn; {machine})"
        shares = several(
            [run["rate"].get("200", 0) / turn["saturation"]["per_s"] for run, turn in zip(runs, turns, strict=True)],
            ".2f",
        )
        rates = f"{answers:,.0f} answers/s, by turn {shares} of the saturation, {refusals:,.0f} refusals/s"
        what = f"Overload, {what}: p99 of what is accepted"
        waits = [(run["back_after_s"], run["after"]["seconds"]) for run in runs]
        # The last second from which on it was looked at.
        back = " / ".join(f"> {watched - BACK_S:g}" if after >= watched else f"{after:g}" for after, watched in waits)
        refused = several([run["after"]["statuses"].get("429", 0) for run in runs], ",")
        sent = several([run["after"]["sent"] for run in runs], ",")
        watch = f"in the {waits[0][1]:g} s after the overload {refused} of {sent} normal requests were refused"
        told = f"{watch}; normal speed was back, and nothing refused any more, after {back} s"
        rows.append((what, f"{times}; {rates}; {told}", command))
    loris = result["slow_loris"]
    slow = f"{loris['slow'][0]['connections']} clients that send by bytes"
    beside = f"Beside {slow}: p99 of the others as a multiple of that without, by turn"
    return [*rows, (beside, several(loris["p99_times"], ".2f"), command)]


def _turn_ms(runs: list[Result]) -> float:
    """What a turn of the load generator takes, median of the runs' medians."""
    return float(median(run["generator"]["turn_ms"]["p50"] for run in runs))


def metric_buffers(result: Result) -> Rows:
    """The processor time of a request without the buffers before shared metrics, beside that with them."""
    what = (
        "Buffers before the metrics that workers share: processor time of a request without them, as a multiple of "
        "that with them"
    )
    rounds, seconds = len(result["processor_us"]["buffered"]), result["seconds"]
    command = f"serving.metric_buffers --bundle BUNDLE --rounds {rounds} --seconds {seconds:g}"
    return [(what, f"{result['ratio']:.2f}", command)]


def soak(result: Result) -> Rows:
    """Memory at the end against that before."""
    written, memory = result["written"], result["memory"]
    what = (
        f"{result['minutes']:g} minutes with {written['swaps']} swaps, {written['upserts']:,} changed items and "
        "recalls: memory of the last quarter against the second"
    )
    return [(what, f"{memory['rss_last_over_second']:.3f}", "serving.soak --bundle BUNDLE")]


def index(result: Result) -> Rows:
    """Queries a second of ours and the best of each library."""
    ours, *others = result["finals"]
    best = {
        library: max(each["single"] for each in others if each["library"] == library)
        for library in dict.fromkeys(each["library"] for each in others)
    }
    batch = {
        library: max(each["batch"] for each in others if each["library"] == library)
        for library in dict.fromkeys(each["library"] for each in others)
    }
    theirs = ", ".join(f"{name} {best[name]:,.0f} / {batch[name]:,.0f}" for name in best)
    most = {each["library"]: each["recall"] for each in sorted(result["swept"], key=lambda each: each["recall"])}
    fewer = [f"{name} found at most {recall:.2f}" for name, recall in most.items() if name not in best]
    notes = "; ".join(["faiss: inverted files", *fewer])
    return [
        (
            f"Index of {result['sizes']['items']:,} items x {result['sizes']['dimension']}, recall@100 at least 0.95, "
            "one thread: queries/s one by one / in batches",
            f"{ours['single']:,.0f} / {ours['batch']:,.0f}; the fastest settings of {theirs} ({notes})",
            "search.approximate --work DIR",
        )
    ]


def engines(result: Result) -> Rows:
    """Queries a second of each engine, as a share of hnswlib's, and the recall of its setting for single queries."""
    items, single, batch = result["sizes"]["items"], *(result["of_hnswlib"][form] for form in ("single", "batch"))
    recall = {name: f"at {found['single']['recall']:.3f}" for name, found in result["finalists"].items()}
    told = [f"{name} {single[name]:.2f} / {batch[name]:.2f} {recall[name]}" for name in single if name != "hnswlib"]
    shares = f"{', '.join(told)}; hnswlib {recall['hnswlib']}"
    what = f"Engines at {items:,} items, likewise: share of hnswlib's queries/s one by one / in batches, at recall@100"
    damages = sum(next(iter(result["damages"].values())).values())
    command = f"search.engines --work DIR --rounds {result['rounds']} --damages {damages}"
    return [(what, shares, command + " --million" * (items == 1_000_000))]


def bulk_recall(result: Result) -> Rows:
    """`towers recall` against the bare search."""
    figures = ", ".join(
        f"{name} {each['ratio']:.2f} (of its `search_batched_parallel`, on all {each['ratio_to_parallel']:.2f})"
        for name, each in result["bundles"].items()
    )
    return [
        (
            "`towers recall` on all processors, as a share of the rate of ScaNN's bare `search_batched` on one",
            figures,
            "search.bulk_recall --bundle NAME=DIR",
        )
    ]


def worker_memory(result: Result) -> Rows:
    """What one more worker adds."""
    sizes = result["sizes"]
    added = ", ".join(
        f"{each['one_more_worker_adds_bytes'] / 1e6:,.0f} MB with {kind}" for kind, each in result["bundles"].items()
    )
    return [
        (
            f"One more worker of the service at {sizes['items']:,} items x {sizes['dimension']}: memory it adds",
            f"{added}; vectors and ids are shared",
            "scale.worker_memory --bundle BUNDLE --bundle INT8",
        )
    ]


def filters(result: Result) -> Rows:
    """The worst of the three ways in which a filter may know the query, at each selectivity."""
    shares = list(dict.fromkeys(name.partition(", ")[2] for name in result["filters"]))
    of_share = [[run for name, run in result["filters"].items() if name.endswith(f", {share}")] for share in shares]
    recall = several([min(run["recall"] for run in runs) for runs in of_share], ".3f")
    ms = several([max(run["p50_ms"] for run in runs) for runs in of_share], ".1f")
    return [
        (
            f"Filters that {' / '.join(shares)} of {result['sizes']['items']:,} items pass: share of the exact "
            f"filtered top {result['sizes']['k']}, median of a query (the worst of three kinds)",
            f"{recall}, {ms} ms; without a filter {result['no_filter']['recall']:.3f}, "
            f"{result['no_filter']['p50_ms']:.1f} ms",
            "search.filters",
        )
    ]


ROWS: dict[str, Callable[[Result], Rows]] = {
    "filters": filters,
    "serving": serving,
    "calm": calm,
    "soak": soak,
    "metric_buffers": metric_buffers,
    "index": index,
    "engines": engines,
    "engines_million": engines,
    "bulk_recall": bulk_recall,
    "worker_memory": worker_memory,
}
