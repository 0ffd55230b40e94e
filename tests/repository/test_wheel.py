"""The installed wheel works without the checkout: the source distribution and the wheel hold all that a user needs."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PACKAGES = ("towers", "serving", "pipelines")
BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"
DEMO = """
from pathlib import Path
from pipelines.cli import demo
demo.run(Path("demo"), users=600, items=1_000, events=12_000, epochs=1)
"""


def run(*words: str | Path, cwd: Path) -> str:
    """Runs a program that does not see the checkout; gives its output."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, words)],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout.strip()


def files(package: Path) -> set[Path]:
    """What a package consists of: modules, recipes, templates, styles."""
    return {
        path.relative_to(package)
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.relative_to(package).parts
    }


@pytest.mark.long
def test_the_installed_wheel_knows_its_recipes_and_runs_the_demo(tmp_path: Path) -> None:
    source, empty = tmp_path / "source", tmp_path / "empty"
    empty.mkdir()
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    # The wheel is made from the source distribution, so that one must hold everything, too.
    packed = run(sys.executable, "-c", BUILD, "build_sdist", tmp_path, cwd=source).splitlines()[-1]
    shutil.unpack_archive(tmp_path / packed, tmp_path)
    unpacked = tmp_path / packed.removesuffix(".tar.gz")
    wheel = run(sys.executable, "-c", BUILD, "build_wheel", tmp_path, cwd=unpacked).splitlines()[-1]

    environment = tmp_path / "environment"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", tmp_path / wheel, cwd=empty)
    (site,) = (environment / "lib").glob("python*/site-packages")
    # The dependencies come from here, after the wheel: what is installed there of this project is not seen.
    (site / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    assert run(python, "-c", "import towers; print(towers.__file__)", cwd=empty).startswith(str(environment))

    assert {name: files(site / name) for name in PACKAGES} == {name: files(ROOT / name) for name in PACKAGES}
    command = environment / "bin" / "towers"
    assert "recall, end to end" in run(command, "--help", cwd=empty)
    assert "--out" in run(command, "demo", "--help", cwd=empty)
    assert "nothing wrong found" in run(command, "check", "--config", "default", cwd=empty)
    run(python, "-c", DEMO, cwd=empty)
    assert (empty / "demo" / "report" / "report.json").is_file()
