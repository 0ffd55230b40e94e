"""Local copies of a store's bundles: whole and verified or not there, nothing read twice, faults told and repaired."""

import fcntl
import json
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import DEFAULT, Mock

import pytest

from serving.bundle.reader import Bundle
from serving.bundle.versions import Versions
from serving.errors import BundleError
from serving.files.staging import remove, sibling
from serving.service import fetch
from serving.service.mirror import LOCK, Mirror
from serving.service.store import Store, StoreError
from serving.settings import Settings
from tests.support.worlds.serving import write_world

URL = "memory://shop/recall"
VECTORS = "item_vectors.npy"


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("worlds")
    for name in ("a", "b", "c"):
        write_world(folder / name, model_version=name)
    return folder


class Shop:
    """The store, as an operator without our commands would fill it."""

    def __init__(self, system: Any, worlds: Path) -> None:
        self.system, self.worlds = system, worlds

    def put(self, name: str, world: str | None = None) -> None:
        folder = self.worlds / (world or name)
        for path in folder.rglob("*"):
            if path.is_file():
                self.write(f"{name}/{path.relative_to(folder)}", path.read_bytes())

    def activate(self, name: str, *previous: str, canary: str | None = None) -> None:
        content = {"active": name, "previous": previous, "canary": canary and {"bundle": canary, "share": 0.5}}
        self.write("active.json", json.dumps(content).encode())

    def write(self, name: str, content: bytes) -> None:
        self.system.pipe_file(f"/shop/recall/{name}", content)

    def read(self, name: str) -> bytes:
        content: bytes = self.system.cat_file(f"/shop/recall/{name}")
        return content

    def remove(self, name: str) -> None:
        self.system.rm(f"/shop/recall/{name}")


@pytest.fixture
def shop(worlds: Path) -> Iterator[Shop]:
    system = pytest.importorskip("fsspec", reason="needs the extra 'cloud'").filesystem("memory")
    shop = Shop(system, worlds)
    shop.put("a")
    shop.activate("a")
    yield shop
    system.rm("/shop", recursive=True)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The large objects that were read, by name."""
    names: list[str] = []
    blocks = Store.blocks

    def counted(store: Store, name: str) -> Iterator[bytes]:
        names.append(name)
        return blocks(store, name)

    monkeypatch.setattr(Store, "blocks", counted)
    return names


@pytest.fixture
def mirror(tmp_path: Path, shop: Shop) -> Mirror:
    mirror = Mirror(URL, tmp_path / "copies")
    mirror.follow_first(again=True)
    return mirror


def held(mirror: Mirror) -> list[str]:
    return sorted(path.name for path in mirror.root.iterdir() if path.is_dir())


def active(mirror: Mirror) -> str:
    return Versions(mirror.root).read().active


def test_the_active_bundle_is_copied_whole(mirror: Mirror, shop: Shop) -> None:
    assert (active(mirror), held(mirror), mirror.refused) == ("a", ["a"], {})
    originals = {path.relative_to(shop.worlds / "a"): path for path in (shop.worlds / "a").rglob("*") if path.is_file()}
    copies = {path.relative_to(mirror.root / "a"): path for path in (mirror.root / "a").rglob("*") if path.is_file()}
    assert {name: path.read_bytes() for name, path in copies.items()} == {
        name: path.read_bytes() for name, path in originals.items()
    }
    Bundle.open(mirror.root / "a")


def test_another_one_is_copied_beside_it_and_the_way_back_reads_nothing(
    mirror: Mirror, shop: Shop, read: list[str]
) -> None:
    shop.put("b")
    mirror.follow(again=False, answering=["a"])
    assert read == [] and active(mirror) == "a"
    shop.activate("b", "a")
    mirror.follow(again=False, answering=["a"])
    assert (active(mirror), held(mirror), Versions(mirror.root).read().previous) == ("b", ["a", "b"], ("a",))
    assert len(read) == len(set(read)) and {name.partition("/")[0] for name in read} == {"b"}
    read.clear()
    shop.activate("a")
    mirror.follow(again=False, answering=["b"])
    assert (read, active(mirror), mirror.refused) == ([], "a", {})


def test_a_folder_behind_a_file_url_is_followed_as_any_store(tmp_path: Path, worlds: Path) -> None:
    pytest.importorskip("fsspec", reason="needs the extra 'cloud'")
    root, url = tmp_path / "shop", f"file://{tmp_path / 'shop'}"
    shutil.copytree(worlds, root)
    Versions(root).activate("a")
    mirror = Mirror(url, tmp_path / "copies")
    mirror.follow_first(again=True)
    assert (active(mirror), held(mirror), mirror.refused) == ("a", ["a"], {})
    Versions(root).activate("b")
    mirror.follow(again=False, answering=["a"])
    assert (active(mirror), held(mirror), mirror.refused) == ("b", ["a", "b"], {})
    assert Bundle.open(mirror.root / "b").manifest.model_version == "b"
    (root / "active.json").unlink()
    mirror.follow(again=False, answering=["b"])
    assert active(mirror) == "b" and mirror.refused["active.json"].reason.startswith(f"{url}: none of its bundles")


def test_only_those_that_answer_and_the_one_before_stay(mirror: Mirror, shop: Shop) -> None:
    shop.put("b")
    shop.put("c")
    shop.activate("b", "a")
    mirror.follow(again=True, answering=["a"])
    shop.activate("c", "b", "a")
    mirror.follow(again=True, answering=["a"])  # `b` does not open
    assert held(mirror) == ["a", "b", "c"] and Versions(mirror.root).read().previous == ("b", "a")
    mirror.follow(again=True, answering=["c"])
    assert held(mirror) == ["b", "c"] and Versions(mirror.root).read().previous == ("b",)


def test_what_a_start_could_not_remove_goes_with_the_next_look(mirror: Mirror, shop: Shop, read: list[str]) -> None:
    """A machine that starts each morning finds another active bundle."""
    for name, *before in (("b", "a"), ("c", "b", "a")):
        shop.put(name)
        shop.activate(name, *before)
        mirror.follow_first(again=True)
        assert name in held(mirror)
        mirror.follow(again=False, answering=[name])
    assert held(mirror) == ["b", "c"] and Versions(mirror.root).read().previous == ("b",)
    read.clear()
    mirror.follow(again=False, answering=["c"])
    assert (read, held(mirror), active(mirror)) == ([], ["b", "c"], "c")


def altered(shop: Shop, name: str) -> None:
    content = bytearray(shop.read(name))
    content[-1] ^= 1
    shop.write(name, bytes(content))


FAULTS = {
    "altered": (lambda shop: altered(shop, f"b/{VECTORS}"), "b", rf"^{URL}/b/{VECTORS}: altered: its SHA-256"),
    "missing": (lambda shop: shop.remove(f"b/{VECTORS}"), "b", rf"^{URL}/b/{VECTORS}: missing$"),
    "short": (lambda shop: shop.write(f"b/{VECTORS}", b"x"), "b", rf"^{URL}/b/{VECTORS}: truncated: 1 bytes, the"),
    "no manifest": (lambda shop: shop.remove("b/manifest.json"), "b", rf"^{URL}/b/manifest.json: missing$"),
    "bad manifest": (lambda shop: altered(shop, "b/manifest.json"), "b", rf"^{URL}/b/manifest.json: truncated or alt"),
    "no pointer": (lambda shop: shop.remove("active.json"), "active.json", rf"^{URL}: none of its bundles is active"),
    "half a pointer": (lambda shop: shop.write("active.json", b'{"act'), "active.json", rf"^{URL}/active.json: dama"),
    "a path": (lambda shop: shop.activate("../b"), "active.json", rf"^{URL}/active.json: damaged: active: .*cannot na"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_changes_nothing_until_it_is_mended(mirror: Mirror, shop: Shop, read: list[str], fault: str) -> None:
    spoil, name, reason = FAULTS[fault]
    shop.put("b")
    shop.activate("b", "a")
    spoil(shop)
    mirror.follow(again=True, answering=["a"])
    other = Mirror(URL, mirror.root)  # another process
    for each in (mirror, other):
        assert list(each.refused) == [name]
        with pytest.raises(BundleError, match=reason):
            raise BundleError(each.refused[name].reason)
        assert URL not in each.refused[name].short and str(mirror.root) not in each.refused[name].short
    assert active(mirror) == "a" and held(mirror) in (["a"], [".b.fetch", "a"])
    first = list(read)
    if name == "b":
        mirror.follow(again=False, answering=["a"])
        assert read == first and list(mirror.refused) == ["b"]  # A look that finds nothing new reads nothing.
    shop.put("b")
    shop.activate("b", "a")
    mirror.follow(again=False, answering=["a"])
    assert (active(mirror), held(mirror), mirror.refused, other.refused) == ("b", ["a", "b"], {}, {})
    # What was right was not read again.
    assert [each for each in set(read) if read.count(each) > 1] == ([f"b/{VECTORS}"] if fault == "altered" else [])


def test_a_store_that_is_away_changes_nothing_and_comes_back(
    mirror: Mirror, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.put("b")
    shop.activate("b", "a")
    with monkeypatch.context() as patch:

        def away(*_: object, **__: object) -> bytes:
            raise ConnectionError("to 10.0.0.1")

        patch.setattr(type(shop.system), "cat_file", away)
        mirror.follow(again=False, answering=["a"])
        away_now = mirror.refused["active.json"]
        assert away_now.reason == f"{URL}/active.json: cannot be read: ConnectionError: to 10.0.0.1"
        assert away_now.short == "active.json: cannot be read: ConnectionError"
        assert active(mirror) == "a"
    mirror.follow(again=False, answering=["a"])
    assert (active(mirror), mirror.refused) == ("b", {})


def test_an_interrupted_copy_is_not_seen_and_goes_on(
    mirror: Mirror, shop: Shop, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.put("b")
    shop.activate("b", "a")
    with monkeypatch.context() as patch:
        counted = Store.blocks

        def cut(store: Store, name: str) -> Iterator[bytes]:
            for block in counted(store, name):
                yield block[: len(block) // 2] if name.endswith(VECTORS) else block
                if name.endswith(VECTORS):
                    raise KeyboardInterrupt

        patch.setattr(Store, "blocks", cut)
        with pytest.raises(KeyboardInterrupt):
            mirror.follow(again=True, answering=["a"])
    assert held(mirror) == [".b.fetch", "a"] and active(mirror) == "a"
    mirror.follow(again=False, answering=["a"])
    assert held(mirror) == ["a", "b"] and active(mirror) == "b"
    assert [name for name in set(read) if read.count(name) > 1] == [f"b/{VECTORS}"]
    Bundle.open(mirror.root / "b")


def test_what_was_altered_here_is_read_again_at_the_next_start(mirror: Mirror, read: list[str]) -> None:
    path = mirror.root / "a" / VECTORS
    path.write_bytes(bytes(path.stat().st_size))
    Mirror(URL, mirror.root).follow_first(again=True)
    assert read == [f"a/{VECTORS}"]
    Bundle.open(mirror.root / "a")


def test_a_bundle_that_is_replaced_under_its_name_is_copied_again(mirror: Mirror, shop: Shop, read: list[str]) -> None:
    shop.put("a", world="b")
    mirror.follow(again=False, answering=["a"])
    assert Bundle.open(mirror.root / "a").manifest.model_version == "b"
    assert f"a/{VECTORS}" not in read  # Both worlds have the same ones.


def test_the_copy_of_the_bundle_before_goes_when_the_store_holds_another_one_of_its_name(
    mirror: Mirror, shop: Shop, read: list[str]
) -> None:
    shop.put("b")
    shop.activate("b", "a")
    mirror.follow(again=False, answering=["b"])
    shop.put("a", world="c")
    read.clear()
    mirror.follow(again=False, answering=["a", "b"])
    assert held(mirror) == ["a", "b"], "it may still answer"
    shop.remove("a/manifest.json")
    mirror.follow(again=True, answering=["b"])
    assert held(mirror) == ["a", "b"], "nothing is known of it"
    mirror.follow(again=False, answering=["a", "b"])
    shop.activate("b")  # after a rollback no list names it
    mirror.follow(again=False, answering=["a", "b"])
    shop.put("a", world="c")
    mirror.follow(again=False, answering=["b"])
    assert (held(mirror), Versions(mirror.root).read().previous, read) == (["b"], (), [])
    assert mirror.refused == {}
    shop.activate("a", "b")
    mirror.follow(again=False, answering=["b"])
    assert Bundle.open(mirror.root / "a").manifest.model_version == "c"


def test_a_canary_is_copied_and_a_bad_one_is_left_out(mirror: Mirror, shop: Shop) -> None:
    shop.put("b")
    shop.activate("a", canary="b")
    mirror.follow(again=False, answering=["a"])
    canary = Versions(mirror.root).read().canary
    assert canary is not None and (canary.bundle, canary.share) == ("b", 0.5)
    shop.activate("a", canary="c")
    mirror.follow(again=False, answering=["a", "b"])
    assert Versions(mirror.root).read().canary is None and list(mirror.refused) == ["c"]


def test_without_copies_the_newest_whole_bundle_of_the_store_is_the_first(tmp_path: Path, shop: Shop) -> None:
    shop.put("b")
    altered(shop, f"b/{VECTORS}")
    shop.activate("c", "b", "a")
    mirror = Mirror(URL, tmp_path / "new")
    mirror.follow_first(again=True)
    assert active(mirror) == "a" and sorted(mirror.refused) == ["b", "c"]
    shop.remove(f"a/{VECTORS}")
    with pytest.raises(BundleError, match=rf"{URL}/c/manifest.json: missing; .*{URL}/a/{VECTORS}: missing"):
        Mirror(URL, tmp_path / "another").follow_first(again=True)


def test_a_worker_that_starts_does_not_wait_for_the_look_of_another(
    mirror: Mirror, shop: Shop, read: list[str]
) -> None:
    shop.put("b")
    shop.activate("b", "a")
    started = Mirror(URL, mirror.root)
    with (mirror.root / LOCK).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        started.follow_first(again=False)
        assert (active(started), started.refused, read) == ("a", {}, [])
    started.follow_first(again=False)
    assert (active(started), started.refused) == ("b", {})


def test_what_is_rolled_back_while_it_is_copied_does_not_answer(
    mirror: Mirror, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.put("b")
    shop.activate("b", "a")
    blocks = Store.blocks

    def rolled_back(store: Store, name: str) -> Iterator[bytes]:
        shop.activate("a")
        return blocks(store, name)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "blocks", rolled_back)
        mirror.follow(again=False, answering=["a"])
    assert (active(mirror), mirror.refused) == ("a", {})


def test_without_a_store_the_copies_answer(mirror: Mirror, shop: Shop) -> None:
    shop.remove("active.json")
    again = Mirror(URL, mirror.root)
    again.follow_first(again=True)
    assert active(again) == "a" and list(again.refused) == ["active.json"]


def test_what_is_no_copy_stays_and_what_a_killed_removal_left_goes(
    mirror: Mirror, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal, or backups, in the directory of the copies."""
    (mirror.root / "state").mkdir()
    (mirror.root / "state" / "journal.sqlite").write_bytes(b"changes")
    shutil.copytree(shop.worlds / "c", mirror.root.with_name("kept"))
    (mirror.root / "link").symlink_to(mirror.root.with_name("kept"))
    left = mirror.root / f".a.{sibling(mirror.root / 'a', 'old').name.split('.')[2]}.999999.old"
    left.mkdir()  # of a service that was killed while it replaced a copy
    other = mirror.root / ".a.deadbeef.77.old"
    other.mkdir()  # of a container of another name
    removed = Mock(wraps=remove, side_effect=[DEFAULT, DEFAULT, KeyboardInterrupt])
    for name, *before in (("b", "a"), ("c", "b", "a")):
        shop.put(name)
        shop.activate(name, *before)
        with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
            patch.setattr("serving.service.mirror.remove", removed)
            mirror.follow(again=False, answering=[name])
    assert removed.call_count == 3 and "a" in held(mirror)
    # And of one that was killed between the two renames.
    shutil.copytree(shop.worlds / "c", left.with_name(left.name.replace(".a.", ".of-old.")))
    mirror.follow(again=True, answering=["c"])
    assert held(mirror) == ["b", "c", "link", "state"]
    assert (mirror.root / "state" / "journal.sqlite").read_bytes() == b"changes"
    Bundle.open(mirror.root / "link")
    assert not other.exists()


def test_a_directory_of_something_else_is_refused(tmp_path: Path, mirror: Mirror, shop: Shop) -> None:
    write_world(tmp_path / "bundles" / "x")
    Versions(tmp_path / "bundles").activate("x")
    before = sorted((tmp_path / "bundles").rglob("*"))
    with pytest.raises(
        BundleError, match=r"bundles: not empty, and it holds no copies of a store; name another one as"
    ):
        Mirror(URL, tmp_path / "bundles").follow_first(again=True)
    assert sorted((tmp_path / "bundles").rglob("*")) == before
    with pytest.raises(BundleError, match=rf"holds copies of {URL}, not of memory://shop/other; name another"):
        Mirror("memory://shop/other", mirror.root).follow_first(again=True)


def test_a_directory_that_cannot_be_written_is_an_error_that_names_the_setting(tmp_path: Path, shop: Shop) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BundleError, match=r"file/x: cannot hold copies: Not a directory; name another directory as `c"):
        Mirror(URL, tmp_path / "file" / "x").follow_first(again=True)


def test_a_full_disk_changes_nothing_and_needs_no_operator(
    mirror: Mirror, shop: Shop, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.put("b")
    shop.activate("b", "a")
    with monkeypatch.context() as patch:
        patch.setattr(fetch.shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
        mirror.follow(again=False, answering=["a"])
    assert active(mirror) == "a" and held(mirror) == ["a"] and read == []
    assert mirror.refused["b"].reason.endswith("bytes, 10 are free") and "no space left" in mirror.refused["b"].reason
    with monkeypatch.context() as patch:

        def full(*_: object) -> Iterator[bytes]:
            yield b""
            raise OSError(28, os.strerror(28))

        patch.setattr(Store, "blocks", full)
        mirror.follow(again=False, answering=["a"])
    assert active(mirror) == "a" and held(mirror) == ["a"]
    mirror.follow(again=False, answering=["a"])
    assert active(mirror) == "b" and mirror.refused == {}


def test_many_processes_copy_once(tmp_path: Path, shop: Shop, read: list[str]) -> None:
    mirrors = [Mirror(URL, tmp_path / "shared") for _ in range(4)]
    threads = [threading.Thread(target=each.follow, kwargs={"again": True}) for each in mirrors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read) == len(set(read)) > 5 and [each.refused for each in mirrors] == [{}] * 4


def test_a_recent_look_is_not_repeated(mirror: Mirror, shop: Shop) -> None:
    shop.put("b")
    shop.activate("b", "a")
    mirror.follow(again=True, answering=["a"], fresh_s=3_600)
    assert active(mirror) == "a"
    mirror.follow(again=True, answering=["a"])
    assert active(mirror) == "b"


def test_no_message_shows_the_password_of_a_url(tmp_path: Path) -> None:
    with pytest.raises(BundleError) as caught:
        Mirror("nothing://anna:s3cret@b/k", tmp_path / "copies").follow_first(again=True)
    assert "s3cret" not in str(caught.value) and "nothing://***@b/k: cannot be opened: ValueError" in str(caught.value)


def test_a_missing_package_is_an_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(
        StoreError, match=r"^s3://b/k: URLs need the extra 'cloud': pip install 'towers-recall\[cloud\]'"
    ):
        Store("s3://b/k")


def test_a_url_has_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    one, two = Settings(bundle="s3://b/one"), Settings(bundle="s3://b/two")
    assert one.store == "s3://b/one" and one.folder.parent == tmp_path / "towers" != one.folder != two.folder
    assert Settings(bundle="s3://b/one", cache=Path("c")).folder == Path("c")
    local = Settings(bundle="b/one")
    assert (local.bundle, local.store, local.folder) == (Path("b/one"), None, Path("b/one"))
