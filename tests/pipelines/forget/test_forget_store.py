"""A user is forgotten in a store, whatever moment the command is killed at; services copy the changed bundles again."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from pipelines.bundles import activate, publish
from pipelines.cli.app import app
from pipelines.forget import forget
from serving.bundle.arrays import digests, files_under
from serving.bundle.manifest import read_manifest, write_manifest
from serving.bundle.reader import Bundle
from serving.bundle.versions import Versions
from serving.catalogue.journal import UserEvent
from serving.catalogue.sqlite_journal import SqliteJournal
from serving.errors import BundleError
from serving.files import staging
from serving.service.mirror import Mirror
from serving.service.store import Store, StoreError
from tests.support.object_store import local_gs, local_s3
from tests.support.worlds.serving import USERS, seen_rows, write_versions, write_world

URL = "memory://forget/recall"
OTHERS = [f"u{user}" for user in range(USERS) if user != 5]
COUNTS = {"stored users": 1, "seen items": len(seen_rows(5))}


class KilledError(Exception):
    """Stands for the end of the process."""


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_versions(tmp_path_factory.mktemp("worlds"), "v1", "v2")


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


def killed_in_the_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forget that ends when what lies beside the first bundle is whole."""

    def killed(*_: Any) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(Store, "copy", killed)
        with pytest.raises(KilledError):
            forget.run("u5", bundles=[URL])


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
    assert len(told.splitlines()) == 4 and told.count("train again") == 2 and "u5" not in told
    why = "not written by `towers export`, so not searched; they may hold the user's id and row"
    for name in ("v1", "v2"):
        assert f"{URL}/{name}: its towers were {why}\n" in told
    after = system.cat(system.find("/forget"))
    assert after.keys() == before.keys(), "nothing is left beside the bundles"
    assert after["/forget/recall/active.json"] == before["/forget/recall/active.json"]
    mirror.follow(again=False, answering=["v2"])
    for name, bundle in {"v2": Bundle.open(mirror.root / "v2"), "v1": copied("v1", tmp_path / "copies")}.items():
        assert list(bundle.query_names) == OTHERS, name
        assert bundle.manifest.lineage["forgotten_users"] == 1
    assert forget.run("u5", bundles=[URL]) == {}
    assert "nothing was changed" in capsys.readouterr().err


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=pytest.mark.long) for name in ("put", "copy")] + ["write", "remove"]
)
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
    killed_in_the_exchange(monkeypatch)
    write_world(tmp_path / "v1", model_version="of another day", users=3)
    for path in (each for each in (tmp_path / "v1").rglob("*") if each.is_file()):
        system.pipe_file(f"/forget/recall/v1/{path.relative_to(tmp_path / 'v1')}", path.read_bytes())
    assert forget.run("nobody", bundles=[URL]) == {}
    assert copied("v1", tmp_path / "copies").manifest.model_version == "of another day"


def test_of_two_commands_whose_uploads_overlap_one_is_refused_and_the_bundle_is_whole(
    system: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, begun = Store.put, list[str]()

    def meets_another(store: Store, file: Path, name: str) -> None:
        put(store, file, name)
        if not begun:
            begun.append(name)
            forget.run("u6", bundles=[f"{URL}/"])  # begins and ends while the first is uploading

    monkeypatch.setattr(Store, "put", meets_another)
    with pytest.raises(BundleError, match=rf"^{URL}/v1: another command has changed it meanwhile; give yours again"):
        forget.run("u5", bundles=[URL])
    monkeypatch.setattr(Store, "put", put)
    assert list(copied("v1", tmp_path / "first").query_names) == [f"u{user}" for user in range(USERS) if user != 6]
    forget.run("u5", bundles=[URL])
    for name in ("v1", "v2"):
        assert not {"u5", "u6"} & {*copied(name, tmp_path / f"last-{name}").query_names}


def test_another_plan_is_not_overwritten(system: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies beside the bundle is then whole, but another command's, which ends for both."""
    objects, other = Store.objects, list[str]()

    def with_another(store: Store, bundle: str) -> dict[str, dict[str, Any]]:
        found = objects(store, bundle)
        if bundle == ".v1.forget" and not other:
            (token,) = {name.partition("/")[0] for name in found}
            other.append(token)
            for name in found:
                system.cp_file(f"/forget/recall/{bundle}/{name}", f"/forget/recall/{bundle}/{name.replace(token, 'x')}")
            before = system.cat_file("/forget/recall/v1/manifest.json")
            files = [name.partition("/")[2] for name in found if not name.endswith("/manifest.json")]
            plan = {"replaces": hashlib.sha256(before).hexdigest(), "token": "x", "files": files}
            system.pipe_file(f"/forget/recall/{bundle}/replacement.json", json.dumps(plan).encode())
            found = objects(store, bundle)
        return found

    monkeypatch.setattr(Store, "objects", with_another)
    with pytest.raises(BundleError, match="another command has changed it meanwhile"):
        forget.run("u5", bundles=[URL])
    assert other and list(copied("v1", tmp_path / "copies").query_names) == OTHERS
    assert not any("/." in path for path in system.find("/forget"))


def test_a_plan_whose_objects_are_gone_is_not_ended(
    system: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_in_the_exchange(monkeypatch)
    gone = next(path for path in system.find("/forget/recall/.v1.forget") if path.endswith("/manifest.json"))
    system.rm_file(gone)
    assert set(forget.run("u5", bundles=[URL], dry_run=True)) == {f"{URL}/v1", f"{URL}/v2"}
    assert "u5" in copied("v1", tmp_path / "copies").query_rows


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


def test_a_bundle_that_does_not_open_stops_before_anything_is_removed(
    system: Any, worlds: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "v2"
    shutil.copytree(worlds / "v2", broken)
    np.save(broken / "query_vectors.npy", np.load(broken / "query_vectors.npy")[1:])
    manifest = read_manifest(broken)
    names = [path for path in files_under(broken) if path.name != "manifest.json"]
    write_manifest(manifest.model_copy(update={"files": digests(broken, names)}), broken / "manifest.json")
    for name in ("query_vectors.npy", "manifest.json"):
        system.pipe_file(f"/forget/recall/v2/{name}", (broken / name).read_bytes())
    with pytest.raises(BundleError, match=rf"^{URL}/v2/query_vectors\.npy: must be .*nothing was removed"):
        forget.run("u5", bundles=[URL])
    assert "u5" in copied("v1", tmp_path / "copies").query_rows


def test_what_a_killed_process_left_is_removed(system: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copies here, and what lies beside a bundle that has gone."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    ours = staging.sibling(tmp_path / "towers-forget", "partial")
    left = ours.with_name(ours.name.replace(f".{os.getpid()}.", f".{dead.pid}."))
    (left / "0" / "v1").mkdir(parents=True)
    system.pipe_file("/forget/recall/.gone.forget/token/query_id_bytes.npy", b"u5")
    forget.run("nobody", bundles=[URL], dry_run=True)
    assert list(tmp_path.iterdir()) == [] and not any("/." in path for path in system.find("/forget"))


def test_a_name_that_looks_like_a_pattern_is_only_a_name(system: Any, tmp_path: Path) -> None:
    for path in system.find("/forget/recall/v1"):
        system.pipe_file(path.replace("/v1/", "/v[12]/"), system.cat_file(path))
    assert set(forget.run("u5", bundles=[URL, f"{URL}/"])) == {f"{URL}/v1", f"{URL}/v2", f"{URL}/v[12]"}
    assert list(copied("v[12]", tmp_path / "copies").query_names) == OTHERS
    Store(URL).remove("v[12]")
    assert sorted(Store(URL).manifests()) == ["v1", "v2"]


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec", reason="needs the extra 'cloud'")
    from fsspec.implementations.local import LocalFileSystem

    store = Store(f"file://{tmp_path / 'shop'}")
    store.write("v1/a", b"old")
    store.write("v1/b", b"new")

    def half(self: Any, path: str, *arguments: Any, **options: Any) -> None:
        Path(arguments[0] if arguments and isinstance(arguments[0], str) else path).write_bytes(b"n")
        raise KilledError

    for name in ("pipe_file", "put_file", "cp_file"):
        monkeypatch.setattr(LocalFileSystem, name, half)
    for change in (
        lambda: store.write("v1/a", b"new"),
        lambda: store.copy("v1/b", "v1/a"),
        lambda: store.put(tmp_path / "shop" / "v1" / "b", "v1/a"),
    ):
        with pytest.raises(StoreError):
            change()
        assert store.read("v1/a") == b"old"


def test_the_next_command_quotes_and_shows_no_password(system: Any, worlds: Path, tmp_path: Path) -> None:
    shutil.copytree(worlds / "v1", tmp_path / "my bundles" / "v1")
    for path in system.find("/forget/recall/v1"):
        system.pipe_file(path.replace("/forget/", "/me:secret@forget/"), system.cat_file(path))
    words = ["forget", "--user", "u5", "--dry-run", "--bundle", "memory://me:secret@forget/recall"]
    done = CliRunner().invoke(app, [*words, "--bundle", str(tmp_path / "my bundles")])
    system.rm("/me:secret@forget", recursive=True)
    assert done.exit_code == 0, done.output
    assert f"--bundle 'memory://***@forget/recall' --bundle '{tmp_path}/my bundles'" in done.output
    assert "secret" not in done.output


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
