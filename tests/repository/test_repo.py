"""Habits of the repository: nothing undocumented, locks that pin everything, no trace of one machine."""

import ast
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pipelines.cli import app
from tests.support.paths import ROOT

PACKAGES = ("towers", "serving", "pipelines")
LOCKS = ("requirements.lock", "requirements-dev.lock")
SCANN_CORE = "requirements-scann-core.lock"
TEXT = {"", ".py", ".md", ".toml", ".lock", ".yaml", ".yml", ".json", ".sh", ".html", ".txt"}
VERBS = sorted(
    [
        *(command.callback.__name__ for command in app.app.registered_commands if command.callback),
        *(str(group.name) for group in app.app.registered_groups),
    ]
)


def project_files() -> list[Path]:
    """Every text file of the project itself: no environment, no cache, no output."""
    folders = (*PACKAGES, "tests", "tools", "docs", "benchmarks", ".ci")
    inside = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    return [
        path
        for path in [*ROOT.iterdir(), *inside]
        if path.is_file()
        and path.suffix in TEXT
        and not {"__pycache__", ".git"} & set(path.parts)  # .git: a worktree's
    ]


def tracked() -> list[Path]:
    """Every file that git tracks or would track, relative to the root."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"git does not know this tree: {done.stderr.strip()}")
    return [path for path in map(Path, filter(None, done.stdout.split("\0"))) if (ROOT / path).exists()]


def pins(lock: str) -> dict[str, tuple[str, list[str]]]:
    """Name to version and hashes."""
    joined = (ROOT / lock).read_text(encoding="utf-8").replace("\\\n", " ")
    found = {}
    for line in joined.splitlines():
        if line.strip() and not line.startswith("#"):
            name, version = re.match(r"([\w.\[\]-]+)==([^\s;]+)", line).groups()  # type: ignore[union-attr]
            found[name] = (version, re.findall(r"--hash=sha256:([0-9a-f]{64})\b", line))
    return found


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_in_the_readme(verb: str) -> None:
    assert re.search(rf"\btowers {verb}\b", (ROOT / "README.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("goal", ["demo", "test"])
def test_the_readme_names_the_two_commands(goal: str) -> None:
    assert f"make {goal}" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(rf"^{goal}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


def test_continuous_integration_runs_the_readmes_test_command() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert "make test" in script.read_text(encoding="utf-8")


@pytest.mark.parametrize(("lock", "least"), [*((lock, 41) for lock in LOCKS), (SCANN_CORE, 3)])
def test_a_lock_pins_every_package_by_hash_and_names_no_registry(lock: str, least: int) -> None:
    text = (ROOT / lock).read_text(encoding="utf-8")
    assert "://" not in text
    assert not re.search(r"^\s*-(?!-hash)", text, re.MULTILINE)
    packages = pins(lock)
    assert len(packages) >= least
    assert [name for name, (_, hashes) in packages.items() if not hashes] == []


def test_the_dev_lock_holds_the_runtime_lock() -> None:
    runtime, dev = (pins(lock) for lock in LOCKS)
    differing = {name: (pin, dev.get(name)) for name, pin in runtime.items() if dev.get(name) != pin}
    assert differing == {}


def test_scann_core_needs_nothing_that_the_dev_lock_does_not_hold() -> None:
    core, dev = pins(SCANN_CORE), pins(LOCKS[1])
    assert set(core) - set(dev) == {"scann-core"} and "scann" in dev
    assert {name: pin for name, pin in core.items() if name in dev and dev[name] != pin} == {}


@pytest.mark.parametrize("name", ["Makefile", "Dockerfile", "pyproject.toml", *LOCKS, SCANN_CORE])
def test_no_file_of_the_set_up_names_a_registry(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert not re.search(r"(?<!no-emit-)index-url|find-links|--index\b|\bpypi\.", text)


def test_no_file_holds_the_path_of_one_machine() -> None:
    one_machine = re.compile(r"(?<![\w.}])/(?:work|root|farm|home/\w+|Users/\w+|tmp/\w+)/")
    files = project_files()
    assert len(files) > 40
    found = [
        f"{path.relative_to(ROOT)}: {match.group(0)}"
        for path in files
        if (match := one_machine.search(path.read_text(encoding="utf-8")))
    ]
    assert found == []


def test_no_text_file_is_in_the_machines_encoding() -> None:
    sources = {
        path: path.read_text(encoding="utf-8") for package in PACKAGES for path in (ROOT / package).rglob("*.py")
    }
    calls = [
        (f"{path.relative_to(ROOT)}:{call.lineno}", {each.arg for each in call.keywords})
        for path, text in sources.items()
        if "_text(" in text
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") in ("read_text", "write_text")
    ]
    assert len(calls) > 20
    assert [place for place, arguments in calls if "encoding" not in arguments] == []


def test_no_source_file_outgrows_one_job() -> None:
    sources = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert len(sources) > 20
    lengths = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8").count("\n") for path in sources}
    assert {name: lines for name, lines in lengths.items() if lines > 250} == {}


def test_no_package_imports_an_engine_of_clusters_and_no_lock_holds_one() -> None:
    engines = re.compile(r"^\s*(?:import|from) (?:ray|pyspark)\b", re.MULTILINE)
    sources = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert [str(path) for path in sources if engines.search(path.read_text(encoding="utf-8"))] == []
    assert [name for lock in LOCKS for name in pins(lock) if name.split("[")[0] in ("ray", "pyspark")] == []


def test_no_folder_holds_more_than_a_newcomer_can_survey() -> None:
    entries: dict[Path, set[str]] = {}
    for inside in tracked():
        # The bundle of golden/ has the entries of its format; the root has those that tools look for.
        if "golden" not in inside.parts:
            for folder in inside.parents[:-1]:
                entries.setdefault(folder, set()).add(inside.relative_to(folder).parts[0])
    assert len(entries) > 20
    assert "py.typed" in entries[Path("serving")], "every kind of entry counts"
    assert {str(folder): len(names) for folder, names in entries.items() if len(names) > 16} == {}


def test_the_license_is_apache_2() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert 'license = "Apache-2.0"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def path_with(folder: Path, **programs: str) -> dict[str, str]:
    """An environment in which these shell programs come before all others."""
    for name, text in programs.items():
        program = folder / name.replace("_", "-")
        program.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        program.chmod(0o755)
    own = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    return own | {"PATH": f"{folder}:{os.environ['PATH']}"}


@pytest.mark.parametrize(
    ("getconf", "runs"),
    [("echo glibc 2.36", True), ("echo glibc 2.34", True), ("echo glibc 2.31", False), ("exit 1", False)],
)
def test_scann_core_is_left_out_where_glibc_is_older_and_refused_by_itself(
    tmp_path: Path, getconf: str, runs: bool
) -> None:
    words = ["make", "--no-print-directory", f"CORE={tmp_path}/none", "-o", f"{tmp_path}/none/.installed"]
    words += ["-o", ".venv/.dev", "PYTEST=echo tests"]
    words += ["-n"] if runs else []  # what it would run

    def said(goal: str) -> tuple[int, list[str], list[str]]:
        environment = path_with(tmp_path, getconf=getconf)
        done = subprocess.run([*words, goal], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout.splitlines(), done.stderr.splitlines()

    if runs:
        for goal in ("long", "scann-core"):
            code, lines, _ = said(goal)
            assert code == 0 and re.match(rf"{tmp_path}/none/bin/python -m pytest ", lines[-1])
    else:
        assert said("long") == (
            0,
            [
                "echo tests -m long",
                "tests -m long",
                "left out: scann-core needs glibc 2.34 or later (getconf GNU_LIBC_VERSION)",
            ],
            [],
        )
        code, lines, errors = said("scann-core")
        assert (code, lines) == (2, [])
        assert errors[0] == "error: scann-core needs glibc 2.34 or later (getconf GNU_LIBC_VERSION)"
        assert len(errors) == 2  # make's own comes after it
    assert not (tmp_path / "none").exists()


def test_one_package_that_is_unknown_keeps_no_other_away(tmp_path: Path) -> None:
    """.ci/run with programs that only write down what they are asked for."""
    script = tmp_path / ".ci" / "run"
    script.parent.mkdir()
    programs = tmp_path / "programs"
    programs.mkdir()
    # Without one of these programs on PATH each package is missing.
    asked = tmp_path / "asked"
    refuse = 'case "$*" in *chromium*) exit 100 ;; esac'
    environment = path_with(
        programs, apt_get=f'{refuse}\necho "$*" >>{asked}', id="echo 0", make=f'echo "make $*" >>{asked}'
    )
    for name in ("bash", "dirname"):
        (programs / name).symlink_to(str(shutil.which(name)))
    script.write_text((ROOT / ".ci" / "run").read_text(encoding="utf-8"), encoding="utf-8")
    done = subprocess.run(
        [str(shutil.which("bash")), str(script)],
        env=environment | {"PATH": str(programs)},
        capture_output=True,
        text=True,
    )
    lines = asked.read_text(encoding="utf-8").splitlines()
    assert done.returncode == 0, done.stderr
    installed = [line.split()[-1] for line in lines if line.startswith("install")]
    assert installed == ["nginx-light", "default-jdk-headless", "prometheus", "postgresql"]
    assert lines[-2:] == ["make test", "make long"]
    assert "could not be installed: chromium" in done.stderr
