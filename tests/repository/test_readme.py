"""The README's Python block runs as it is printed, in at most twenty statements."""

import ast
import json
import re
from pathlib import Path

import pytest

from benchmarks.harness.machine import results
from benchmarks.readme.table import OLD, PAGE, highlights, measured, with_block
from tests.support.paths import ROOT


def block() -> str:
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found.group(1)


def test_the_python_example_is_short() -> None:
    lines = [line for line in block().splitlines() if line.strip()]
    assert len(lines) <= 20
    assert ast.parse(block())


@pytest.mark.slow
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
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert with_block(text, "highlights", highlights()) == text, "run python -m benchmarks.readme.table"
    # Which of them are old changes with every commit.
    page = PAGE.read_text(encoding="utf-8").replace(OLD, "")
    assert with_block(page, "measured", measured(marks=False)) == page, "run python -m benchmarks.readme.table"


def test_the_readme_is_read_in_a_few_minutes() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.parametrize("result", results().values(), ids=lambda path: path.stem)
def test_every_claim_of_a_committed_result_holds(result: Path) -> None:
    claims = json.loads(result.read_text(encoding="utf-8"))["claims"]
    assert claims
    assert all(claims.values()), claims
