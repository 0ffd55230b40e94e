"""Fixtures every test may use: real data where it is at hand, and a quiet TensorFlow."""

import gc
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import towers  # noqa: F401 - asks for Keras 2 before any test imports TensorFlow

# Imports make a million objects that stay: looking through them while they are made takes seconds.
gc.disable()
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# XLA's own passes run as ever; without LLVM's a compilation takes little more than half the time.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")
if "PYTEST_XDIST_WORKER" in os.environ:
    # As many test processes as processors: threads of their own would only wait for each other.
    for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(name, "1")

# Tests assert no times: a machine that is shared stands still for longer than any deadline.
settings.register_profile("towers", deadline=None)
settings.load_profile("towers")

# Threads of libraries, which wait for work until the process ends.
KEPT = ("asyncio", "AnyIO", "fsspec", "gcsfs")
REAL_DATA = Path(os.environ.get("TOWERS_DATA", Path(__file__).parents[2] / "shared" / "data"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first, then those with many tests: in the end no process waits for a long file.

    A long test bears the mark `slow`, too, if it takes minutes.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        tests = Counter(item.path for item in items)
        items.sort(key=lambda item: (item.path not in slow, -tests[item.path]))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """TensorFlow's million objects stay for good: looking through them again and again is a fifth of the run."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """A thread that spins when its test is over takes half the time of all tests after it."""
    before = set(threading.enumerate())
    yield
    left = [each for each in threading.enumerate() if each not in before and not each.name.startswith(KEPT)]
    for each in left:
        each.join(10)
    assert [each.name for each in left if each.is_alive()] == []


@pytest.fixture(scope="module", autouse=True)
def no_log_settings_are_left() -> Iterator[None]:
    """A server that runs in this process keeps its logs to itself, and no later file would find lines in `caplog`."""
    yield
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.NOTSET)


@pytest.fixture(scope="module", autouse=True)
def no_garbage_is_left() -> Iterator[None]:
    """What a file leaves for good, TensorFlow's graphs above all, no later collection has to look through."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def real_data() -> Callable[[str], Path]:
    """Gives the folder of one real data set, or skips; under CI a missing folder fails instead."""

    def folder(name: str) -> Path:
        path = REAL_DATA / name
        if not path.is_dir():
            reason = f"real data {name!r} is not in {REAL_DATA}; set TOWERS_DATA to the folder that holds it"
            if os.environ.get("CI") == "true":
                pytest.fail(reason)
            pytest.skip(reason)
        return path

    return folder


@pytest.fixture
def frequent_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that are late are found at once."""
    monkeypatch.setattr("serving.protocol.exchange.LOOK_S", 0.02)


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Why requests and connections were turned away, one reason for each."""
    reasons: list[str] = []
    monkeypatch.setattr("serving.telemetry.metrics.refused", reasons.append)
    return reasons
