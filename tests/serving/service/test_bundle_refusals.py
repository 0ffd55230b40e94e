"""Faults of the machine that pass: told as what they are, and tried again by themselves, after pauses that grow."""

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from serving import background
from serving.bundle import arrays
from serving.bundle.reader import Bundle
from serving.bundle.versions import Versions
from serving.errors import BundleError
from serving.service.active_bundles import ActiveBundles
from serving.service.bundle_refusals import passes
from tests.support.worlds.serving import write_world


class Clock:
    """Seconds that pass only in a test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Opener:
    """Opens every bundle, but `b` only without an `error`; counts."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.error: Callable[[], Exception] | None = None

    def __call__(self, path: Path) -> Bundle:
        self.calls.append(path.name)
        if path.name == "b" and self.error is not None:
            raise self.error()
        return Bundle.open(path)


@contextmanager
def no_free_handles() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def told(error: Exception, first: Exception) -> Exception:
    """As raised `from None` while `first` was handled."""
    try:
        try:
            raise first
        except type(first):
            raise error from None
    except type(error) as raised:
        return raised


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(background, "time", clock)
    return clock


@pytest.fixture
def opener() -> Opener:
    return Opener()


@pytest.fixture
def versions(tmp_path: Path) -> Versions:
    for name in ("a", "b"):
        write_world(tmp_path / "root" / name)
    versions = Versions(tmp_path / "root")
    versions.activate("a")
    return versions


@pytest.fixture
def running(versions: Versions, opener: Opener) -> ActiveBundles[Bundle]:
    running = ActiveBundles(versions.root, opener)
    running.open_first()
    versions.activate("b")
    return running


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EMFILE, os.strerror(errno.EMFILE), "b"),
        OSError(errno.ENFILE, os.strerror(errno.ENFILE), "b"),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), "b"),
        OSError(errno.EIO, os.strerror(errno.EIO), "b"),
        OSError("Too many open files (os error 24): b"),  # of Polars, without a number
        MemoryError(),
        told(BundleError("b: no room"), MemoryError()),
        BundleError("b: TensorFlow cannot load it: saved_model.pb; Too many open files"),
    ],
    ids=repr,
)
def test_a_passing_fault_is_told_once_and_tried_again_after_a_pause(
    running: ActiveBundles[Bundle], opener: Opener, clock: Clock, error: Exception
) -> None:
    opener.error = lambda: error
    first = running.check()
    assert first is not None and first.startswith("refused: ")
    clock.now += 0.9
    assert running.check() is None and opener.calls == ["a", "b"]
    clock.now += 0.2
    assert running.check() is None and opener.calls == ["a", "b", "b"] and list(running.refused) == ["b"]
    opener.error = None
    clock.now += 3.1
    assert running.check() == "b answers now, in place of a" and running.refused == {}


def test_the_pauses_grow_to_a_minute_and_begin_anew_after_a_success(
    versions: Versions, running: ActiveBundles[Bundle], opener: Opener, clock: Clock
) -> None:
    def pauses(count: int) -> list[float]:
        found = []
        for _ in range(count):
            begun, tries = clock.now, len(opener.calls)
            while len(opener.calls) == tries and clock.now < begun + 100:
                clock.now += 0.5
                running.check()
            found.append(clock.now - begun)
        return found

    opener.error = lambda: MemoryError()
    running.check()
    assert pauses(8) == [1, 3, 7, 15, 31, 60, 60, 60]
    opener.error = None
    running.check(again=True)
    versions.activate("a")
    running.check()
    versions.activate("b")
    opener.error = lambda: MemoryError()
    running.check()
    assert pauses(2) == [1, 3]


def test_a_damaged_bundle_is_not_tried_again_by_itself_even_after_a_fault_that_passed(
    running: ActiveBundles[Bundle], opener: Opener, clock: Clock
) -> None:
    opener.error = lambda: OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    running.check()
    clock.now += 1
    opener.error = lambda: BundleError("b: altered")
    assert running.check() == "refused: b: altered"
    for _ in range(3):
        clock.now += 3600
        assert running.check() is None
    assert opener.calls == ["a", "b", "b"]


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES, errno.EISDIR, errno.ELOOP])
def test_a_fault_of_the_bundle_does_not_pass(number: int) -> None:
    assert not passes(OSError(number, os.strerror(number)))
    assert not passes(told(BundleError("b: missing"), OSError(number, os.strerror(number))))


def test_python_s_own_word_for_no_thread_passes_and_an_error_that_caused_itself_ends() -> None:
    assert passes(RuntimeError("can't start new thread"))
    error = ValueError("b: bad")
    error.__cause__ = error
    assert not passes(error)


def test_an_unreadable_active_json_ends_no_pause(versions: Versions, clock: Clock) -> None:
    opener = Opener()
    running = ActiveBundles(versions.root, opener)
    running.open_first()
    opener.error = MemoryError
    versions.activate("b")
    content = (versions.root / "active.json").read_bytes()
    told = []
    for look in range(6):
        (versions.root / "active.json").write_bytes(b"{" if look % 2 else content)
        told.append(running.check())
    assert opener.calls.count("b") == 1 + 2  # whatever is written anew is tried once


def test_without_a_free_file_handle_no_file_of_a_bundle_is_called_damaged(tmp_path: Path) -> None:
    write_world(tmp_path / "bundle")
    path = tmp_path / "bundle" / arrays.POPULARITY
    with no_free_handles(), pytest.raises(BundleError) as refused:
        arrays.open_array(path.parent, path.name, np.int64, (None,))
    assert str(refused.value) == f"{path}: cannot be read: Too many open files" and passes(refused.value)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(BundleError) as refused:
        arrays.open_array(path.parent, path.name, np.int64, (None,))
    assert str(refused.value) == f"{path}: truncated or altered: mmap length is greater than file size"
    assert not passes(refused.value)


def test_a_bundle_that_meets_no_free_file_handle_answers_when_there_are_some(versions: Versions, clock: Clock) -> None:
    running = ActiveBundles(versions.root, without_handles_at_first)
    running.open_first()
    versions.activate("b")
    assert running.check() == f"refused: {versions.root}/b/manifest.json: cannot be read: Too many open files"
    clock.now += 1
    assert running.check() == "b answers now, in place of a"


tried: list[Path] = []


def without_handles_at_first(path: Path) -> Bundle:
    tried.append(path)
    if path.name == "b" and tried.count(path) == 1:
        with no_free_handles():
            return Bundle.open(path)
    return Bundle.open(path)
