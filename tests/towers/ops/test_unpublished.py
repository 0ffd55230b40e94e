"""Names that TensorFlow does not publish: in one file, for the releases allowed, and a clear word where they lack."""

import ast
import runpy

import pytest
import tensorflow as tf
from tensorflow.python.eager import record

from tests.support.paths import ROOT
from tests.support.releases import allowed
from towers.ops import unpublished


def test_they_are_known_in_every_release_that_the_project_allows() -> None:
    assert allowed("tensorflow") == list(unpublished.RELEASES), (
        "towers/ops/unpublished.py names the releases that its names were tested in; test them in those that "
        "pyproject.toml allows, and name these"
    )
    assert tf.__version__.rpartition(".")[0] in unpublished.RELEASES


def test_a_release_without_them_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(record, "record_operation")
    told = rf"^TensorFlow {tf.__version__} lacks a name .*'record_operation'.*; install TensorFlow 2\.20$"
    with pytest.raises(ImportError, match=told):
        runpy.run_path(str(unpublished.__file__))


def test_no_other_file_imports_such_a_name() -> None:
    found = set()
    for path in (path for package in ("towers", "serving", "pipelines") for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            if any(f"{module}.{name}".startswith("tensorflow.python.") for name in names) or any(
                name.startswith("tensorflow.python") for name in names
            ):
                found.add(path.relative_to(ROOT).as_posix())
    assert found == {"towers/ops/unpublished.py"}
