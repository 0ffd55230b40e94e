"""A user is forgotten in a store, whatever moment the command is killed at; services copy the changed bundles again."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.bundles import activate, publish
from pipelines.forget import forget
from serving.bundle.reader import Bundle
from serving.bundle.versions import Versions
from serving.catalogue.journal import UserEvent
from serving.catalogue.sqlite_journal import SqliteJournal
from serving.errors import BundleError
from serving.service.mirror import Mirror
from serving.service.store import Store, StoreError
from tests.support.object_store import local_gs, local_s3
from tests.support.worlds.serving import USERS, copied_towers, seen_rows, write_whole_world, write_world

URL = "memory://forget/recall"
OTHERS = [f"u{user}" for user in range(USERS) if user != 5]
COUNTS = {"stored users": 1, "seen items": len(seen_rows(5))}


class KilledError(Exception):
    """Stands for the end of the process."""


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("worlds")
    whole = write_whole_world(folder)
    for name in ("v1", "v2"):
        write_world(folder / name, model_version=name, write_towers=copied_towers(whole))
    return folder


@pytest.fixture
def system(worlds: Path) -> Iterator[Any]:
    """The file system of a store in memory with both bundles."""
    system = pytest.importorskip("fsspec", reason="needs the extra 'cloud'").filesystem("memory")
    fill(system, worlds)
    yield system
    system.rm("/forget", recursive=True)


def fill(system: Any, worlds: Path) -> None:
    if system.exists("/forget"):
        system.rm("/forget", recursive=True)
    for name in ("v1", "v2"):
        for path in (worlds / name).rglob("*"):
            if path.is_file():
                system.pipe_file(f"/forget/recall/{name}/{path.relative_to(worlds / name)}", path.read_bytes())
    system.pipe_file("/forget/recall/active.json", b'{"active": "v2", "previous": ["v1"]}')


def copied(name: str, folder: Path, url: str = URL) -> Bundle:
    """What a service would copy, verified."""
    Store(url).write("active.json", f'{{"active": "{name}"}}'.encode())
    mirror = Mirror(url, folder)
    mirror.follow_first(again=True)
    assert mirror.refused == {}
    return Bundle.open(folder / name)


def holding(system: Any, user: str) -> list[str]:
    return [path for path in system.find("/forget") if user.encode() in system.cat_file(path)]


def test_every_bundle_of_a_store_is_searched_and_its_services_copy_it_again(
    system: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mirror = Mirror(URL, tmp_path / "service")
    mirror.follow_first(again=True)
    before = system.cat(system.find("/forget"))
    found = {f"{URL}/v1": COUNTS, f"{URL}/v2": COUNTS}
    assert forget.run("u5", bundles=[URL], dry_run=True) == found
    assert system.cat(system.find("/forget")) == before and "would remove" in capsys.readouterr().out
    assert forget.run("u5", bundles=[URL]) == found
    told = capsys.readouterr().out
    assert len(told.splitlines()) == 2 and told.count("train again") == 2 and "u5" not in told
    after = system.cat(system.find("/forget"))
    assert after.keys() == before.keys(), "nothing is left beside the bundles"
    assert after["/forget/recall/active.json"] == before["/forget/recall/active.json"]
    mirror.follow(again=False, answering=["v2"])
    for name, bundle in {"v2": Bundle.open(mirror.root / "v2"), "v1": copied("v1", tmp_path / "copies")}.items():
        assert list(bundle.query_names) == OTHERS, name
        assert bundle.manifest.lineage["forgotten_users"] == 1
    assert forget.run("u5", bundles=[URL]) == {}
    assert "nothing was changed" in capsys.readouterr().err


@pytest.mark.parametrize("method", ["put", "write", "copy", "remove"])
def test_a_forget_killed_at_any_step_is_finished_by_the_next(
    system: Any, worlds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    whole = getattr(Store, method)
    for last in range(1, 200):
        fill(system, worlds)
        calls = 0

        def killed(*arguments: Any, last: int = last) -> None:
            nonlocal calls
            calls += 1
            if calls == last:
                raise KilledError
            whole(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(Store, method, killed)
            try:
                forget.run("u5", bundles=[URL])
            except KilledError:
                pass
            else:
                break
        # Even a command that only counts ends what has begun, since services refuse half a bundle.
        forget.run("u5", bundles=[URL], dry_run=True)
        for name in ("v1", "v2"):
            assert copied(name, tmp_path / f"{last}-{name}").manifest.lineage.get("forgotten_users", 0) in (0, 1)
        forget.run("u5", bundles=[URL])
        assert not any("/." in path for path in system.find("/forget"))
        assert list(copied("v1", tmp_path / f"{last}-v1").query_names) == OTHERS
        assert list(copied("v2", tmp_path / f"{last}-v2").query_names) == OTHERS
    assert last > 2, "each kind of write was interrupted"


def test_what_was_begun_for_another_bundle_of_that_name_is_not_ended(
    system: Any, worlds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(Store, "copy", killed)
        with pytest.raises(KilledError):
            forget.run("u5", bundles=[URL])
    write_world(tmp_path / "v1", model_version="of another day", users=3)
    for path in (each for each in (tmp_path / "v1").rglob("*") if each.is_file()):
        system.pipe_file(f"/forget/recall/v1/{path.relative_to(tmp_path / 'v1')}", path.read_bytes())
    assert forget.run("nobody", bundles=[URL]) == {}
    assert copied("v1", tmp_path / "copies").manifest.model_version == "of another day"


def test_a_bundle_that_changes_meanwhile_is_not_overwritten(system: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    put = Store.put

    def publishes(store: Store, file: Path, name: str) -> None:
        system.pipe_file("/forget/recall/v1/manifest.json", b"of another command")
        put(store, file, name)

    monkeypatch.setattr(Store, "put", publishes)
    with pytest.raises(BundleError, match=rf"^{URL}/v1: another command has changed it meanwhile; give yours again"):
        forget.run("u5", bundles=[URL])
    assert system.cat_file("/forget/recall/v1/manifest.json") == b"of another command"


def test_a_store_that_is_not_whole_stops_before_anything_is_removed(system: Any, tmp_path: Path) -> None:
    journal = SqliteJournal.open(tmp_path / "state")
    journal.add_events([UserEvent("a", "u5", "i1", 5)])
    journal.close()
    vectors = "/forget/recall/v2/item_vectors.npy"
    content = system.cat_file(vectors)
    for change, said in (
        (
            lambda: system.pipe_file(vectors, content[:-1] + bytes([content[-1] ^ 1])),
            "altered.*nothing was removed: re",
        ),
        (lambda: system.rm(vectors), r"v2/item_vectors\.npy: missing; nothing was removed: restore or remove"),
        (lambda: system.rm("/forget/recall/v2", recursive=True), ""),
        (lambda: system.rm("/forget/recall/v1", recursive=True), f"^{URL}: no bundles in it; give the root that serv"),
    ):
        change()
        if said:
            with pytest.raises(BundleError, match=said):
                forget.run("u5", state=tmp_path / "state", bundles=[URL])
    with pytest.raises(StoreError, match=r"^nowhere://shop: cannot be opened"):
        forget.run("u5", state=tmp_path / "state", bundles=["nowhere://shop"])
    assert forget.run("u5", state=tmp_path / "state") == {tmp_path / "state": {"events": 1}}, "it was still there"


@pytest.fixture(params=["s3", "gs", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "file":
        yield f"file://{tmp_path / 'shop'}"
        return
    with local_s3() if request.param == "s3" else local_gs(tmp_path / "gs") as store:
        yield f"{store.bucket}/recall"


@pytest.mark.long
def test_the_stores_that_are_supported(url: str, worlds: Path, tmp_path: Path) -> None:
    for name in ("v1", "v2"):
        publish.publish(worlds / name, url)
    activate.activate(url, "v1")
    activate.activate(url, "v2")
    assert set(forget.run("u5", bundles=[url])) == {f"{url}/v1", f"{url}/v2"}
    assert activate.rollback(url) == "v1"
    mirror = Mirror(url, tmp_path / "copies")
    mirror.follow_first(again=True)
    assert Versions(mirror.root).read().active == "v1"
    assert list(Bundle.open(mirror.root / "v1").query_names) == OTHERS
    assert list(copied("v2", tmp_path / "others", url).query_names) == OTHERS
    assert forget.run("u5", bundles=[url]) == {}
