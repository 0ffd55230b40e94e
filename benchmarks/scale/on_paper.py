"""A billion users, a hundred million items, 100,000 requests/s: what that takes, computed from the committed results.

Nothing was run at that size. Each figure is a measured one times a stated factor. For a search the growth between two
measured sizes is the lower estimate, no proven bound, and growth in proportion the upper one. `python -m
benchmarks.scale.on_paper` writes the tables and the plot of docs/project/scale.md, and the table of
docs/model/workers.md.
"""

import math
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness.machine import ROOT, load
from benchmarks.harness.pages import with_block
from benchmarks.harness.plots import PLOTS, figure, line
from benchmarks.scale import eight_gpus, one_host

USERS, ITEMS, REQUESTS, EVENTS = 10**9, 10**8, 100_000, 10**9
CORES, MEMORY = 16, 128e9  # of a machine to count in
FLOAT = 4
PAGE, WORKERS = ROOT / "docs" / "project" / "scale.md", ROOT / "docs" / "model" / "workers.md"
BEGIN, END = "<!-- table: on_paper -->\n", "<!-- /table on_paper -->"


class Measured(NamedTuple):
    """What the committed results say.

    Attributes:
        own_ms: of one core, a request of a known user without the search.
        history_ms: likewise of a request with a history, the query tower included.
        search_ms: of one core, by items; indexes that find 0.98 of the exact first 100.
        batched_per_s: searches/s of `cores` in batches, at the largest size.
        item_bytes: what a service maps of each item: vector, id, popularity.
        user_bytes: likewise of each user: vector, id, seen items.
        code_bytes: of an item in the index, private to a worker.
        worker_bytes: what a worker holds besides.
        peaks: anonymous memory of stages, at the largest size.
        build_s: of the index, at the largest size.
        step_ms: a training step of ids alone among a million items, with logQ correction.
        batch: its examples.
        events_per_s: `towers prepare`, Parquet.
        row_bytes: of a training's peak, by rows of a table, with Adam.
        cores: of the machine.
        event_bytes: of `towers prepare`, what each further event takes, with its share of users and items; its columns
            alone take 20.
    """

    own_ms: float
    history_ms: float
    search_ms: dict[int, float]
    batched_per_s: float
    item_bytes: float
    user_bytes: float
    code_bytes: float
    worker_bytes: float
    peaks: dict[str, float]
    build_s: float
    step_ms: float
    batch: int
    events_per_s: float
    row_bytes: float
    cores: int
    event_bytes: float


def measured() -> Measured:
    serving, bulk, one = load("serving"), load("bulk_recall"), load("worker_memory")
    small, large, steps = load("renew"), load("scale"), load("train_step")
    fewer, more = load("prepare"), load("prepare_100m")
    searched_ms = 1e3 / bulk["bundles"]["gowalla, one processor"]["bare_users_per_s"]
    plain = one["bundles"]["float32"]
    rows, maps, private = one["sizes"], plain["rows"]["the only worker"]["files"], plain["one_more_worker_adds_bytes"]
    held = {name: each["Rss"] for name, each in maps.items()}
    of_items = sum(size for name, size in held.items() if name.startswith(("item_", "popularity")))
    # Of the vectors only the pages that the users of the measurement touched were in memory.
    of_users = sum(size for name, size in held.items() if name.startswith(("query_id", "seen")))
    index, index_small = large["index"]["measured"], small["index_before"]["measured"]
    code_bytes = index["bytes"] / large["sizes"]["items"]
    further_bytes = more["formats"]["parquet"]["peak_bytes"] - fewer["formats"]["parquet"]["peak_bytes"]
    return Measured(
        own_ms=1e3 / serving["per_s"]["known"]["median"] - searched_ms,
        history_ms=1e3 / serving["per_s"]["history"]["median"] - searched_ms,
        search_ms={
            bulk["bundles"]["gowalla"]["items"]: searched_ms,
            small["sizes"]["items"]: index_small["single_query_ms"],
            large["sizes"]["items"]: index["single_query_ms"],
        },
        batched_per_s=index["batched_queries_per_s"],
        item_bytes=of_items / rows["items"],
        user_bytes=of_users / rows["users"] + rows["dimension"] * FLOAT,
        code_bytes=code_bytes,
        worker_bytes=private - code_bytes * rows["items"],
        peaks={name: each["peak_anonymous_bytes"] for name, each in large["stages"].items()},
        build_s=index["build_s"],
        step_ms=steps["median_ms"]["in_batch"],
        batch=steps["sizes"]["batch"],
        events_per_s=fewer["formats"]["parquet"]["events_per_s"],
        row_bytes=load("table_rows")["bytes_a_row"]["adam, float32"]["peak"],
        cores=index["processors"],
        event_bytes=further_bytes / (more["sizes"]["events"] - fewer["sizes"]["events"]),
    )


def growth(figures: Measured, items: int = ITEMS) -> tuple[float, float]:
    """How many times as long a search takes as at the largest measured size: by its trend, and in proportion."""
    (small, least), (large, most) = sorted(figures.search_ms.items())[-2:]
    times = items / large
    return times ** (math.log(most / least) / math.log(large / small)), times


def search_ms(figures: Measured, items: int) -> tuple[float, float]:
    """Milliseconds of one core for a search beyond the largest measured size, least and most."""
    last = figures.search_ms[max(figures.search_ms)]
    low, high = growth(figures, items)
    return low * last, high * last


def memory(figures: Measured, items: float, workers: int) -> float:
    """Bytes of a machine that serves a catalogue with this many workers, without its users."""
    return items * (figures.item_bytes + workers * figures.code_bytes) + workers * figures.worker_bytes


def table(figures: Measured) -> str:
    largest = max(figures.search_ms)
    times = ITEMS / largest
    low, high = search_ms(figures, ITEMS)
    slow, slower = growth(figures)
    cores = [REQUESTS * (figures.own_ms + each) / 1e3 for each in (low, high)]
    with_history = [REQUESTS * (figures.history_ms + each) / 1e3 for each in (low, high)]
    machines = [math.ceil(each / CORES) for each in cores]
    hours = [USERS / figures.batched_per_s * each * figures.cores / 3600 for each in (slow, slower)]
    own, item, code, rest = figures.own_ms, figures.item_bytes, figures.code_bytes, figures.worker_bytes
    rate = figures.events_per_s
    leaves = times * math.sqrt(times)
    per_s, build = figures.batched_per_s, figures.build_s
    rows = [
        (
            "a search",
            f"{figures.search_ms[largest]:.2f} ms at {largest:,} items, times {slow:.1f} (from a million other items "
            f"on another CPU to these) to {slower:.0f} (in proportion)",
            f"{low:.1f} to {high:.1f} ms of a core",
        ),
        (
            "requests, known users",
            f"{REQUESTS:,}/s x ({own:.2f} ms + the search)",
            f"{cores[0]:,.0f} to {cores[1]:,.0f} cores, {machines[0]} to {machines[1]} machines",
        ),
        (
            "requests, a history in each",
            f"{REQUESTS:,}/s x ({figures.history_ms:.2f} ms + the search)",
            f"{with_history[0]:,.0f} to {with_history[1]:,.0f} cores",
        ),
        (
            "items in memory, each machine",
            f"{ITEMS:,} x ({item:.0f} B mapped + {CORES} workers x {code:.1f} B of codes) + {CORES} x "
            f"{rest / 1e6:.0f} MB",
            f"{memory(figures, ITEMS, CORES) / 1e9:,.0f} GB",
        ),
        (
            f"items that {MEMORY / 1e9:.0f} GB serve",
            f"({MEMORY / 1e9:.0f} GB - {CORES} x {rest / 1e6:.0f} MB) / ({item:.0f} B + {CORES} x {code:.1f} B)",
            f"{(MEMORY - CORES * rest) / (item + CORES * code) / 1e6:.0f} million",
        ),
        (
            "stored users, mapped",
            f"{USERS:,} x {figures.user_bytes:.0f} B",
            f"{USERS * figures.user_bytes / 1e9:,.0f} GB",
        ),
        ("`prepare`, time", f"{EVENTS:,} events at {rate:,}/s", f"{EVENTS / rate / 60:.0f} min"),
        (
            "`prepare`, memory",
            f"{EVENTS:,} events x {figures.event_bytes:.0f} B (what a further one takes, from 20 to 100 million)",
            f"{figures.event_bytes * EVENTS / 1e9:.0f} GB",
        ),
        (
            "`train`, time of an epoch",
            f"{EVENTS:,} events / {figures.batch:,} x {figures.step_ms:.1f} ms, ids alone",
            f"{EVENTS / figures.batch * figures.step_ms / 3.6e6:.1f} h with {figures.cores} cores",
        ),
        *(
            (
                f"`{name}`, memory",
                f"{figures.peaks[name] / 1e9:.1f} GB at {largest:,} items, times {times:.0f}",
                f"{figures.peaks[name] * times / 1e9:,.0f} GB",
            )
            for name in ("train", "export", "index")
        ),
        (
            f"items that {MEMORY / 1e9:.0f} GB train",
            f"{largest:,} x {MEMORY / 1e9:.0f} GB / {figures.peaks['train'] / 1e9:.1f} GB",
            f"{largest * MEMORY / figures.peaks['train'] / 1e6:.0f} million",
        ),
        (
            "a table of user ids in training",
            f"{USERS:,} rows x {figures.row_bytes:.0f} B at its peak, with Adam",
            f"{USERS * figures.row_bytes / 1e9:,.0f} GB",
        ),
        (
            f"rows of ids that {MEMORY / 1e9:.0f} GB train",
            f"{MEMORY / 1e9:.0f} GB / {figures.row_bytes:.0f} B",
            f"{MEMORY / figures.row_bytes / 1e6:.0f} million",
        ),
        (
            "a build of the index",
            f"{build:,.0f} s at {largest:,} items, times {times:.0f} (items) to {leaves:.0f} (items x leaves)",
            f"{build * times / 3600:.1f} to {build * leaves / 3600:.1f} h with {figures.cores} cores",
        ),
        (
            "`recall` of all users",
            f"the search alone: {USERS:,} at {per_s:,.0f}/s of {figures.cores} cores, times {slow:.1f} to {slower:.0f}",
            f"{hours[0]:,.0f} to {hours[1]:,.0f} hours of a core",
        ),
    ]
    lines = ["| what | arithmetic, from measured figures | result |", "|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines)


def draw(figures: Measured, folder: Path = PLOTS) -> None:
    """Writes `folder`/scale.svg."""
    largest = max(figures.search_ms)
    sizes = [10**power for power in range(4, 10)]
    beyond = [10**power for power in range(7, 10)]
    with figure("scale", 2, folder) as (held, took):
        for number, workers in enumerate((1, CORES)):
            name = f"serving, {workers} worker{'s' if workers > 1 else ''}"
            gigabytes = [memory(figures, items, workers) / 1e9 for items in sizes]
            held.plot(sizes, gigabytes, **line(number), linestyle=":", label=name)
        for number, name in enumerate(("train", "index"), 2):
            peak = figures.peaks[name] / 1e9
            held.plot(beyond, [peak * items / largest for items in beyond], **line(number), linestyle=":", label=name)
        held.axhline(MEMORY / 1e9, color="black", linewidth=0.8)
        held.set(title=f"GB of a machine (line: {MEMORY / 1e9:.0f})", xlabel="items", ylim=(0.2, 5e4))
        known = sorted(figures.search_ms)
        took.plot(known, [figures.search_ms[items] for items in known], **line(0), label="a search, measured")
        for number, (name, place) in enumerate({"… by its growth": 0, "… in proportion": 1}.items(), 1):
            ms = [search_ms(figures, items)[place] for items in beyond]
            took.plot(beyond, ms, **line(number), linestyle=":", label=name)
        took.axhline(figures.own_ms, color="black", linewidth=0.8)
        took.set(title="ms of a core a request (line: all but the search)", xlabel="items")
        for axes in (held, took):
            axes.set(xscale="log", yscale="log")
            axes.legend(loc="upper left")


def with_table(text: str, figures: Measured) -> str:
    """The text of the page with the table between its marks."""
    return with_block(text, BEGIN, f"{table(figures)}\n", END)


def with_other_tables(scale: str, workers: str) -> tuple[str, str]:
    """The texts of both pages with the tables that further results give."""
    rows = f"{one_host.table(load('table_rows'), MEMORY)}\n"
    exchange = f"{eight_gpus.table(load('workers'))}\n"
    return (
        with_block(scale, "<!-- table: one_host -->\n", rows, "<!-- /table one_host -->"),
        with_block(workers, "<!-- table: eight_gpus -->\n", exchange, "<!-- /table eight_gpus -->"),
    )


def write() -> None:
    """Writes the tables and the plot."""
    figures = measured()
    scale = with_table(PAGE.read_text(encoding="utf-8"), figures)
    for path, text in zip((PAGE, WORKERS), with_other_tables(scale, WORKERS.read_text(encoding="utf-8")), strict=True):
        path.write_text(text, encoding="utf-8")
    draw(figures)


if __name__ == "__main__":
    write()
