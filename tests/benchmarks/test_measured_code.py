"""Which figures bear a dagger: what each committed result declares that it measures, and when that has changed."""

import ast
import re
import subprocess
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.harness import measured_code
from benchmarks.harness.machine import ROOT, results
from benchmarks.harness.measured_code import changed_since, declared, is_old, measured_files

AREAS = {path.parents[1].name for path in results().values()}


@pytest.mark.parametrize("area", sorted(AREAS))
def test_an_area_declares_what_each_of_its_results_measures(area: str) -> None:
    written = {name for name, path in results().items() if path.parents[1].name == area}
    assert import_module(f"benchmarks.{area}").MEASURES.keys() == written


@pytest.mark.parametrize("name", results())
def test_every_declared_path_is_there_and_covers_what_the_benchmark_imports(name: str) -> None:
    benchmark, *others = declared(name)
    script = ROOT / f"{benchmark.replace('.', '/')}.py"
    assert script.parents[1] == ROOT / "benchmarks" and script.parent == results()[name].parents[1]
    measured = measured_files(name)
    assert [path for path in measured if not (ROOT / path.removeprefix(":!")).exists()] == []
    assert set(files_imported(script)) <= set(measured)
    # Whatever may change a figure of the commands is declared, not only their parts that the benchmark imports.
    commands = {f"{each.replace('.', '/')}.py" for each in others if re.fullmatch(r"[\w.]+", each)}
    assert commands <= set(measured)


def files_imported(script: Path) -> list[str]:
    """The modules of the packages that a script names in its import statements, as files."""
    names = []
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [each.name for each in node.names]
        if isinstance(node, ast.ImportFrom):
            names += [str(node.module), *(f"{node.module}.{each.name}" for each in node.names)]
    files = [f"{name.replace('.', '/')}.py" for name in names if name.split(".")[0] in measured_code.PACKAGES]
    return [file for file in files if (ROOT / file).is_file()]


def test_what_a_benchmark_measures_are_its_imports_at_any_distance_and_its_commands() -> None:
    # benchmarks.losses.nce_speed > benchmarks.harness.array_task > towers.samplers.registry > .noises
    assert "towers/samplers/noises.py" in measured_files("losses_nce_speed")
    assert "serving/http/app.py" not in measured_files("losses_nce_speed")
    # `towers serve` is a process of its own.
    assert "serving/http/app.py" in measured_files("serving")
    assert ":!serving/window" in measured_files("serving")
    assert not any(file.startswith("towers/") for file in measured_files("serving"))
    assert "towers/recipes/beauty.toml" in measured_files("beauty")
    assert not any(file.startswith("benchmarks/") for file in measured_files("beauty"))


def test_code_changes_but_comments_docstrings_and_other_files_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> str:
        who = ("-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false")
        return subprocess.run(["git", *who, *words], cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    def write(text: str) -> None:
        code.write_text(text, encoding="utf-8")

    monkeypatch.setattr(measured_code, "ROOT", tmp_path)
    code, recipe = tmp_path / "towers" / "code.py", tmp_path / "towers" / "recipe.toml"
    code.parent.mkdir()
    write('"""Says one."""\n\n\ndef one(a: int) -> int:\n    """Returns 1."""\n    return a\n')
    recipe.write_text("a = 1\n", encoding="utf-8")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "measured")
    commit = git("rev-parse", "HEAD").strip()

    def changed() -> bool:
        return changed_since(commit, ["towers/code.py", "towers/recipe.toml"])

    assert not changed()
    (tmp_path / "README.md").write_text("not what it measures", encoding="utf-8")
    git("add", ".")
    assert not changed()
    write('"""Says so."""\n\n\ndef one(\n    a: int,\n) -> int:\n    """Returns a."""\n    # As it is.\n    return a\n')
    assert not changed()
    write('"""Says one."""\n\n\ndef one(a: int) -> int:\n    """Returns 1."""\n    return -a\n')
    assert changed()
    git("checkout", "--quiet", ".")
    assert not changed()
    recipe.write_text("a = 1  # one\n", encoding="utf-8")
    assert changed(), "only Python is read"
    assert not changed_since(commit, ["towers", ":!towers/recipe.toml"])
    git("checkout", "--quiet", ".")
    code.unlink()
    assert changed()
    git("checkout", "--quiet", ".")
    assert changed_since("0" * 40, ["towers/code.py"]), "a commit that is not there"


def test_a_result_is_old_if_its_own_files_have_changed_since_its_own_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(measured_code, "load", lambda name: {"commit": f"commit of {name}"})
    monkeypatch.setattr(measured_code, "measured_files", lambda name: [f"file of {name}"])
    monkeypatch.setattr(measured_code, "changed_since", lambda *given: bool(asked.append(given)) or True)
    assert is_old("beauty")
    assert asked == [("commit of beauty", ["file of beauty"])]
