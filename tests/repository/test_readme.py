"""The README's Python block runs as it is printed, in at most twenty statements."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from benchmarks.harness import plots
from benchmarks.harness.machine import load, results
from benchmarks.harness.measured_code import OLD
from benchmarks.harness.plots import PLOTS
from benchmarks.readme import quality_rows, table
from benchmarks.readme.plot import draw
from benchmarks.readme.table import HIGHLIGHTS, PAGE, highlights, measured, with_block
from tests.support.pages.drawings import assert_same_drawing
from tests.support.pages.programs import program
from tests.support.paths import ROOT


def block() -> str:
    return program("README.md", "synth.run")


def test_the_python_example_is_short() -> None:
    lines = [line for line in block().splitlines() if line.strip()]
    assert len(lines) <= 20
    assert ast.parse(block())


@pytest.mark.long
def test_a_type_checker_without_plugins_finds_nothing_in_the_python_example(tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(block() + "\nDataConfig(split='random')\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent", "example.py"],
        cwd=tmp_path,
        env=os.environ | {"MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.long
def test_the_python_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(block(), "README.md", "exec"), names)
    # Random recall@50 among 1,000 items is 0.05; the model must know more than that.
    result = names["result"]
    assert isinstance(result, dict)
    assert result["metrics"]["exact"]["recall@50"]["value"] > 0.1
    rows, scores = names["rows"], names["scores"]
    assert rows[0][0] == 0  # type: ignore[index]  # an item's nearest neighbour by cosine is itself
    assert abs(scores[0][0] - 1) < 1e-5  # type: ignore[index]
    assert "recall@50" in capsys.readouterr().out


def test_the_figures_are_those_of_the_committed_results() -> None:
    # Which of them are old changes with every commit.
    text = (ROOT / "README.md").read_text(encoding="utf-8").replace(OLD, "")
    assert with_block(text, "highlights", highlights(marks=False)) == text, "run python -m benchmarks.readme.table"
    page = PAGE.read_text(encoding="utf-8").replace(OLD, "")
    assert with_block(page, "measured", measured(marks=False)) == page, "run python -m benchmarks.readme.table"


def test_the_highlights_mark_the_old_figures_as_the_page_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "is_old", lambda name: name == "beauty_s3rec")
    lines = [line for line in highlights().splitlines() if line.startswith("- ")]
    assert len(lines) == len(HIGHLIGHTS)
    assert [line.startswith(f"- {OLD}Beauty") for line in lines] == ["Beauty" in line for line in lines]
    assert [line for line in measured().splitlines() if OLD in line] == [
        line for line in measured().splitlines() if "quality.beauty --set beauty-s3rec --seeds" in line
    ]


def test_each_figure_has_the_date_commit_and_machine_of_its_result() -> None:
    rows = [line.strip("| ").split(" | ") for line in measured(marks=False).splitlines()[2:] if line.startswith("|")]
    for start, name in (
        ("One worker on one core", "serving"),
        ("Beauty, 5-core", "beauty_s3rec"),
        ("Filters", "filters"),
    ):
        (row,) = (row for row in rows if row[0].startswith(start))
        raw = json.loads(results()[name].read_text(encoding="utf-8"))
        date, commit, machine, memory = row[-1].split(", ")
        assert raw["date"].startswith(date) and len(date) == len("2026-11-20")
        assert raw["commit"].startswith(commit.removesuffix(" with changes")) and len(commit.split()[0]) == 7
        assert raw["dirty"] == commit.endswith(" with changes")
        assert machine == f"{raw['machine']['cores']} x {raw['machine']['cpu']}"
        assert memory == f"{round(raw['machine']['memory_gib'])} GiB"


def test_an_interval_is_told_of_the_figure_that_it_is_of() -> None:
    tuned, split = load("tune_gowalla"), load("quality_gowalla")
    [(_, figure, _)] = quality_rows.ROWS["tune_gowalla"](tuned)
    assert figure.startswith("{share:.3f}: recall@20 {test:.4f} (".format(**tuned, **tuned["found"]))
    low, high = (f"{tuned['found']['interval'][bound]:.4f}" for bound in ("low", "high"))
    assert f" ({low} to {high}), hand-made " in figure
    (_, figure, _), *_ = quality_rows.ROWS["quality_gowalla"](split)
    first = split["runs"]["validation"][0]["metrics"]["exact"]["recall@20"]
    assert "recall@20 of the first seed {value:.4f} ({low:.4f} to {high:.4f}); best".format(**first) in figure


def test_each_missed_goal_of_a_committed_result_is_in_the_table() -> None:
    raw = [json.loads(path.read_text(encoding="utf-8")) for path in results().values()]
    missed = {name for result in raw for name, reached in result.get("goals", {}).items() if not reached}
    rows = [line.split(" | ") for line in measured(marks=False).splitlines() if line.startswith("| … goals missed | ")]
    assert missed == {goal for _, goals, *_ in rows for goal in goals.split("; ")}
    (overload,) = (line for line in highlights(marks=False).splitlines() if line.startswith("- Overload"))
    of_overload = next(result["goals"] for result in raw if result["benchmark"] == "calm")
    assert overload.endswith(f"; {list(of_overload.values()).count(False)} goals missed")


def test_the_plot_is_drawn_from_the_committed_results(tmp_path: Path) -> None:
    draw(tmp_path)
    assert_same_drawing(tmp_path / "measured.svg", PLOTS / "measured.svg")


def test_every_text_of_the_plot_is_inside_and_over_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(plots.plt, "close", figures.append)
    draw(tmp_path)
    (figure,) = figures
    figure.draw_without_rendering()
    axes = [(part, part.get_view_interval()) for each in figure.axes for part in (each.xaxis, each.yaxis)]
    beyond = {
        tick.label1
        for part, (low, high) in axes
        for tick in part.get_major_ticks()
        if not low <= tick.get_loc() <= high
    }
    texts = {text for text in figure.findobj(Text) if text.get_text() and text.get_visible()} - beyond
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
    assert len(boxes) > 20
    for place, (text, box) in enumerate(boxes):
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1, text
        assert figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1, text
        assert [other for other, its in boxes[place + 1 :] if box.overlaps(its)] == [], text


def test_the_readme_is_read_in_a_few_minutes() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.parametrize("result", results().values(), ids=lambda path: path.stem)
def test_every_claim_of_a_committed_result_holds(result: Path) -> None:
    claims = json.loads(result.read_text(encoding="utf-8"))["claims"]
    assert claims
    assert all(claims.values()), claims
