"""The bars of a report and of a comparison count what their phase does: the total they begin with is reached."""

import re
from pathlib import Path

import pytest

from pipelines import console
from pipelines.evaluation import report
from pipelines.launch import compare
from tests.support.terminal import streams
from tests.support.worlds import columns


def counted(lines: list[str], phase: str, unit: str) -> int:
    """What a phase did by its last line, which has a rate; each line before it names the same total, and less done."""
    *before, last = [line for line in lines if line.startswith(f"{phase}: ")]
    ended = re.fullmatch(rf"{phase}: ([\d,]+) {unit} in [\d.]+ s, [\d.,]+ {unit}/s", last)
    assert ended, last
    steps = [re.match(rf"{phase}: ([\d,]+) of ([\d,]+) {unit}, ", line) for line in before]
    assert steps and all(steps), before
    whole = [step[2] for step in steps if step]
    assert {*whole} == {ended[1]}, lines
    return int(ended[1].replace(",", ""))


def test_phases_of_a_report_and_of_a_comparison_count_their_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A line after each step but the last.
    monkeypatch.setattr(console, "LEAST_INTERVAL_S", 0.0)
    monkeypatch.setattr(console, "MOST_INTERVAL_S", 0.0)
    dataset = columns.write_dataset(columns.make_events(), tmp_path)
    bundles = [columns.write_bundle_of(dataset, name=name, seed=seed) for seed, name in enumerate("ab")]
    with streams() as told:
        content = report.run(bundles[0], dataset, tmp_path / "report", ks=[3, 5])
    lines = told.err.splitlines()
    # 1,000 of all figures, 100 of the lists of each ranker, and 1,000 of each slice but those of nobody and of all.
    slices = [each for each in [*content["slices"].values(), content["new_items"]] if each["users"]]
    of_all = [
        each for each in slices if each["users"] == content["counts"]["users"] and "ndcg@3" in each["metrics"]["exact"]
    ]
    assert 0 < len(of_all) < len(slices)
    resamples = 1_000 * (1 + len(slices) - len(of_all)) + 100 * len(content["metrics"])
    assert counted(lines, "intervals", "resamples") == resamples
    # Two splits, prior, users, items, columns; lists, item vectors, query vectors, scores.
    assert counted(lines, "findings", "checks") == 9
    plots = (tmp_path / "report" / "report.html").read_text().count('role="img"')
    assert plots > 2
    assert counted(lines, "page", "parts") == plots + 2  # the example users, and the nearest items
    with streams() as told:
        compared = compare.run([*map(str, bundles)], tmp_path / "comparison", dataset=dataset, metric="recall@5")
    (of_other,) = compared["comparisons"].values()
    done = counted(told.err.splitlines(), "tests", "differences")
    # A slice without users has no difference, but its step is done.
    assert done >= len(of_other["metrics"]) + len(of_other["slices"]) > 2
