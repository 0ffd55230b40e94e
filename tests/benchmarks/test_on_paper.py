"""What is computed for a size that nobody ran: by hand for plain figures, and the page as the program writes it."""

from pathlib import Path

import pytest

from benchmarks.harness.machine import load
from benchmarks.harness.measured_code import OLD
from benchmarks.harness.plots import PLOTS
from benchmarks.scale import eight_gpus, one_host
from benchmarks.scale.on_paper import (
    PAGE,
    WORKERS,
    Measured,
    draw,
    growth,
    measured,
    memory,
    search_ms,
    table,
    with_other_tables,
    with_table,
)
from benchmarks.training.table_rows import OPTIMIZERS, held, label
from tests.support.pages.drawings import assert_same_drawing

PLAIN = Measured(
    own_ms=1.0,
    history_ms=2.0,
    search_ms={40_000: 0.1, 1_000_000: 1.0, 10_000_000: 2.0},
    batched_per_s=1_000.0,
    item_bytes=300.0,
    user_bytes=400.0,
    code_bytes=40.0,
    worker_bytes=5e8,
    peaks={"train": 10e9, "export": 8e9, "index": 4e9},
    build_s=360.0,
    step_ms=50.0,
    batch=4_000,
    events_per_s=1_000_000.0,
    row_bytes=1_000.0,
    cores=2,
    event_bytes=20.0,
)


def test_a_search_grows_as_between_the_two_largest_sizes_or_in_proportion() -> None:
    # Ten times the items took twice the time, so a hundred times take four times.
    assert growth(PLAIN, 1_000_000_000) == pytest.approx((4.0, 100.0))
    assert search_ms(PLAIN, 100_000_000) == pytest.approx((4.0, 20.0))
    assert search_ms(PLAIN, 10_000_000) == pytest.approx((2.0, 2.0))


def test_items_are_mapped_once_and_their_codes_held_by_each_worker() -> None:
    assert memory(PLAIN, 1_000_000, 1) == 3e8 + 4e7 + 5e8
    assert memory(PLAIN, 1_000_000, 16) == 3e8 + 16 * (4e7 + 5e8)


def test_the_table_multiplies_as_it_says() -> None:
    rows = {line.split(" | ")[0].strip("| "): line.split(" | ")[-1].strip("| ") for line in table(PLAIN).splitlines()}
    assert rows["requests, known users"] == "500 to 2,100 cores, 32 to 132 machines"  # 100,000/s x (1 + 4 or 20) ms
    assert rows["requests, a history in each"] == "600 to 2,200 cores"
    assert rows["items in memory, each machine"] == "102 GB"  # 10^8 x (300 + 16 x 40) + 16 x 0.5 GB
    assert rows["items that 128 GB serve"] == "128 million"  # 120 GB / 940 B
    assert rows["stored users, mapped"] == "400 GB"
    assert rows["`prepare`, time"] == "17 min"  # 1,000 s
    assert rows["`train`, time of an epoch"] == "3.5 h with 2 cores"  # 250,000 steps x 0.05 s
    assert rows["`train`, memory"] == "100 GB"
    assert rows["items that 128 GB train"] == "128 million"
    assert rows["a table of user ids in training"] == "1,000 GB"
    assert rows["rows of ids that 128 GB train"] == "128 million"
    assert rows["a build of the index"] == "1.0 to 3.2 h with 2 cores"  # an hour, and sqrt(10) of them
    assert rows["`recall` of all users"] == "1,111 to 5,556 hours of a core"  # 10^6 s x 2 cores x (2 or 10)


def test_each_of_eight_gpus_receives_seven_eighths_of_eight_batches_and_scores_eight_times_the_candidates() -> None:
    cases = [
        {"items": items, "workers": count, "median_ms": 10.0 * count, "bytes_a_step": (count - 1) * received}
        for items, received in ((10, 1_600_000), (99, 1_500_000))
        for count in (1, 2)
    ]
    told = eight_gpus.table({"sizes": {"batch": 1_000, "dimension": 64}, "cases": cases})
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in told.splitlines()[2:]]
    assert [result for _, _, result in rows] == [
        "10 / 20 ms",
        "10 / 20 ms",
        "1.60 MB",
        "1.50 MB",
        "1.30 MB",  # 1,000 x (5 x 256 + 3 x 8) B
        "11.2 MB",  # 7 x 1.6
        "0.6 ms",
        "9.0 ms",
        "3.1 GFLOP, 8 times those of one GPU alone",  # 6 x 1,000 x 8,000 x 64
    ]
    # As a list of what the real exchange sends, it explains the measured bytes.
    measured_bytes = load("workers")["cases"][1]["bytes_a_step"]
    assert 1.0 <= measured_bytes / (4_096 * eight_gpus.example_bytes(64)) < 1.01


def test_a_row_of_a_table_holds_weights_moments_sums_and_two_numbers() -> None:
    assert held("adam", 64) == 3 * 256 + 8
    assert held("adam", 64, average=True, dtype="bfloat16") == 128 + 3 * 256 + 16
    for name, average, dtype in (("sgd", False, "bfloat16"), ("adagrad", False, "float32"), ("adam", True, "float32")):
        shown = one_host.formula(name, 64, average=average, dtype=dtype).replace("x", "*")
        assert eval(shown) == held(name, 64, average=average, dtype=dtype), shown


def test_rows_fit_by_the_peak_of_the_process() -> None:
    cell = {"variables": 264.0, "resident": 300.0, "peak": 500.0}
    names = [label(*each, dtype) for dtype in ("float32", "bfloat16") for each in OPTIMIZERS]
    rows = one_host.table({"sizes": {"dimension": 64}, "bytes_a_row": dict.fromkeys(names, cell)}, 1e9).splitlines()
    assert rows[2] == "| `sgd`, float32 | 64 x 4 + 8 | 264 B | 300 B | 500 B | 2 million |"
    assert len([row for row in rows if row.startswith("| `")]) == 8


def test_the_committed_results_hold_every_figure() -> None:
    figures = measured()
    assert figures.own_ms > 0 and figures.worker_bytes > 0
    assert figures.item_bytes > 64 * 4 and figures.user_bytes > 64 * 4


def test_the_page_and_the_plot_are_those_of_the_committed_results(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert with_table(text, measured()) == text, "run python -m benchmarks.scale.on_paper"
    bare, workers = text.replace(OLD, ""), WORKERS.read_text(encoding="utf-8").replace(OLD, "")
    told = tuple(page.replace(OLD, "") for page in with_other_tables(bare, workers))
    assert told == (bare, workers), "run python -m benchmarks.scale.on_paper"
    draw(measured(), tmp_path)
    assert_same_drawing(tmp_path / "scale.svg", PLOTS / "scale.svg")
