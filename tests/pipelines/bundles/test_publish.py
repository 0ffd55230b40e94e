"""`towers bundles` with a store: what is published is whole, and no command makes what is not answer."""

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines import console
from pipelines.bundles import activate as choice
from pipelines.bundles import build_index
from pipelines.bundles import publish as command
from pipelines.bundles.requirement import LOG
from pipelines.cli import app
from pipelines.errors import GateError
from serving.bundle.active import Active, Canary
from serving.bundle.reader import Bundle
from serving.errors import BundleError
from serving.service.store import MissingError, Store
from tests.support.worlds.serving import write_versions

URL = "memory://shop/recall"
VECTORS = "item_vectors.npy"


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_versions(tmp_path_factory.mktemp("bundles"), "v1", "v2")


@pytest.fixture
def system() -> Iterator[Any]:
    system = pytest.importorskip("fsspec", reason="needs the extra 'cloud'").filesystem("memory")
    yield system
    if system.exists("/shop"):
        system.rm("/shop", recursive=True)


@pytest.fixture
def without_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "probed", lambda bundle: None)


def active() -> Active:
    return Active.model_validate_json(Store(URL).active())


def objects(system: Any, folder: Path) -> dict[str, bytes]:
    root = f"/shop/recall/{folder.name}"
    return {name.removeprefix(f"{root}/"): system.cat_file(name) for name in system.find(root)}


@pytest.mark.slow
def test_an_operators_day(
    system: Any, bundles: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*words: str, code: int = 0) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["towers", "bundles", *words, "--root", URL])
        with pytest.raises(SystemExit) as ended:
            app.main()
        streams = capsys.readouterr()
        assert ended.value.code == code, streams.err
        return (streams.out + streams.err).splitlines()

    towers = console.towers()
    follow = f"next: {towers} bundles list --root {URL}"
    assert said("publish", str(bundles / "v1"))[-2:] == [
        f"published: v1 (model v1, 60 items) in {URL}",
        f"next: {towers} bundles activate v1 --root {URL}",
    ]
    files = {str(path.relative_to(bundles / "v1")): path for path in (bundles / "v1").rglob("*") if path.is_file()}
    assert objects(system, bundles / "v1") == {name: path.read_bytes() for name, path in files.items()}
    assert f"none of them is active; name one: towers bundles activate NAME --root {URL}" in said("list")
    assert said("activate", "v1") == ["active: v1 (model v1, 60 items)", f"next: {towers} serve --bundle {URL}"]
    said("publish", str(bundles / "v2"), "--name", "second")
    assert said("canary", "second", "--share", "0.25") == [
        "canary: second (model v2, 60 items) for 25.00% of the users, next to v1", follow,
    ]  # fmt: skip
    assert active() == Active(active="v1", canary=Canary(bundle="second", share=0.25))
    assert said("canary", "--clear") == ["no canary: v1 answers every user", follow]
    assert said("activate", "second") == ["active: second (model v2, 60 items), after v1", follow]
    rows = [line.split("│") for line in said("list") if "│" in line]
    assert {row[1].strip(): row[2].strip() for row in rows} == {"second": "active", "v1": "previous"}
    assert active() == Active(active="second", previous=("v1",))
    assert said("rollback") == ["active: v1 (model v1, 60 items), back from second", follow]
    assert active() == Active(active="v1")
    assert f"{URL}: no bundle was active before v1" in said("rollback", code=2)[0]
    assert f"{URL}/v9: not a bundle: no such directory" in said("activate", "v9", code=2)[0]
    assert "a root in a store has no gate" in said("activate", "v1", "--override", "why", code=2)[0]


def test_the_next_command_shows_no_password(
    system: Any,
    bundles: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    without_probes: None,
) -> None:
    monkeypatch.setattr(choice, "probed", lambda bundle: None)
    told = []
    try:
        for words in (["publish", str(bundles / "v1")], ["activate", "v1"], ["canary", "--clear"]):
            monkeypatch.setattr(sys, "argv", ["towers", "bundles", *words, "--root", "memory://me:secret@shop/recall"])
            with pytest.raises(SystemExit) as ended:
                app.main()
            streams = capsys.readouterr()
            assert ended.value.code == 0 and "secret" not in streams.out + streams.err
            told.append(streams.err.splitlines()[-1].partition("bundles ")[2] or streams.err.splitlines()[-1])
    finally:
        system.rm("/me:secret@shop", recursive=True)
    assert told[0] == "activate v1 --root 'memory://***@shop/recall'"
    assert told[1].endswith("serve --bundle 'memory://***@shop/recall'")
    assert told[2] == "list --root 'memory://***@shop/recall'"


def test_only_a_whole_bundle_is_published(system: Any, bundles: Path, tmp_path: Path, without_probes: None) -> None:
    shutil.copytree(bundles / "v1", tmp_path / "v1")
    (tmp_path / "v1" / VECTORS).write_bytes(b"x")
    with pytest.raises(BundleError, match=rf"{VECTORS}: truncated"):
        command.publish(tmp_path / "v1", URL)
    with pytest.raises(BundleError, match="'a/b' cannot name a bundle"):
        command.publish(bundles / "v1", URL, "a/b")
    assert not system.exists("/shop/recall")


def test_a_bundle_that_gets_an_index_meanwhile_is_not_published(
    system: Any, bundles: Path, tmp_path: Path, without_probes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its new manifest names files that were not there when it was checked."""
    shutil.copytree(bundles / "v1", tmp_path / "v1")

    def indexed(path: Path) -> tuple[Bundle, ...]:
        opened = Bundle.open(path)
        build_index.run(path, target_recall=0.5, kind="scann")
        return (opened,)

    monkeypatch.setattr(command, "verify", indexed)
    with pytest.raises(BundleError, match="v1: another command changed it meanwhile; give the command again"):
        command.publish(tmp_path / "v1", URL)
    assert not system.exists("/shop/recall")
    monkeypatch.undo()
    monkeypatch.setattr(command, "probed", lambda bundle: None)
    assert command.publish(tmp_path / "v1", URL) == "v1"


def test_the_manifest_is_the_last_object(
    system: Any, bundles: Path, without_probes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        put = Store.put

        def cut(store: Store, file: Path, name: str) -> None:
            if name.endswith(VECTORS):
                raise KeyboardInterrupt
            put(store, file, name)

        patch.setattr(Store, "put", cut)
        with pytest.raises(KeyboardInterrupt):
            command.publish(bundles / "v1", URL)
    assert objects(system, bundles / "v1") and "manifest.json" not in objects(system, bundles / "v1")
    with pytest.raises(BundleError, match=rf"{URL}/v1: not a bundle"):
        choice.activate(URL, "v1")
    command.publish(bundles / "v1", URL)
    assert choice.activate(URL, "v1").active == "v1"


def test_a_name_belongs_to_one_bundle_which_may_be_written_again(
    system: Any, bundles: Path, without_probes: None
) -> None:
    command.publish(bundles / "v1", URL)
    with pytest.raises(BundleError, match=rf"^{URL}/v1: another bundle has this name; give a new one: --name$"):
        command.publish(bundles / "v2", URL, "v1")
    system.pipe_file(f"/shop/recall/v1/{VECTORS}", b"spoilt")
    command.publish(bundles / "v1", URL)
    assert objects(system, bundles / "v1")[VECTORS] == (bundles / "v1" / VECTORS).read_bytes()


@pytest.mark.parametrize("fault", ["missing", "truncated"])
def test_a_bundle_that_is_not_whole_in_the_store_does_not_answer(
    system: Any, bundles: Path, without_probes: None, fault: str
) -> None:
    for name in ("v1", "v2"):
        command.publish(bundles / name, URL)
    choice.activate(URL, "v1")
    choice.activate(URL, "v2")
    if fault == "missing":
        system.rm(f"/shop/recall/v1/{VECTORS}")
    else:
        system.pipe_file(f"/shop/recall/v1/{VECTORS}", b"x")
    for choose in (
        lambda: choice.activate(URL, "v1"),
        lambda: choice.rollback(URL),
        lambda: choice.canary(URL, "v1", 0.5),
    ):
        with pytest.raises(BundleError, match=rf"^{URL}/v1/{VECTORS}: {fault}"):
            choose()
    assert active() == Active(active="v2", previous=("v1",))


def test_a_change_by_another_command_is_not_lost(
    system: Any, bundles: Path, without_probes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("v1", "v2"):
        command.publish(bundles / name, URL)
    listed = Store.objects

    def meanwhile(store: Store, name: str) -> dict[str, dict[str, Any]]:
        store.write("active.json", b'{"active": "v2"}')
        return listed(store, name)

    monkeypatch.setattr(Store, "objects", meanwhile)
    with pytest.raises(BundleError, match=rf"^{URL}/active.json: another command has changed it meanwhile"):
        choice.activate(URL, "v1")
    assert active() == Active(active="v2")


def test_a_root_with_a_gate_publishes_only_what_passed(
    system: Any, bundles: Path, tmp_path: Path, without_probes: None
) -> None:
    shutil.copytree(bundles / "v1", tmp_path / "v1")
    (tmp_path / "gate.toml").write_text(f'gate = "required"\nrules = "{"0" * 64}"\nfile = "rules.toml"\n')
    with pytest.raises(GateError, match=r"v1: .*--override"):
        command.publish(tmp_path / "v1", URL)
    with pytest.raises(MissingError):
        Store(URL).read("v1/manifest.json")
    command.publish(tmp_path / "v1", URL, override="tried by hand")
    assert "publish by override" in (tmp_path / LOG).read_text()
    assert Store(URL).read("v1/manifest.json") == (tmp_path / "v1" / "manifest.json").read_bytes()


def test_a_folder_of_the_system_is_a_store_too(bundles: Path, tmp_path: Path, without_probes: None) -> None:
    pytest.importorskip("fsspec", reason="needs the extra 'cloud'")
    url = f"file://{tmp_path}/store"
    command.publish(bundles / "v1", url)
    choice.activate(url, "v1")
    assert Bundle.open(tmp_path / "store" / "v1").manifest.model_version == "v1"
    assert Store(url).manifests().keys() == {"v1"}


@pytest.mark.parametrize("scheme", ["file", "local", "simplecache::file"])
def test_the_url_of_a_folder_is_no_way_around_its_gate(
    bundles: Path, tmp_path: Path, without_probes: None, scheme: str
) -> None:
    pytest.importorskip("fsspec", reason="needs the extra 'cloud'")
    url, root = f"{scheme}://{tmp_path}/store", tmp_path / "store"
    for name in ("v1", "v2"):
        shutil.copytree(bundles / name, root / name)
    before = Active(active="v1", previous=("v2",)).model_dump_json()
    (root / "active.json").write_text(before, encoding="utf-8")
    (root / "gate.toml").write_text(f'gate = "required"\nrules = "{"0" * 64}"\nfile = "rules.toml"\n', encoding="utf-8")
    ways: list[Callable[[], object]] = [
        lambda: choice.activate(url, "v2"),
        lambda: choice.activate(url, "v2", override="a reason"),
        lambda: choice.canary(url, "v2", 0.5),
        lambda: choice.rollback(url),
    ]
    for choose in ways:
        with pytest.raises(GateError) as error:
            choose()
        assert str(error.value) == f"{url}/gate.toml: this root has a gate; name the root by its path, {root}"
    assert (root / "active.json").read_text(encoding="utf-8") == before
    # These choose nothing.
    choice.show(url)
    command.publish(bundles / "v1", f"file://{root}", name="v3")


def test_the_list_names_what_is_damaged_in_the_store(system: Any, capsys: pytest.CaptureFixture[str]) -> None:
    system.pipe_file("/shop/recall/v1/manifest.json", b"{")
    choice.show(URL)
    assert f"{URL}/v1/manifest.json: truncated or altered" in capsys.readouterr().out
