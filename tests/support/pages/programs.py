"""Programs of the pages, which tests run with paths and sizes of their own."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from types import MappingProxyType

import pytest

from tests.support.paths import ROOT

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Two processors whatever the machine has, and no page of its own.
LOCAL_RAY = "import ray as local\nlocal.init(num_cpus=2, include_dashboard=False, object_store_memory=10**8)\n"


def needs(module: str, install: str) -> pytest.MarkDecorator:
    """Skips where an engine is not installed: none is in the lock of development, nor needed on one machine."""
    missing = importlib.util.find_spec(module) is None
    return pytest.mark.skipif(missing, reason=f"{module} is not installed: {install}")


def program(page: str, word: str, changes: Mapping[str, str] = MappingProxyType({})) -> str:
    """The program of a page that holds a word, with each key of `changes` replaced, which must be there.

    tests/repository/test_commands.py reads the calls, so page and word are written out.
    """
    (text,) = (text for text in BLOCK.findall((ROOT / page).read_text(encoding="utf-8")) if word in text)
    for old, new in changes.items():
        assert old in text, f"{page}: the program has no {old!r}"
        text = text.replace(old, new)
    return text


@contextmanager
def running(text: str, folder: Path, **environment: str) -> Iterator["subprocess.Popen[str]"]:
    """Runs a program in a folder; what it says, on both streams, is in `folder`/said."""
    (folder / "program.py").write_text(text, encoding="utf-8")
    # Ray's sockets lie in `ray`, and the name of a socket must be short.
    with (
        TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as ray,
        (folder / "said").open("w", encoding="utf-8") as said,
    ):
        # With a token of its own, Ray writes none into the home directory.
        settings = {"RAY_TMPDIR": ray, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token_hex(32)}
        settings |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
        process = subprocess.Popen(
            [sys.executable, "program.py"],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)} | settings | environment,
            stdout=said,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def ended(text: str, folder: Path, **environment: str) -> str:
    """Runs a program until it ends; gives what it said."""
    with running(text, folder, **environment) as process:
        code = process.wait(timeout=300)
    said = (folder / "said").read_text(encoding="utf-8")
    assert code == 0, said[-5_000:]
    return said
