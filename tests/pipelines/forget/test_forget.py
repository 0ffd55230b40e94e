"""A forgotten user is in no file of a bundle, its towers or a state, and everyone else is answered as before."""

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from typer.testing import CliRunner

from pipelines.cli.app import app
from pipelines.dataset.dataset import Dataset
from pipelines.errors import DataError
from pipelines.forget import forget
from pipelines.forget.bundle import forget_in_bundle
from pipelines.ingest import prepare
from pipelines.launch.gate import model_of
from serving.bundle.encoder import Encoder
from serving.bundle.index_writer import replace_index
from serving.bundle.manifest import FeatureSpec, IndexInfo, read_manifest
from serving.bundle.reader import Bundle
from serving.bundle.versions import Versions
from serving.catalogue.journal import Impression, UserEvent
from serving.catalogue.sqlite_journal import SqliteJournal
from serving.catalogue.updates import CatalogueUpdates
from serving.errors import BundleError
from serving.files.staging import sibling
from serving.recall.query import RecallQuery
from serving.recall.recaller import Recaller
from serving.search.exact import ExactIndex
from tests.support.paths import ROOT
from tests.support.worlds.serving import USERS, ArithmeticEncoder, seen_rows, write_world
from towers.config.sections import DataConfig

GOLDEN = ROOT / "tests" / "golden"


def holding(folder: Path, user: str) -> list[str]:
    """The files in which an id stands, in any place."""
    return [str(path) for path in folder.rglob("*") if path.is_file() and user.encode() in path.read_bytes()]


def left_over(out: Path) -> Path:
    """What a process that was killed while it removed the old content leaves: that of before, with the user."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    old = sibling(out, "old")
    old = old.with_name(old.name.replace(f".{os.getpid()}.", f".{process.pid}."))
    shutil.copytree(out, old)
    return old


@pytest.mark.slow
def test_a_user_leaves_no_trace_in_a_bundle_and_its_towers(tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    shutil.copytree(GOLDEN / "bundle", path)
    before = Bundle.open(path)
    names = list(before.query_names)
    requests = [{"user_id": name} for name in names] + [{"user_id": "x", "country": "FR"}]
    vectors = Encoder.of_queries(before).encode(requests)
    seen = [before.seen(row).tolist() for row in range(len(names))]
    gone = [names[0], names[17]]
    for count, user in enumerate(gone, start=1):
        assert forget_in_bundle(path, user, dry_run=True) == {
            "stored users": 1, "seen items": len(seen[names.index(user)]), "rows of towers": 1,
        }  # fmt: skip
        assert holding(path, user)
        forget_in_bundle(path, user, dry_run=False)
        assert holding(path, user) == []
        assert Bundle.open(path).manifest.lineage["forgotten_users"] == count
    after = Bundle.open(path)
    rest = [row for row, name in enumerate(names) if name not in gone]
    assert list(after.query_names) == [names[row] for row in rest]
    assert np.array_equal(after.query_vectors, before.query_vectors[rest])
    assert [after.seen(row).tolist() for row in range(len(rest))] == [seen[row] for row in rest]
    assert after.manifest.index == before.manifest.index and after.manifest.items == before.manifest.items
    assert after.manifest.model_version != before.manifest.model_version
    found = Encoder.of_queries(after).encode(requests)
    rows = [*rest, len(names)]
    assert np.array_equal(found[rows], vectors[rows]), "bit for bit"
    assert not found[[names.index(user) for user in gone]].any(), "the tower has learnt nothing of this user"
    now, then = (embeddings(folder / "query_tower") for folder in (path, GOLDEN / "bundle"))
    lines = (GOLDEN / "bundle" / "query_tower" / "assets" / "query.user_id.txt").read_text(encoding="utf-8").split("\n")
    rows = [1 + lines.index(user) for user in gone]
    assert then[rows].any(axis=1).all() and not now[rows].any()
    assert np.array_equal(np.delete(now, rows, axis=0), np.delete(then, rows, axis=0))
    # Another bundle of the same model, with other popular items, forgets the same users, in another order.
    other = tmp_path / "other"
    shutil.copytree(GOLDEN / "bundle", other)
    for user in reversed(gone):
        forget_in_bundle(other, user, dry_run=False)
    assert model_of(read_manifest(other)) == model_of(after.manifest) != model_of(before.manifest)
    cut = after.manifest.model_copy(update={"dimension": 1})
    assert model_of(cut) != model_of(after.manifest)


def test_the_types_of_the_other_users_events_stay_with_them(tmp_path: Path) -> None:
    types = [[row % 3 - 1 for row in seen_rows(user)] for user in range(USERS)]
    write_world(tmp_path / "bundle", event_types=("buy", "click"), seen_types=[each for line in types for each in line])
    forget_in_bundle(tmp_path / "bundle", "u5", dry_run=False)
    after = Bundle.open(tmp_path / "bundle")
    left = [after.seen_types(row) for row in range(USERS - 1)]
    assert [each.tolist() for each in left if each is not None] == types[:5] + types[6:]


def embeddings(tower: Path) -> np.ndarray:
    """The table of the user ids, whose feature is the first: row 0 for missing ones, then a row per line."""
    checkpoint = tf.train.load_checkpoint(str(tower / "variables" / "variables"))
    return np.asarray(checkpoint.get_tensor("tower/encoders/0/table/.ATTRIBUTES/VARIABLE_VALUE"))


def opened(path: Path, state: Path) -> tuple[Recaller, CatalogueUpdates]:
    bundle = Bundle.open(path)
    recaller = Recaller(bundle, ExactIndex(bundle.item_vectors), ArithmeticEncoder())
    live = CatalogueUpdates(SqliteJournal.open(state), lambda bundle: ArithmeticEncoder())  # type: ignore[arg-type,return-value]
    recaller.planner.users = live.users
    live.attach(recaller.catalogue)
    return recaller, live


def test_a_worker_drops_a_users_events_and_keeps_those_of_others(tmp_path: Path) -> None:
    write_world(tmp_path / "bundle")
    recaller, live = opened(tmp_path / "bundle", tmp_path / "state")
    live.add_events([UserEvent("a", "new", "i1", 5), UserEvent("b", "other", "i1", 5), UserEvent("c", "new", "i2", 6)])
    live.add_impressions([Impression("s", "r", "new", ("i1",), 4)])
    assert recaller.recall(RecallQuery(user_id="new", k=1)).source == "history"
    counts = forget.run("new", state=tmp_path / "state")
    assert counts == {tmp_path / "state": {"events": 2, "impressions": 1}}
    assert live.refresh() and not live.refresh()
    assert recaller.recall(RecallQuery(user_id="new", k=1)).source == "popular"
    assert [each.item_id for each in live.users.taken("other")] == ["i1"] and not live.users.taken("new")
    assert (live.users.count, dict(live.users.item_counts)) == (1, {"i1": 1})
    assert holding(tmp_path / "state", "new") == []
    live.add_events([UserEvent("d", "new", "i3", 7)])
    assert [each.item_id for each in live.users.taken("new")] == ["i3"], "the same person may come again"


def test_every_bundle_of_a_root_is_searched_so_that_a_rollback_stays_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "bundles"
    for name in ("one", "two", "three"):
        write_world(root / name, model_version=f"world-{name}", lineage={"config": {}})
    versions = Versions(root)
    for name in ("one", "two"):
        versions.activate(name)
    versions.set_canary("three", 0.5)
    before = versions.read()
    found = forget.run("u5", bundles=[root], dry_run=True)
    assert {path.name for path in found} == {"one", "two", "three"}
    assert all(counts == {"stored users": 1, "seen items": len(seen_rows(5))} for counts in found.values())
    assert "u5" in Bundle.open(root / "one").query_rows and "would remove" in capsys.readouterr().out
    assert forget.run("u5", bundles=[root]) == found
    told = capsys.readouterr().out
    assert len(told.splitlines()) == 3 and told.count("train again") == 3
    assert "u5" not in told.replace(str(tmp_path), "")
    assert versions.read() == before
    for name in ("one", "two", "three"):
        assert "u5" not in Bundle.open(root / name).query_rows
        assert Bundle.open(root / name).manifest.queries == USERS - 1
    assert versions.rollback() == "one"
    assert forget.run("u5", bundles=[root]) == {}
    assert "in none of these places; nothing was changed" in capsys.readouterr().err


def test_a_root_may_hold_more_bundles_than_file_handles(tmp_path: Path) -> None:
    write_world(tmp_path / "root" / "0")
    for name in range(1, 12):
        shutil.copytree(tmp_path / "root" / "0", tmp_path / "root" / str(name))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    handles = len([*Path("/proc/self/fd").iterdir()])
    resource.setrlimit(resource.RLIMIT_NOFILE, (handles + 60, limits[1]))
    try:
        assert len(forget.run("u5", bundles=[tmp_path / "root"])) == 12
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def access(path: Path) -> dict[str, tuple[int, int]]:
    """Owner and mode of all that a directory holds, and of itself."""
    found = {str(each.relative_to(path)): each.stat() for each in (path, *path.rglob("*")) if each.name[0] != "."}
    return {name: (stat.st_uid, stat.st_mode) for name, stat in found.items()}


def test_those_who_could_read_a_bundle_can_read_it_without_the_user_and_with_another_index(tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    write_world(path)
    for each in (path, *path.rglob("*")):
        each.chmod(0o755 if each.is_dir() else 0o644)
        if not os.geteuid():
            os.chown(each, 65534, 65534)
    before, umask = access(path), os.umask(0o077)
    try:
        forget.run("u5", bundles=[path])
        assert access(path) == before
        made = path / ".made"
        made.mkdir()
        (made / "codes").write_text("new")
        place = replace_index(path, IndexInfo(kind="scann", path="index"), made).index.path  # type: ignore[union-attr]
        assert place is not None
    finally:
        os.umask(umask)
    owner = before["."][0]
    new = {"index": (owner, before["."][1]), place: (owner, before["."][1])}
    assert access(path) == before | new | {f"{place}/codes": before["manifest.json"]}


@pytest.mark.parametrize("user", ["u5", "nobody"])
def test_a_tower_that_towers_did_not_export_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], user: str
) -> None:
    path = tmp_path / "bundle"
    write_world(path, features=[FeatureSpec(name="user", kind="id", dtype="string")])
    forget.run(user, bundles=[path])
    told = (
        f"{path}: its towers were not written by `towers export`, so not searched; they may hold the user's id and row"
    )
    assert capsys.readouterr().out.splitlines()[-1] == told
    write_world(tmp_path / "other", features=[], lineage={})
    forget.run(user, bundles=[tmp_path / "other"])
    assert "not written by" not in capsys.readouterr().out, "it takes no user"


def test_what_was_removed_is_no_bundle_and_what_is_not_published_is_one(tmp_path: Path) -> None:
    root = tmp_path / "bundles"
    versions = Versions(root)
    for name in ("one", "two", ".2026-11-26-abc.candidate"):
        write_world(root / name)
        if name[0] != ".":
            versions.activate(name)
    shutil.rmtree(root / "one")  # `active.json` still names it, as the last days of `towers daily`
    found = forget.run("u5", bundles=[root])
    assert {path.name for path in found if isinstance(path, Path)} == {"two", ".2026-11-26-abc.candidate"}
    for name in ("two", ".2026-11-26-abc.candidate"):
        assert "u5" not in Bundle.open(root / name).query_rows


def test_a_link_leads_to_the_bundle_that_forgets(tmp_path: Path) -> None:
    write_world(tmp_path / "store" / "one")
    (tmp_path / "current").symlink_to(tmp_path / "store" / "one")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "two").symlink_to(tmp_path / "store" / "one")
    old = left_over(tmp_path / "store" / "one")
    found = forget.run("u5", bundles=[tmp_path / "current", tmp_path / "root"])
    assert not old.exists()
    assert list(found) == [tmp_path / "store" / "one"]
    assert (tmp_path / "current").is_symlink() and (tmp_path / "root" / "two").is_symlink()
    assert "u5" not in Bundle.open(tmp_path / "store" / "one").query_rows


def test_what_a_killed_index_left_does_not_become_part_of_the_bundle(tmp_path: Path) -> None:
    write_world(tmp_path / "bundle")
    left = tmp_path / "bundle" / ".index.999999.partial"
    left.mkdir()
    (left / "scann_config.pb").touch()
    forget_in_bundle(tmp_path / "bundle", "u3", dry_run=False)
    assert not [name for name in read_manifest(tmp_path / "bundle").files if name.startswith(".")]
    assert not left.exists()


def test_the_last_user_and_one_without_seen_items_can_go(tmp_path: Path) -> None:
    write_world(tmp_path / "bundle", users=1)
    assert forget.run("u0", bundles=[tmp_path / "bundle"]) == {tmp_path / "bundle": {"stored users": 1}}
    empty = Bundle.open(tmp_path / "bundle")
    assert (empty.manifest.queries, len(empty.query_names)) == (0, 0)


def test_the_profile_of_a_user_goes_unless_another_user_has_the_same(tmp_path: Path) -> None:
    profiles = [{"age": float(user // 2)} for user in range(USERS - 1)] + [{"age": 77.0}]
    write_world(tmp_path / "bundle", profiles=profiles)
    forget.run("u4", bundles=[tmp_path / "bundle"])
    forget.run(f"u{USERS - 1}", bundles=[tmp_path / "bundle"])
    left = Bundle.open(tmp_path / "bundle")
    rest = [row for row in range(USERS - 1) if row != 4]
    assert left.profiles is not None and list(left.profiles) == [profiles[row] for row in rest]
    text = (tmp_path / "bundle" / "query_profile_bytes.npy").read_bytes()
    assert b"77.0" not in text and b"2.0" in text  # u5 is of the same age as u4


def test_runs_that_saw_the_user_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("run", "dataset"):
        shutil.copytree(GOLDEN / name, tmp_path / name)
    run, dataset = tmp_path / "run", tmp_path / "dataset"
    trained = json.loads((run / "summary.json").read_text(encoding="utf-8"))["dataset"]
    user = (run / "vocabulary" / "query.user_id.txt").read_text(encoding="utf-8").split("\n")[4]
    found = forget.run(user, datasets=[dataset], runs=[run])
    assert set(found) == {dataset, run}
    told = capsys.readouterr().out
    assert trained[:12] in told and f"{run}: saw the user; train again" in told
    assert set(forget.run(user, datasets=[dataset], runs=[run])) == {run}, "its vocabulary tells it still"
    capsys.readouterr()
    assert forget.run("nobody", datasets=[dataset], runs=[run]) == {}
    told = capsys.readouterr()
    # The data set is no longer the one that it was trained on.
    assert told.out == f"{run}: may have seen the user: its vocabularies and the data sets given do not tell\n"
    assert "nothing was changed" not in told.err
    assert forget.run("nobody", datasets=[GOLDEN / "dataset"], runs=[run], dry_run=True) == {}
    told = capsys.readouterr()
    assert told.out == "" and "in none of these places; nothing was changed" in told.err
    (run / "vocabulary" / "query.user_id.txt").write_text("")  # as of a model that knows no user's id
    other = Dataset.open(dataset).users["user_id"][0]
    assert set(forget.run(other, datasets=[dataset], runs=[run])) == {dataset, run}, "trained before the first one went"


def test_an_empty_text_is_nobodys_id() -> None:
    with pytest.raises(DataError) as error:
        forget.run("", datasets=[GOLDEN / "dataset"], dry_run=True)
    assert str(error.value) == "--user '': is empty, so it is nobody's id"


def test_the_next_command_trains_on_the_data_set_of_the_run(tmp_path: Path) -> None:
    for name in ("run", "dataset"):
        shutil.copytree(GOLDEN / name, tmp_path / name)
    run, dataset, other = (tmp_path / name for name in ("run", "dataset", "other"))
    user = (run / "vocabulary" / "query.user_id.txt").read_text(encoding="utf-8").split("\n")[4]
    (tmp_path / "events.csv").write_text(f"user_id,item_id\n{user},a\n" + "".join(f"v{n},b\n" for n in range(9)))
    prepare.run(DataConfig(split="random", valid_share=0, test_share=0), tmp_path / "events.csv", other)
    words = ["forget", "--user", user, "--dataset", str(other), "--dataset", str(dataset), "--run", str(run)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert f"train --dataset {dataset} --config {run / 'config.toml'} --overwrite --out {run}\n" in done.output


def test_bytes_that_are_no_text_are_nobodys_id(tmp_path: Path) -> None:
    write_world(tmp_path / "bundle")
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    with pytest.raises(DataError) as error:
        forget.run(os.fsdecode(b"\x80x"), bundles=[tmp_path / "bundle"])
    assert str(error.value) == r"--user '\udc80x': its bytes are no UTF-8, so it is nobody's id"
    assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before


def test_a_place_that_is_not_what_it_should_be_stops_before_anything_is_removed(tmp_path: Path) -> None:
    write_world(tmp_path / "bundle")
    write_world(tmp_path / "bundles" / "good")
    (tmp_path / "bundles" / "bad").mkdir()
    (tmp_path / "bundles" / "bad" / "manifest.json").write_text("{")
    for name in ("whole", "half"):
        write_world(tmp_path / "copies" / name)
    (tmp_path / "copies" / "half" / "manifest.json").unlink()  # An interrupted copy may hold the user, too.
    write_world(tmp_path / "altered")
    vectors = tmp_path / "altered" / "item_vectors.npy"
    content = bytearray(vectors.read_bytes())
    content[-1] ^= 1
    vectors.write_bytes(content)
    journal = SqliteJournal.open(tmp_path / "state")
    journal.add_events([UserEvent("a", "u5", "i1", 5)])
    journal.close()
    altered = {"state": tmp_path / "state", "bundles": [tmp_path / "bundle", tmp_path / "altered"]}
    runs = {name: tmp_path / name for name in ("half run", "cut run", "file")}
    for name, text in (("half run", '{"dataset": "1"}'), ("cut run", "{")):
        runs[name].mkdir()
        (runs[name] / "summary.json").write_text(text)
    runs["file"].touch()
    for places, error, said in (
        ({}, DataError, "name at least one place"),
        ({"bundles": [tmp_path / "bundle", tmp_path / "bundles"]}, BundleError, "bad.*truncated or altered"),
        ({"bundles": [tmp_path / "copies"]}, BundleError, r"half: not a bundle: no manifest\.json"),
        (altered, BundleError, r"altered.item_vectors\.npy.*nothing was removed: restore or remove this bundle"),
        ({"bundles": [tmp_path / "bundle", tmp_path / "none"]}, BundleError, "no such directory"),
        ({"bundles": [tmp_path / "bundle"], "datasets": [tmp_path]}, DataError, "not a data set"),
        ({"bundles": [tmp_path / "bundle"], "runs": [tmp_path]}, DataError, r"finished run \(no summary\.json\)$"),
        ({"bundles": [tmp_path / "bundle"], "runs": [runs["half run"]]}, DataError, r"run \(no features\.json\)$"),
        ({"bundles": [tmp_path / "bundle"], "runs": [runs["cut run"]]}, DataError, "not a finished run, or damaged"),
        ({"bundles": [tmp_path / "bundle"], "runs": [runs["file"]]}, DataError, "not a finished run, or damaged"),
        ({"bundles": [tmp_path / "bundle"], "state": tmp_path}, DataError, r"no journal\.sqlite in it"),
    ):  # fmt: skip
        with pytest.raises(error, match=said):
            forget.run("u5", **places)  # type: ignore[arg-type]
        assert "u5" in Bundle.open(tmp_path / "bundle").query_rows
    assert forget.run("u5", state=tmp_path / "state") == {tmp_path / "state": {"events": 1}}, "it was still there"
