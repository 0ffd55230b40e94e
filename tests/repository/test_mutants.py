"""The list of mutants fits the tree: each changes code that is there once, and the tests that must find it exist."""

import importlib.util
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.paths import ROOT

AREAS = {
    ("towers/losses", "towers/tasks"): 14,
    ("towers/samplers",): 8,
    ("towers/data", "towers/ops", "towers/training"): 6,
    ("towers/evaluation",): 6,
    ("serving/search",): 8,
    ("serving/catalogue",): 6,
    ("serving/recall", "serving/bundle"): 4,
    ("serving/window",): 4,
    ("pipelines/ingest",): 7,
    ("pipelines/dataset", "pipelines/rankers"): 5,
    ("pipelines/training", "pipelines/tuning"): 2,
    ("pipelines/launch", "pipelines/bundles"): 4,
}


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutants_tool", ROOT / "tools" / "mutants.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_code_is_there_once_and_the_tests_exist(tool: ModuleType) -> None:
    assert tool.problems(tool.read()) == []


def test_there_are_some_in_every_area(tool: ModuleType) -> None:
    mutants = tool.read()
    assert len(mutants) == len(set(mutants)) == sum(AREAS.values()) == 74
    found = Counter("/".join(mutant.file.split("/")[:2]) for mutant in mutants)
    assert {area: sum(found.pop(part, 0) for part in area) for area in AREAS} == AREAS
    assert not found


def test_each_is_another_program(tool: ModuleType) -> None:
    """One that Python cannot read would be killed by any test, and one in a comment or a docstring by none."""
    for mutant in tool.read():
        whole = (ROOT / mutant.file).read_text(encoding="utf-8")
        mutated = whole.replace(mutant.old, mutant.new)
        # At level 2 docstrings are no part of a program.
        before, after = (compile(text, "", "exec", dont_inherit=True, optimize=2) for text in (whole, mutated))
        assert before != after, mutant


def test_what_does_not_fit_the_tree_is_told(tool: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("one = 1\nalso = 1\n")
    (tmp_path / "test_code.py").touch()
    mutants = [
        tool.Mutant("code.py", "one = 1", "one = 2", ("test_code.py",)),
        tool.Mutant("code.py", "= 1", "= 2", ("test_code.py",)),
        tool.Mutant("gone.py", "one", "two", ("test_code.py",)),
        tool.Mutant("code.py", "one = 1", "one = 3", ("test_gone.py",)),
        tool.Mutant("code.py", "one = 1", "one = 4", ()),
    ]
    assert tool.problems(mutants, tmp_path) == [
        "code.py: = 1 -> = 2: `old` occurs 2 times, must be once",
        "gone.py: one -> two: `old` occurs 0 times, must be once",
        "code.py: one = 1 -> one = 3: test_gone.py: no such file",
        "code.py: one = 1 -> one = 4: no tests",
    ]
