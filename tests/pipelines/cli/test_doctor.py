"""`towers doctor`: every library on its line, whatever its import does, and what to do about it."""

import os
import platform
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from pipelines.cli import doctor
from serving.errors import BundleError
from serving.search.scann import ScannIndex
from tests.support.paths import ROOT

# What a stand-in for a library does when it is imported; the version is that of the real one.
BROKEN = {
    "polars": "raise ImportError('libgomp.so.1: cannot open shared object file')",
    "scann": "raise ImportError('undefined symbol: _ZN4absl')",
    "orjson": "import os, signal; os.kill(os.getpid(), signal.SIGILL)",
    "numpy": "import sys; sys.exit(3)",
    "pydantic": "raise ImportError('no pydantic_core')",  # the command line itself reads words by it
}
WHOLE = dict.fromkeys(("scipy", "httptools", "uvloop", "tf_keras", "tensorflow_recommenders"), "")

UV = f"uv pip install --python {sys.executable} --reinstall"


def told_by(folder: Path, modules: dict[str, str], gpus: int = 0) -> tuple[int, dict[str, str]]:
    """Exit code, and the screen by the first word of each line, where these modules hide the real ones."""
    tensorflow = (
        f"class config:\n    list_physical_devices = lambda kind: ['one'] * {gpus}\n"
        f"class test:\n    is_built_with_cuda = lambda: {gpus > 0}\n"
    )
    for name, code in {**WHOLE, "tensorflow": tensorflow, **modules}.items():
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(code + "\n")
    (folder / "scipy" / "sparse.py").touch()
    # Nothing of the working directory is taken for a library.
    (folder / "here").mkdir()
    (folder / "here" / "httptools.py").write_text("raise ImportError('not this one')\n")
    paths = os.pathsep.join(map(str, (folder, ROOT)))
    words = [sys.executable, "-m", "pipelines", "doctor"]
    # Other tests import the service, which sets one of these.
    others = {name: value for name, value in os.environ.items() if name not in doctor.THREADS}
    environ = {**others, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, env=environ, check=False, cwd=folder / "here")
    assert done.stderr == ""
    return done.returncode, {line.split()[0]: line.partition(" ")[2].strip() for line in done.stdout.splitlines()}


def test_it_looks_at_everything_that_the_project_needs() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    needed = {re.split(r"[<>=;]", each)[0] for each in settings["project"]["dependencies"]}
    assert needed == {*doctor.NATIVE, *doctor.OTHERS}


@pytest.mark.long
def test_a_machine_that_has_everything() -> None:
    words = [sys.executable, "-m", "pipelines", "doctor"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    lines = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert {lines[name][-1] for name in doctor.NATIVE} == {"imports"}
    assert lines["tensorflow"][0] == version("tensorflow")
    assert f"uvicorn {version('uvicorn')}" in done.stdout
    assert "GPU" in lines and done.stdout.endswith("everything needed is there\n")


def test_what_does_not_import_is_a_line_and_not_the_end(tmp_path: Path) -> None:
    code, lines = told_by(tmp_path, BROKEN, gpus=2)
    assert code == 1
    assert lines["GPU"] == "2, used by training"
    assert lines["processors"].endswith(" usable, OMP_NUM_THREADS=1")
    assert re.fullmatch(rf"disk +[\d.,]+ GB in {re.escape(str(tmp_path / 'here'))}", lines["free"])
    for name in ("tensorflow", "scipy", "httptools", "uvloop"):
        assert lines[name].split() == [version(name), "imports"]
    told = {name: lines[name].removeprefix(version(name)).strip() for name in BROKEN}
    assert told == {
        "polars": "does not import: ImportError: libgomp.so.1: cannot open shared object file",
        "scann": "does not import: ImportError: undefined symbol: _ZN4absl",
        "orjson": "does not import: the process ends by SIGILL",
        "numpy": "does not import: no reason given",
        "pydantic": "does not import: ImportError: no pydantic_core",
    }
    again = f"install it again: {sys.executable} -m pip install --force-reinstall --no-deps"
    if find_spec("pip") is None:
        again = f"install it again: {UV} --no-deps"
    for name in set(BROKEN) - {"scann"}:
        assert lines[f"{name}:"] == f"{again} {name}=={version(name)}"
    assert lines["scann:"].endswith("; everything else works without it: towers index --kind exact")
    assert "everything" not in lines


def test_scann_on_arm_linux_is_known_not_to_import(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "NATIVE", {"tensorflow": "tensorflow", "scann": "scann"})
    monkeypatch.setattr(doctor, "CODE", {"tensorflow": "print(0, True)", "scann": "raise ImportError"})
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert doctor.run() == ["scann"]
    known = "ScaNN 1.4.2 for ARM Linux installs and does not import"
    exact = "everything else works without it: towers index --kind exact"
    assert capsys.readouterr().out.splitlines()[-1] == f"scann: {known}; {exact}"


def test_what_is_broken_is_installed_again_by_uv_where_there_is_no_pip(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "NATIVE", {"tensorflow": "tensorflow"})
    monkeypatch.setattr(doctor, "CODE", {"tensorflow": "raise ImportError"})
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    assert doctor.run() == ["tensorflow"]
    told = f"tensorflow: install it again: {UV} --no-deps tensorflow=={version('tensorflow')}"
    assert capsys.readouterr().out.splitlines()[-1] == told


def test_scann_core_takes_the_place_of_scann(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = {"tensorflow": "2.20.0", "scann-core": "0.2.1"}

    def installed(name: str) -> str:
        if name not in there:
            raise PackageNotFoundError(name)
        return there[name]

    monkeypatch.setattr(doctor, "version", installed)
    monkeypatch.setattr(doctor, "NATIVE", {"tensorflow": "tensorflow", "scann": "scann"})
    monkeypatch.setattr(doctor, "OTHERS", ())
    monkeypatch.setattr(doctor, "CODE", {"tensorflow": "print(0, True)", "scann": ""})
    assert doctor.run() == []
    assert ["scann-core", "0.2.1", "imports"] in [line.split() for line in capsys.readouterr().out.splitlines()]
    monkeypatch.setattr(doctor, "CODE", {"tensorflow": "print(0, True)", "scann": "raise ImportError('no symbol')"})
    assert doctor.run() == ["scann-core"]
    advice = capsys.readouterr().out.splitlines()[-1]
    assert advice.startswith("scann-core: install it again: ") and "--no-deps scann-core==0.2.1; " in advice
    assert advice.endswith("towers index --kind exact")
    there["scann"] = "1.4.2"
    assert doctor.run() == ["scann"]


def test_an_import_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "TIMEOUT_S", 0.5)
    assert doctor.answer("import time; time.sleep(60)") == ("", "does not import within 0 s")


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "NATIVE", {"tensorflow": "tensorflow"})
    monkeypatch.setattr(doctor, "CODE", {"tensorflow": "print(0, False)"})
    monkeypatch.setattr(doctor, "OTHERS", ("no-such-library", "rich"))
    assert doctor.run() == ["no-such-library"]
    told = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert ["GPU", "none found; this TensorFlow is built for CPU only"] in told
    assert ["no-such-library", "is not installed"] in told and ["others", f"rich {version('rich')}"] in told
    assert told[-1] == ["no-such-library:", "install it, as requirements.lock pins it"]


@pytest.mark.parametrize("error", ["ImportError", "OSError", "RuntimeError"])
def test_an_index_says_so_where_scann_is_installed_and_does_not_import(
    error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scann.py").write_text(f"raise {error}('undefined symbol')\n")
    for name in [name for name in sys.modules if name.partition(".")[0] == "scann"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    told = r"cannot be loaded .*\(undefined symbol\).*for ARM installs and does not import.*towers index --kind exact"
    with pytest.raises(BundleError, match=told):
        ScannIndex.build(np.zeros((4, 2), np.float32))
