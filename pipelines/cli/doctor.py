"""`towers doctor`: shows on one screen what this machine has, what is missing or broken, and what to do about it."""

import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

# Distributions with native code or built on TensorFlow's, and their modules to import. A crash there ends a process.
NATIVE = {
    "tensorflow": "tensorflow",
    "tensorflow-recommenders": "tensorflow_recommenders",
    "tf-keras": "tf_keras",
    "scann": "scann",
    "numpy": "numpy",
    "scikit-learn": "sklearn.manifold",
    "scipy": "scipy.sparse",
    "polars": "polars",
    "pydantic": "pydantic",
    "pydantic-core": "pydantic_core",
    "orjson": "orjson",
    "matplotlib": "matplotlib",
    "httptools": "httptools",
    "uvloop": "uvloop",
}
NEEDED = [re.split(r"[<>=;]", each)[0] for each in requires("towers-recall") or () if "extra ==" not in each]
OTHERS = sorted(set(NEEDED) - set(NATIVE))  # pure Python
REPLACEMENTS = {"scann": "scann-core"}  # distributions with the same modules
PLATFORMS = {"scann": ("linux",), "uvloop": ("linux", "darwin")}  # not published for others
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
TIMEOUT_S = 180.0
# The code that a new Python runs for each; TensorFlow also prints how many GPUs it sees and whether it could use one.
GPUS = "import tensorflow as tf; print(len(tf.config.list_physical_devices('GPU')), tf.test.is_built_with_cuda())"
CODE = {name: f"import {module}" for name, module in NATIVE.items()} | {"tensorflow": GPUS}
EXACT = "everything else works without it: towers index --kind exact"
ARM_LINUX = "ScaNN 1.4.2 for ARM Linux installs and does not import"


class Library(NamedTuple):
    """A distribution or its replacement: its version, None if neither is installed, and why its import fails, or ""."""

    name: str
    version: str | None
    broken: str


def run() -> list[str]:
    """Prints the screen.

    Returns:
        Names of what is missing or broken; empty if nothing is.
    """
    names = [name for name in NATIVE if sys.platform in PLATFORMS.get(name, (sys.platform,))]
    # Each import in its own process, so that a crash becomes a line here.
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        said = dict(zip(names, pool.map(answer, [CODE[name] for name in names]), strict=True))
    libraries = [Library(_present(name), _version(_present(name)), said[name][1]) for name in names]
    libraries += [Library(name, _version(name), "") for name in OTHERS]
    wrong = [library for library in libraries if library.version is None or library.broken]
    for title, told in [*_machine(), ("GPU", _gpu(*said["tensorflow"])), *_lines(libraries, wrong)]:
        print(f"{title:24}{told}")  # noqa: T201
    advice = [f"{library.name}: {_advice(library)}" for library in wrong]
    print("\n".join(advice) if advice else "everything needed is there")  # noqa: T201
    return [library.name for library in wrong]


def answer(code: str) -> tuple[str, str]:
    """Runs code in a new Python; returns what it prints and why it failed, "" if it did not."""
    # -P: a folder in the working directory with a library's name must not shadow the library.
    words = [sys.executable, "-P", "-c", code]
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return "", f"does not import within {TIMEOUT_S:.0f} s"
    if done.returncode < 0:
        return "", f"does not import: the process ends by {signal.Signals(-done.returncode).name}"
    said = [line for line in done.stderr.splitlines() if line.strip()]
    return done.stdout, f"does not import: {said[-1] if said else 'no reason given'}" if done.returncode else ""


def _machine() -> Iterator[tuple[str, str]]:
    libc = " ".join(platform.libc_ver())
    yield "platform", f"{platform.system()} {platform.release()}, {platform.machine()}{libc and f', {libc}'}"
    yield "Python", f"{platform.python_version()}, {sys.executable}"
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    limits = "".join(f", {name}={os.environ[name]}" for name in THREADS if name in os.environ)
    yield "processors", f"{usable} of {os.cpu_count()} usable{limits}"
    yield "free disk", f"{shutil.disk_usage(Path.cwd()).free / 1e9:,.1f} GB in {Path.cwd()}"


def _gpu(told: str, broken: str) -> str:
    if broken:
        return "unknown: TensorFlow does not import"
    count, with_cuda = told.split()[-2:]
    if int(count):
        return f"{count}, used by training"
    return "none found" if with_cuda == "True" else "none found; this TensorFlow is built for CPU only"


def _lines(libraries: list[Library], wrong: list[Library]) -> Iterator[tuple[str, str]]:
    for library in libraries:
        if library.name not in OTHERS or library in wrong:
            told = "is not installed" if library.version is None else library.broken or "imports"
            yield library.name, f"{library.version or '':10} {told}"
    yield (
        "others",
        ", ".join(f"{each.name} {each.version}" for each in libraries if each.name in OTHERS and each.version),
    )


def _advice(library: Library) -> str:
    if library.version is None:
        advice = "install it, as requirements.lock pins it"
    elif library.name == "scann" and (platform.system(), platform.machine()) == ("Linux", "aarch64"):
        advice = ARM_LINUX
    else:
        python = shlex.quote(sys.executable)
        pip = f"{python} -m pip install --force-reinstall"
        uv = f"uv pip install --python {python} --reinstall"  # an environment that uv made has no pip
        again = pip if find_spec("pip") else uv
        advice = f"install it again: {again} --no-deps {library.name}=={library.version}"
    return f"{advice}; {EXACT}" if library.name in ("scann", REPLACEMENTS["scann"]) else advice


def _present(name: str) -> str:
    other = REPLACEMENTS.get(name, name)
    return other if _version(name) is None and _version(other) is not None else name


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
