"""Whether the code that a committed result measured has changed since.

For each result, `MEASURES` in `benchmarks/AREA/__init__.py` declares the module of its benchmark, the modules of the
commands that it measures, and its recipes. What these import of the packages, directly or not, belongs to it; the
benchmark's own code and its peers do not. A command that only makes the data of a benchmark is not declared.
"""

import ast
import subprocess
from functools import cache
from importlib import import_module

import grimp

from benchmarks.harness.machine import ROOT, load, results

OLD = "† "  # before a figure whose code has changed since
PACKAGES = ("towers", "serving", "pipelines")


def is_old(name: str) -> bool:
    """Whether the code of a committed result has changed since its commit; comments and docstrings do not count."""
    return changed_since(str(load(name)["commit"]), measured_files(name))


def declared(name: str) -> tuple[str, ...]:
    """What the area of a committed result declares that the result measures: modules by their names, files by paths."""
    area = import_module(f"benchmarks.{results()[name].parents[1].name}")
    found: tuple[str, ...] = area.MEASURES[name]
    return found


def measured_files(name: str) -> list[str]:
    """The files of the packages that a committed result depends on, and its recipes, from the root of the project.

    Files that have been deleted since are not among them: whatever imported them is, and has changed.
    """
    every = declared(name)
    modules = {each for each in every if "/" not in each}
    imported = modules.union(*(_imports().find_upstream_modules(module) for module in modules))
    files = {_file(module) for module in imported if module.partition(".")[0] in PACKAGES}
    return sorted(files.union(every) - modules)


def changed_since(commit: str, files: list[str]) -> bool:
    """Whether any of `files` (paths, git's own `:!PATH` to leave some out) differs from its state at `commit` as code.

    A commit that is not there cannot be compared, so the answer is yes.
    """
    changed = _git("diff", "--name-only", commit, "--", *files)
    return changed is None or any(_differs(commit, file) for file in changed.splitlines())


@cache
def _imports() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES, "benchmarks", exclude_type_checking_imports=True, cache_dir=None)


def _file(module: str) -> str:
    path = module.replace(".", "/")
    return f"{path}/__init__.py" if (ROOT / path).is_dir() else f"{path}.py"


def _differs(commit: str, file: str) -> bool:
    before, now = _git("show", f"{commit}:{file}"), ROOT / file
    if before is None or not now.exists() or now.suffix != ".py":
        return True
    return _code(before) != _code(now.read_text(encoding="utf-8"))


def _code(source: str) -> str:
    """A module's syntax without comments, docstrings and line breaks."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return ast.dump(tree)


def _git(*words: str) -> str | None:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None
