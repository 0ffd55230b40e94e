"""Which bundle answers whom: exchanged whole, refused with the reason, sticky for each user, and given back."""

import gc
import hashlib
import json
import shutil
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from serving.bundle.versions import Versions
from serving.errors import BundleError
from serving.service import active_bundles
from serving.service.active_bundles import ActiveBundles
from tests.support.worlds.serving import write_world


class Model:
    """In a cycle with itself, as a SavedModel is."""

    def __init__(self) -> None:
        self.itself = self


class Opened:
    """What a bundle opens as."""

    def __init__(self, path: Path) -> None:
        self.name, self.model = path.name, Model()


class Opener:
    """Opens whatever holds no file `bad`, and counts."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.models: list[weakref.ref[Model]] = []
        self.error: Callable[[Path], Exception] = lambda path: BundleError(f"{path}: bad")
        self.meanwhile: dict[str, Callable[[], object]] = {}  # what an operator does while a bundle opens

    def __call__(self, path: Path) -> Opened:
        self.calls.append(path.name)
        if path.name in self.meanwhile:
            self.meanwhile.pop(path.name)()
        if (path / "bad").exists() or not path.exists():
            raise self.error(path)
        opened = Opened(path)
        self.models.append(weakref.ref(opened.model))
        return opened


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    write_world(folder / "bundle")
    return folder / "bundle" / "manifest.json"


@pytest.fixture
def versions(tmp_path: Path, manifest: Path) -> Versions:
    for name in ("a", "b", "c"):
        (tmp_path / "root" / name).mkdir(parents=True)
        shutil.copy(manifest, tmp_path / "root" / name)
    versions = Versions(tmp_path / "root")
    versions.activate("a")
    return versions


@pytest.fixture
def opener() -> Opener:
    return Opener()


@pytest.fixture
def running(versions: Versions, opener: Opener) -> ActiveBundles[Opened]:
    running = ActiveBundles(versions.root, opener)
    running.open_first()
    return running


def rewrite(path: Path) -> None:
    """The same content, written anew."""
    path.with_name("new").write_bytes(path.read_bytes())
    path.with_name("new").replace(path)


def test_what_is_activated_answers_after_the_next_check(
    versions: Versions, running: ActiveBundles[Opened], opener: Opener
) -> None:
    assert (running.active.name, running.pick("u").opened.name) == ("a", "a")
    assert running.check() is None
    versions.activate("b")
    assert running.pick("u").name == "a"
    assert running.check() == "b answers now, in place of a"
    assert (running.pick("u").name, running.pick(None).name, running.active.opened.name) == ("b", "b", "b")
    versions.rollback()
    running.check()
    assert running.active.name == "a"
    assert opener.calls == ["a", "b", "a"] and running.refused == {}


@pytest.mark.parametrize("error", [BundleError("b: bad"), ZeroDivisionError("bad"), PermissionError(13, "bad")])
def test_a_bad_bundle_is_refused_once_and_the_old_one_goes_on(
    versions: Versions, running: ActiveBundles[Opened], opener: Opener, error: Exception
) -> None:
    old = running.active
    (versions.root / "b" / "bad").touch()
    opener.error = lambda path: error
    versions.activate("b")
    told = running.check()
    assert told is not None and told.startswith("refused: ") and "bad" in told and "\n" not in told
    assert running.active is old and list(running.refused) == ["b"] and "bad" in running.refused["b"].reason
    for _ in range(3):
        assert running.check() is None
    assert opener.calls == ["a", "b"]


@pytest.mark.parametrize("what", ["active.json", "b/manifest.json"])
def test_a_refused_bundle_is_tried_again_when_it_or_active_json_is_written_anew(
    versions: Versions, running: ActiveBundles[Opened], opener: Opener, what: str
) -> None:
    (versions.root / "b" / "bad").touch()
    versions.activate("b")
    running.check()
    rewrite(versions.root / what)
    told = running.check()
    assert told is not None and told.startswith("refused: ")
    (versions.root / "b" / "bad").unlink()
    assert running.check() is None
    rewrite(versions.root / what)
    assert running.check() == "b answers now, in place of a"
    assert opener.calls == ["a", "b", "b", "b"] and running.refused == {}


@pytest.mark.parametrize("single", [False, True])
def test_a_reload_tries_a_refused_bundle_again_and_tells_it_again(
    versions: Versions, opener: Opener, single: bool
) -> None:
    running = ActiveBundles(versions.root / "a" if single else versions.root, opener)
    running.open_first()
    name = "a" if single else "b"
    (versions.root / name / "bad").touch()
    if single:
        rewrite(versions.root / "a" / "manifest.json")
    else:
        versions.activate("b")
    told = f"refused: {versions.root}/{name}: bad"
    assert [running.check(), running.check(), running.check(again=True), running.check()] == [told, None, told, None]
    (versions.root / name / "bad").unlink()
    assert running.check() is None and list(running.refused) == [name]
    before_it = "the earlier bundle of that name" if single else "a"
    assert running.check(again=True) == f"{name} answers now, in place of {before_it}"
    assert running.check(again=True) is None
    assert opener.calls == ["a", name, name, name] and running.refused == {}


def test_a_bundle_that_is_rolled_back_while_it_opens_never_answers_and_is_freed(
    versions: Versions, running: ActiveBundles[Opened], opener: Opener
) -> None:
    old = running.active
    opener.meanwhile["b"] = versions.rollback
    versions.activate("b")
    gc.disable()  # Only the collection of the check may find the cycle.
    try:
        assert running.check() is None
        assert running.active is old and running.refused == {} and opener.calls == ["a", "b"]
        assert [model() is None for model in opener.models] == [False, True]
    finally:
        gc.enable()
    assert running.check() is None and opener.calls == ["a", "b"]


def test_a_canary_that_is_taken_back_while_it_opens_gets_no_users(
    versions: Versions, running: ActiveBundles[Opened], opener: Opener
) -> None:
    opener.meanwhile["b"] = versions.clear_canary
    versions.set_canary("b", 1.0)
    assert running.check() is None and running.canary is None
    opener.meanwhile["b"] = lambda: versions.set_canary("c", 0.5)
    versions.set_canary("b", 1.0)
    assert running.check() is None and running.canary is None
    assert running.check() == "canary c for 50.00% of the users"
    answering = running.canary
    opener.meanwhile["b"] = lambda: versions.set_canary("c", 0.5)
    versions.set_canary("b", 1.0)
    assert running.check() is None and running.canary is answering
    assert opener.calls == ["a", "b", "b", "c", "b"]


def test_what_is_still_wanted_answers_although_other_things_change_while_it_opens(
    versions: Versions, running: ActiveBundles[Opened], opener: Opener
) -> None:
    opener.meanwhile["b"] = lambda: versions.set_canary("b", 0.25)
    versions.set_canary("b", 0.5)
    assert running.check() == "canary b for 25.00% of the users"
    opener.meanwhile["c"] = versions.clear_canary
    versions.activate("c")
    versions.set_canary("b", 0.5)
    assert running.check() == "c answers now, in place of a; no canary"
    opener.meanwhile["b"] = lambda: versions.file.write_text("{")  # read again by the next check
    versions.activate("b")
    assert running.check() == "b answers now, in place of c"
    assert "damaged" in str(running.check()) and running.active.name == "b"
    assert opener.calls == ["a", "b", "c", "b"]


def test_a_bundle_written_anew_while_it_opens_is_opened_anew_before_it_answers(
    versions: Versions, running: ActiveBundles[Opened], opener: Opener
) -> None:
    opener.meanwhile["b"] = lambda: rewrite(versions.root / "b" / "manifest.json")
    versions.activate("b")
    assert running.check() is None and running.active.name == "a"
    assert running.check() == "b answers now, in place of a"
    assert opener.calls == ["a", "b", "b"]


def test_a_check_ends_although_another_bundle_is_activated_each_time(
    versions: Versions, running: ActiveBundles[Opened], opener: Opener
) -> None:
    versions.activate("b")
    for name, other in (("b", "c"), ("c", "b"), ("b", "c")):
        opener.meanwhile[name] = lambda other=other: versions.activate(other)  # type: ignore[misc]
        assert running.check() is None and running.active.name == "a"
    assert running.check() == "c answers now, in place of a"
    assert opener.calls == ["a", "b", "c", "b", "c"]


def test_a_bundle_that_is_rolled_back_while_the_service_starts_never_answers(
    versions: Versions, opener: Opener
) -> None:
    opener.meanwhile["b"] = versions.rollback
    versions.activate("b")
    running = ActiveBundles(versions.root, opener)
    assert running.open_first() is None
    assert (running.active.name, running.refused, opener.calls) == ("a", {}, ["b", "a"])


def test_in_short_an_unforeseen_exception_is_only_its_type(
    versions: Versions, running: ActiveBundles[Opened], opener: Opener
) -> None:
    def by_a_library(path: Path) -> Exception:
        error = BundleError(f"{path}: probe failed: KeyError: 'u7'")
        error.__cause__ = KeyError("u7")
        return error

    (versions.root / "b" / "bad").touch()
    path = versions.root / "b"
    for error, short in (
        (lambda path: BundleError(f"{path}: bad"), "bad"),
        (lambda path: ZeroDivisionError("secret: x"), "cannot be opened: ZeroDivisionError"),
        (by_a_library, "probe failed: KeyError"),
    ):
        opener.error = error
        versions.activate("b")
        running.check()
        assert running.refused["b"].short == f"{path}: {short}"
        assert running.refused["b"].reason.startswith(f"{path}: {short}")


@pytest.mark.parametrize("error", [BundleError, RuntimeError, MemoryError])
def test_of_a_bundle_that_was_refused_nothing_stays_in_memory(
    versions: Versions, running: ActiveBundles[Opened], opener: Opener, error: type[Exception]
) -> None:
    refused: list[weakref.ref[Opened]] = []

    def fail(path: Path) -> Exception:
        opened = Opened(path)
        opened.model.itself = opened  # type: ignore[assignment]
        refused.append(weakref.ref(opened))
        return error(opened.name)

    opener.error = fail
    (versions.root / "b" / "bad").touch()
    gc.disable()
    try:
        for _ in range(3):
            versions.activate("b")
            running.check()
            versions.activate("a")
            running.check()
        assert len(refused) == 3 and not any(each() for each in refused)
    finally:
        gc.enable()


def test_naming_a_mended_bundle_again_is_enough(versions: Versions, running: ActiveBundles[Opened]) -> None:
    (versions.root / "b" / "bad").touch()
    versions.activate("b")
    running.check()
    (versions.root / "b" / "bad").unlink()
    versions.activate("b")
    running.check()
    assert running.active.name == "b"


def test_a_bundle_no_longer_wanted_is_no_longer_refused(versions: Versions, running: ActiveBundles[Opened]) -> None:
    (versions.root / "b" / "bad").touch()
    versions.activate("b")
    running.check()
    versions.rollback()
    assert running.check() is None
    assert running.refused == {} and running.active.name == "a"


def test_the_same_name_written_anew_is_opened_anew(versions: Versions, running: ActiveBundles[Opened]) -> None:
    old = running.active
    rewrite(versions.root / "a" / "manifest.json")
    assert running.check() == "a answers now, in place of the earlier bundle of that name"
    assert running.active is not old
    shutil.rmtree(versions.root / "a")
    running.check()
    assert running.active.name == "a" and list(running.refused) == ["a"]


@pytest.mark.parametrize("content", ["", '{"active": "b', '{"active": "../b"}', "[]", '{"active": "a", "canary": 1}'])
def test_a_damaged_active_json_changes_nothing(
    versions: Versions, running: ActiveBundles[Opened], opener: Opener, content: str
) -> None:
    whole = versions.file.read_text()
    versions.file.write_text(content)
    assert "damaged" in str(running.check()) and running.check() is None
    assert running.active.name == "a" and list(running.refused) == ["active.json"]
    versions.file.unlink()
    assert "none of its bundles is active" in str(running.check())
    versions.file.write_text(whole)
    assert running.check() is None
    assert running.refused == {} and opener.calls == ["a"]


def test_a_link_by_hand_is_refused(versions: Versions, running: ActiveBundles[Opened], tmp_path: Path) -> None:
    (versions.root / "b").rename(tmp_path / "elsewhere")
    (versions.root / "b").symlink_to(tmp_path / "elsewhere")
    versions.file.write_text(json.dumps({"active": "b"}))
    assert "b: a link" in str(running.check())
    assert running.active.name == "a"


@pytest.mark.parametrize("role", ["active", "canary"])
def test_a_link_by_hand_blocks_no_start(versions: Versions, opener: Opener, tmp_path: Path, role: str) -> None:
    (versions.root / "b").rename(tmp_path / "elsewhere")
    (versions.root / "b").symlink_to(tmp_path / "elsewhere")
    linked = {"active": "b", "previous": ["a"]}
    canary = {"active": "a", "canary": {"bundle": "b", "share": 1.0}}
    versions.file.write_text(json.dumps(linked if role == "active" else canary))
    assert versions.plain() == (versions.root / "a",)
    running = ActiveBundles(versions.root, opener)
    told = f"refused: {versions.root}/b: a link; the bundles of a root are plain directories; a answers"
    assert running.open_first() == told
    assert (running.pick("u").name, list(running.refused), opener.calls) == ("a", ["b"], ["a"])


def test_a_root_of_links_alone_does_not_start(versions: Versions, opener: Opener, tmp_path: Path) -> None:
    (versions.root / "a").rename(tmp_path / "elsewhere")
    (versions.root / "a").symlink_to(tmp_path / "elsewhere")
    for start in (versions.plain, ActiveBundles(versions.root, opener).open_first):
        with pytest.raises(BundleError, match="a: a link"):
            start()


def test_a_service_does_not_start_without_its_bundle(versions: Versions, opener: Opener) -> None:
    (versions.root / "a" / "bad").touch()
    running = ActiveBundles(versions.root, opener)
    with pytest.raises(BundleError, match="a: bad"):
        running.open_first()
    assert running.answering == {}
    (versions.root / "a" / "bad").unlink()
    versions.set_canary("b", 1.0)
    (versions.root / "b" / "bad").touch()
    running = ActiveBundles(versions.root, opener)
    running.open_first()
    assert running.pick("u").name == "a" and list(running.refused) == ["b"]
    shutil.rmtree(versions.root)
    with pytest.raises(BundleError, match="no such directory"):
        ActiveBundles(versions.root, opener).open_first()


def test_a_start_falls_back_to_the_newest_bundle_before_that_opens(versions: Versions, opener: Opener) -> None:
    for name in ("b", "c"):
        versions.activate(name)
        (versions.root / name / "bad").touch()
    running = ActiveBundles(versions.root, opener)
    assert running.open_first() == f"refused: {versions.root}/c: bad; refused: {versions.root}/b: bad; a answers"
    assert (running.active.name, list(running.refused), opener.calls) == ("a", ["c"], ["c", "b", "a"])
    assert running.check() is None
    (versions.root / "c" / "bad").unlink()
    versions.activate("c")
    assert running.check() == "c answers now, in place of a" and running.refused == {}


def test_a_start_follows_no_link_to_an_earlier_bundle(versions: Versions, opener: Opener, tmp_path: Path) -> None:
    versions.activate("b")
    (versions.root / "b" / "bad").touch()
    (versions.root / "a").rename(tmp_path / "elsewhere")
    (versions.root / "a").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BundleError, match="b: bad"):
        ActiveBundles(versions.root, opener).open_first()
    assert opener.calls == ["b"]


def test_a_single_bundle_is_opened_and_opened_anew_when_it_is_replaced(versions: Versions, opener: Opener) -> None:
    bundle = versions.root / "c"
    running = ActiveBundles(bundle, opener)
    running.open_first()
    assert running.active.name == "c" and running.check() is None
    versions.activate("b")
    assert running.check() is None
    bundle.rename(versions.root / "aside")  # As between the two renames of an export with --overwrite.
    assert str(running.check()).startswith("refused: ")
    (versions.root / "aside").rename(bundle)
    running.check()
    rewrite(bundle / "manifest.json")
    assert running.check() == "c answers now, in place of the earlier bundle of that name"
    assert running.refused == {}


def share_of(running: ActiveBundles[Opened], users: list[str]) -> set[str]:
    return {user for user in users if running.pick(user).name != running.active.name}


USERS = [f"user {number} é" for number in range(5_000)]


def test_a_canary_answers_its_share_and_each_user_always_the_same(
    versions: Versions, running: ActiveBundles[Opened], opener: Opener
) -> None:
    versions.set_canary("b", 0.05)
    assert running.check() == "canary b for 5.00% of the users"
    small = share_of(running, USERS)
    # Binomial: 250 expected, with a standard deviation of 15.
    assert 175 < len(small) < 325
    # The definition, written once more: a user's place is a hash of bundle and user as a number in [0, 1).
    expected = {
        user
        for user in USERS
        if int(hashlib.blake2b(f"b\0{user}".encode(), digest_size=8).hexdigest(), 16) / 2**64 < 0.05
    }
    assert small == expected
    again = ActiveBundles(versions.root, opener)
    again.open_first()
    assert share_of(again, USERS) == small
    versions.set_canary("b", 0.2)
    running.check()
    assert small < share_of(running, USERS)
    versions.set_canary("c", 0.05)
    assert running.check() == "canary c for 5.00% of the users"
    # Another canary, other users: 12 or 13 expected in both.
    assert 0 < len(share_of(running, USERS) & small) < 35
    versions.set_canary("c", 1.0)
    running.check()
    assert len(share_of(running, USERS)) == len(USERS) and running.pick("\ud800").name == "c"
    assert {running.pick(user).name for user in (None, "")} == {"a"}
    versions.clear_canary()
    assert running.check() == "no canary"
    assert share_of(running, USERS) == set() and running.canary is None


def test_a_canary_that_becomes_active_is_not_opened_twice(
    versions: Versions, running: ActiveBundles[Opened], opener: Opener
) -> None:
    versions.set_canary("b", 0.5)
    running.check()
    canary = running.canary
    versions.activate("b")
    assert running.check() == "b answers now, in place of a; no canary"
    assert running.active is canary and opener.calls == ["a", "b"]


def test_a_bad_canary_gets_no_users(versions: Versions, running: ActiveBundles[Opened]) -> None:
    versions.set_canary("b", 1.0)
    running.check()
    (versions.root / "c" / "bad").touch()
    versions.set_canary("c", 1.0)
    running.check()
    assert share_of(running, USERS[:100]) == set() and list(running.refused) == ["c"]


def test_what_no_request_uses_is_given_back(
    versions: Versions, running: ActiveBundles[Opened], monkeypatch: pytest.MonkeyPatch
) -> None:
    trimmed: list[bool] = []
    gc.disable()  # Only the collection that is under test may find the cycle.
    try:
        picked = running.pick("u").opened  # What a request keeps.
        model = weakref.ref(picked.model)
        monkeypatch.setattr(active_bundles, "_trim", lambda: trimmed.append(model() is None))
        versions.activate("b")
        running.check()
        running.check()
        assert model() is not None and trimmed == []
        del picked
        assert running.check() is None
        assert model() is None and trimmed == [True]
        running.check()
        assert trimmed == [True]
    finally:
        gc.enable()


def test_answers_never_stop_while_bundles_change_and_one_thread_checks_at_a_time(
    versions: Versions, manifest: Path
) -> None:
    inside, most = 0, 0
    end = threading.Event()
    failures: list[BaseException] = []

    def slow(path: Path) -> Opened:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        end.wait(0.002)
        inside -= 1
        return Opened(path)

    running = ActiveBundles(versions.root, slow)
    running.open_first()

    def repeat(act: Callable[[], object]) -> None:
        try:
            while not end.is_set():
                act()
        except BaseException as error:  # noqa: BLE001 - shown by the assertion below
            failures.append(error)

    def ask() -> None:
        picked = running.pick("u")
        assert picked.name == picked.opened.name
        assert running.refused == {}
        end.wait(0.0001)

    acts = [running.check, running.check, ask, ask]
    threads = [threading.Thread(target=repeat, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for number in range(9):
        versions.activate("abc"[number % 3])
        if number % 4 == 0:
            versions.set_canary("bca"[number % 3], 0.5)
    end.set()
    for thread in threads:
        thread.join()
    assert failures == [] and most == 1
    running.check()
    assert running.active.name == versions.read().active
