"""No bundle keeps a forgotten user because another command read or wrote one while the user was being removed."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.bundles import build_index, fold, publish, renew
from pipelines.dataset.dataset import Dataset
from pipelines.errors import DataError
from pipelines.forget import bundle as forget_bundle
from pipelines.forget import dataset as forget_dataset
from pipelines.forget import forget
from pipelines.forget.bundle import forget_in_bundle
from pipelines.ingest import prepare
from serving.bundle import writer
from serving.bundle.reader import Bundle
from serving.bundle.versions import Versions
from serving.catalogue.sqlite_journal import SqliteJournal
from serving.errors import BundleError
from serving.files import staging
from serving.files.lock import BusyError
from serving.service.store import Store
from tests.support.paths import ROOT
from tests.support.worlds.serving import write_world
from towers.config.sections import DataConfig

GONE = "u5"
REPLACED = "another command has replaced it meanwhile .*nothing was written: give the command again"


def first(
    patch: pytest.MonkeyPatch, owner: Any, name: str, event: Callable[[], object], *, after: bool = False
) -> None:
    """Lets something happen before, or after, the first call of a function."""
    real, waiting = getattr(owner, name), [event]

    def called(*words: Any, **options: Any) -> Any:
        if waiting and not after:
            waiting.pop()()
        result = real(*words, **options)
        if waiting:
            waiting.pop()()
        return result

    patch.setattr(owner, name, called)


def test_a_fold_of_a_bundle_whose_user_was_forgotten_meanwhile_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_world(tmp_path / "bundle")
    SqliteJournal.open(tmp_path / "state").close()
    first(monkeypatch, fold, "_copy_towers", lambda: forget.run(GONE, bundles=[tmp_path / "bundle"]))
    before = sorted(tmp_path.iterdir())
    with pytest.raises(BundleError, match=REPLACED):
        fold.run(tmp_path / "bundle", tmp_path / "state", tmp_path / "folded")
    assert sorted(tmp_path.iterdir()) == before
    fold.run(tmp_path / "bundle", tmp_path / "state", tmp_path / "folded")
    assert GONE not in Bundle.open(tmp_path / "folded").query_rows


def later_events(folder: Path) -> Path:
    """Events after the last one that the prior of the bundle in a folder counts."""
    opened = Bundle.open(folder / "bundle")
    assert opened.manifest.prior is not None and opened.manifest.prior.until is not None
    later = opened.manifest.prior.until + 1
    rows = [f"u{n % 7},{opened.item_ids[n]},{later + n}" for n in range(40)]
    (folder / "events.csv").write_text("\n".join(["user_id,item_id,timestamp", *rows]) + "\n")
    return folder / "events.csv"


@pytest.mark.parametrize("step", ["_made", "replace_prior"])
def test_a_prior_renewed_of_a_bundle_whose_user_was_forgotten_meanwhile_writes_nothing(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "tests" / "golden" / "bundle-3", tmp_path / "bundle")
    later_events(tmp_path)
    user = Bundle.open(tmp_path / "bundle").query_ids[0]
    first(monkeypatch, renew, step, lambda: forget_in_bundle(tmp_path / "bundle", user, dry_run=False), after=True)
    with pytest.raises(BundleError, match=REPLACED):
        renew.run(tmp_path / "bundle", tmp_path / "events.csv", tmp_path / "renewed")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "events.csv"]
    renew.run(tmp_path / "bundle", tmp_path / "events.csv", tmp_path / "renewed")
    assert user not in Bundle.open(tmp_path / "renewed").query_rows


def test_a_data_set_that_was_prepared_anew_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, users in (("set", ("u1", "u2")), ("new", ("u1", "u2", "u3"))):
        rows = [f"{user},i{n},{1_000 * place + n}" for place, user in enumerate(users) for n in range(5)]
        (tmp_path / "events.csv").write_text("\n".join(["user_id,item_id,timestamp", *rows]) + "\n")
        prepare.run(DataConfig(), tmp_path / "events.csv", tmp_path / name)

    def replaced() -> None:
        shutil.rmtree(tmp_path / "set")
        (tmp_path / "new").rename(tmp_path / "set")

    first(monkeypatch, forget_dataset, "_write_manifest", replaced, after=True)
    with pytest.raises(DataError, match="set: another command has replaced it meanwhile"):
        forget.run("u1", datasets=[tmp_path / "set"])
    assert Dataset.open(tmp_path / "set").users["user_id"].sort().to_list() == ["u1", "u2", "u3"]
    forget.run("u1", datasets=[tmp_path / "set"])
    assert Dataset.open(tmp_path / "set").users["user_id"].sort().to_list() == ["u2", "u3"]


def test_a_renewal_that_is_killed_leaves_one_name_by_which_the_copy_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "tests" / "golden" / "bundle-3", tmp_path / "bundle")
    events, left = later_events(tmp_path), list[str]()
    first(monkeypatch, writer, "write_prior", lambda: left.extend(path.name for path in tmp_path.glob(".*")))
    renew.run(tmp_path / "bundle", events, tmp_path / "renewed")
    assert left == [staging.sibling(tmp_path / "renewed", "partial").name]


def test_an_upload_of_a_bundle_whose_user_was_forgotten_meanwhile_ends_without_a_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fsspec", reason="needs the extra 'cloud'")
    write_world(tmp_path / "bundle")
    monkeypatch.setattr(publish, "probed", lambda bundle: forget_in_bundle(bundle, GONE, dry_run=False))
    with pytest.raises(BundleError, match=REPLACED):
        publish.publish(tmp_path / "bundle", f"file://{tmp_path}/store")
    assert not (tmp_path / "store" / "bundle" / "manifest.json").exists()
    publish.publish(tmp_path / "bundle", f"file://{tmp_path}/store")
    assert GONE not in Bundle.open(tmp_path / "store" / "bundle").query_rows


@pytest.mark.parametrize("before", ["nothing", "a part", "the bundle"])
def test_an_upload_in_whose_middle_a_user_is_forgotten_leaves_the_bundle_or_nothing(
    before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fsspec", reason="needs the extra 'cloud'")
    write_world(tmp_path / "bundle")
    store = tmp_path / "store"
    monkeypatch.setattr(publish, "probed", lambda bundle: None)
    if before != "nothing":
        publish.publish(tmp_path / "bundle", f"file://{store}")
    if before == "a part":  # of an upload that was killed
        (store / "bundle" / "manifest.json").unlink()
    left = {path: path.read_bytes() for path in store.rglob("*") if path.is_file() and before == "the bundle"}
    first(monkeypatch, Store, "put", lambda: forget_in_bundle(tmp_path / "bundle", GONE, dry_run=False), after=True)
    with pytest.raises(BundleError, match=REPLACED):
        publish.publish(tmp_path / "bundle", f"file://{store}")
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == left


def test_an_index_and_a_removal_of_one_bundle_refuse_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_world(tmp_path / "bundle")
    path, refused = tmp_path / "bundle", []

    def beside(command: Callable[[], object]) -> None:
        with pytest.raises(BusyError, match=f"{path}: another command is changing it; give yours again later"):
            command()
        refused.append(command)

    with monkeypatch.context() as patch:
        first(patch, forget_bundle, "_write_manifest", lambda: beside(lambda: build_index.run(path)))
        forget.run(GONE, bundles=[path])
    with monkeypatch.context() as patch:
        first(patch, build_index, "_measure", lambda: beside(lambda: forget.run("u6", bundles=[path])))
        build_index.run(path)
    assert len(refused) == 2
    forget.run("u6", bundles=[path])
    after = Bundle.open(path)
    assert after.manifest.index is not None and not {GONE, "u6"} & set(after.query_names)


def test_a_bundle_that_another_command_replaced_meanwhile_is_not_replaced_by_a_copy_of_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bundle"
    write_world(path)
    write_world(tmp_path / "new", model_version="new")

    def replaced() -> None:
        shutil.rmtree(path)
        (tmp_path / "new").rename(path)

    first(monkeypatch, forget_bundle, "_write_manifest", replaced)
    with pytest.raises(BundleError, match=REPLACED):
        forget.run(GONE, bundles=[path])
    assert Bundle.open(path).manifest.model_version == "new"
    forget.run(GONE, bundles=[path])
    assert GONE not in Bundle.open(path).query_rows


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_bundle_that_came_into_the_root_meanwhile_is_searched_too(
    dry_run: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a fold that ended before the bundle that it read was replaced."""
    root = tmp_path / "bundles"
    write_world(root / "one")
    first(monkeypatch, forget, "forget_in_bundle", lambda: shutil.copytree(root / "one", root / "two"))
    assert set(forget.run(GONE, bundles=[root], dry_run=dry_run)) == {root / "one", root / "two"}
    for name in ("one", "two"):
        assert (GONE in Bundle.open(root / name).query_rows) is dry_run


def test_a_bundle_that_is_being_copied_into_the_root_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "bundles"
    write_world(root / "one")
    half = shutil.ignore_patterns("manifest.json")
    first(monkeypatch, forget, "forget_in_bundle", lambda: shutil.copytree(root / "one", root / "two", ignore=half))
    assert set(forget.run(GONE, bundles=[root])) == {root / "one"}
    assert "removed meanwhile" not in capsys.readouterr().err


def goes(monkeypatch: pytest.MonkeyPatch, name: str, *paths: Path) -> None:
    """Directories are removed before the first call of a function of `forget`."""
    first(monkeypatch, forget, name, lambda: [shutil.rmtree(path) for path in paths])


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize("gone", ["active", "earlier", "all", "bundle"])
def test_bundles_that_were_removed_meanwhile_are_skipped_and_stay_removed(
    dry_run: bool, gone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root, other = tmp_path / "bundles", tmp_path / "other"
    for path in (root / "active", root / "earlier", other):
        write_world(path, lineage={"config": {}})
    for name in ("earlier", "active"):
        Versions(root).activate(name)
    removed = {"all": [root / "active", root / "earlier"], "bundle": [root / "earlier"]}.get(gone, [root / gone])
    goes(monkeypatch, "forget_in_bundle", *removed)
    given = root / "earlier" if gone == "bundle" else root
    stays = [other] if gone in ("bundle", "all") else [other, *({root / "active", root / "earlier"} - {*removed})]
    assert set(forget.run(GONE, bundles=[given, other], dry_run=dry_run)) == {*stays}
    told = capsys.readouterr().err
    for path in (root / "active", root / "earlier"):
        assert path.exists() == (path not in removed)
        assert (f"{path}: removed meanwhile, so there is nothing to search\n" in told) == (path in removed)
    for path in stays:
        assert (GONE in Bundle.open(path).query_rows) is dry_run


def test_a_candidate_that_is_published_meanwhile_is_searched_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "bundles"
    write_world(root / ".day.candidate")
    first(monkeypatch, forget, "forget_in_bundle", lambda: (root / ".day.candidate").rename(root / "day"))
    assert set(forget.run(GONE, bundles=[root])) == {root / "day"}
    assert [path.name for path in root.iterdir()] == ["day"] and GONE not in Bundle.open(root / "day").query_rows


def test_a_data_set_that_was_removed_meanwhile_is_skipped_and_the_next_one_forgets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "events.csv").write_text("user_id,item_id,timestamp\nu1,i1,1\nu2,i1,2\nu1,i2,3\nu2,i2,4\n")
    one, two = tmp_path / "one", tmp_path / "two"
    for out in (one, two):
        prepare.run(DataConfig(split="random", valid_share=0, test_share=0), tmp_path / "events.csv", out)
    goes(monkeypatch, "forget_in_dataset", one)
    assert forget.run("u1", datasets=[one, two]) == {two: {"users": 1, "events": 2}}
    assert f"{one}: removed meanwhile, so there is nothing to search\n" in capsys.readouterr().err
    assert not one.exists()


def test_an_index_of_a_bundle_that_was_removed_meanwhile_makes_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bundle"
    write_world(path)
    first(monkeypatch, build_index, "exclusive", lambda: shutil.rmtree(path))
    with pytest.raises(FileNotFoundError) as error:
        build_index.run(path)
    assert str(error.value) == f"[Errno 2] No such file or directory: '{path}'"
    assert not path.exists()
