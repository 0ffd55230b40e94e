"""`active.json`: what operators do to it, against a model of plain lists, and everything that it must not name."""

import json
import os
import shutil
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.bundle.active import Active, Canary
from serving.bundle.versions import LOCK, Versions, bundle_root
from serving.errors import BundleError
from tests.support.worlds.serving import write_versions, write_world

NAMES = ("a", "b", "v 3", "größe")


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    bundle = tmp_path_factory.mktemp("world") / "bundle"
    write_world(bundle, model_version="world-7")
    return bundle / "manifest.json"


def add(root: Path, manifest: Path, *names: str) -> Versions:
    for name in names:
        (root / name).mkdir(parents=True)
        shutil.copy(manifest, root / name / "manifest.json")
    return Versions(root)


class Model:
    """The rules in plain lists."""

    def __init__(self) -> None:
        self.active: str | None = None
        self.previous: list[str] = []
        self.canary: tuple[str, float] | None = None

    def activate(self, name: str) -> bool:
        if self.active not in (None, name):
            self.previous.insert(0, str(self.active))
        self.previous = [each for each in self.previous if each != name]
        self.active = name
        self.canary = None if self.canary and self.canary[0] == name else self.canary
        return True

    def rollback(self) -> bool:
        if not self.previous:
            return False
        self.active = self.previous.pop(0)
        self.canary = None if self.canary and self.canary[0] == self.active else self.canary
        return True

    def set_canary(self, name: str, share: float) -> bool:
        if self.active in (None, name):
            return False
        self.canary = (name, share)
        return True

    def clear_canary(self) -> bool:
        if self.active is None:
            return False
        self.canary = None
        return True

    def as_json(self) -> dict[str, Any]:
        canary = None if self.canary is None else {"bundle": self.canary[0], "share": self.canary[1]}
        return {"active": self.active, "previous": self.previous, "canary": canary}


STEPS = st.one_of(
    st.tuples(st.just("activate"), st.sampled_from(NAMES)),
    st.tuples(st.just("rollback")),
    st.tuples(st.just("set_canary"), st.sampled_from(NAMES), st.sampled_from([0.05, 1.0])),
    st.tuples(st.just("clear_canary")),
)


@given(steps=st.lists(STEPS, max_size=12))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_steps_leave_what_the_rules_say(
    manifest: Path, tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]]
) -> None:
    root = tmp_path_factory.mktemp("root")
    versions, model = add(root, manifest, *NAMES), Model()
    for what, *arguments in steps:
        if getattr(model, what)(*arguments):
            told = getattr(versions, what)(*arguments)
            assert told == (model.active if what == "rollback" else versions.read())
        else:
            with pytest.raises(BundleError):
                getattr(versions, what)(*arguments)
        if model.active is not None:
            assert json.loads((root / "active.json").read_text()) == model.as_json()
    assert {path.name for path in root.iterdir()} - {".lock", "active.json"} == set(NAMES)


def test_twenty_bundles_before_the_active_one_are_remembered(tmp_path: Path, manifest: Path) -> None:
    names = [f"v{number}" for number in range(23)]
    versions = add(tmp_path, manifest, *names)
    for name in names:
        versions.activate(name)
    assert list(versions.read().previous) == names[21:1:-1]


def test_no_operator_loses_the_change_of_another(tmp_path: Path, manifest: Path) -> None:
    names = [f"v{number}" for number in range(20)]
    add(tmp_path, manifest, *names)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: Versions(tmp_path).activate(name), names))
    active = Versions(tmp_path).read()
    assert sorted([active.active, *active.previous]) == sorted(names)


def test_a_rollback_that_another_operator_was_faster_with_changes_nothing(tmp_path: Path, manifest: Path) -> None:
    versions = add(tmp_path, manifest, "a", "b", "c")
    for name in ("a", "b", "c"):
        versions.activate(name)
    assert versions.rollback(expected="b") == "b"
    with pytest.raises(BundleError, match="the previous bundle is now a, not b"):
        versions.rollback(expected="b")
    assert versions.read() == Active(active="b", previous=("a",))


WRONG_NAMES = ["", ".", "..", ".hidden", "../a", "a/b", "/etc", "a\\b", "a\n", "a\0b", "x" * 201, "ä" * 101, "\udc80"]


@pytest.mark.parametrize("name", WRONG_NAMES)
def test_a_name_that_is_no_plain_directory_name_is_refused_everywhere(
    tmp_path: Path, manifest: Path, name: str
) -> None:
    versions = add(tmp_path / "root", manifest, "a", "b")
    versions.activate("a")
    for act in (versions.activate, lambda name: versions.set_canary(name, 0.5), versions.path):
        with pytest.raises(BundleError, match="cannot name a bundle"):
            act(name)
    for content in (
        {"active": name},
        {"active": "a", "previous": [name]},
        {"active": "a", "canary": {"bundle": name, "share": 0.1}},
    ):
        versions.file.write_text(json.dumps(content))
        with pytest.raises(BundleError, match=r"active\.json: damaged"):
            versions.read()


def linked(root: Path) -> None:
    (root.parent / "elsewhere").mkdir()
    shutil.copy(root / "a" / "manifest.json", root.parent / "elsewhere" / "manifest.json")
    (root / "c").symlink_to(root.parent / "elsewhere")


def half_written(root: Path) -> None:
    (root / "c").mkdir()
    (root / "c" / "manifest.json").write_text('{"schema_ver')


NO_BUNDLES: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (lambda root: None, "c: not a bundle: no such directory"),
    "a directory without a manifest": (lambda root: (root / "c").mkdir(), "c: not a bundle: no manifest.json"),
    "a file": (lambda root: (root / "c").write_text("x"), "c: not a bundle: a file"),
    "a link out of the root": (linked, "c: a link"),
    "a damaged manifest": (half_written, "c/manifest.json: .*not valid JSON"),
}


@pytest.mark.parametrize("kind", NO_BUNDLES)
def test_what_is_no_bundle_never_becomes_active(tmp_path: Path, manifest: Path, kind: str) -> None:
    make, reason = NO_BUNDLES[kind]
    versions = add(tmp_path / "root", manifest, "a", "b")
    versions.activate("a")
    before = versions.file.read_bytes()
    make(versions.root)
    for act in (versions.activate, lambda name: versions.set_canary(name, 0.5)):
        with pytest.raises(BundleError, match=reason):
            act("c")
    versions.activate("b")
    shutil.rmtree(versions.root / "a")
    with pytest.raises(BundleError, match="root: a, active before b, is gone; activate one by its name"):
        versions.rollback()
    assert versions.read() == Active(active="b", previous=("a",))
    assert before != versions.file.read_bytes()


def test_what_an_operator_chooses_can_be_read_by_whom_it_could_before(tmp_path: Path, manifest: Path) -> None:
    versions = add(tmp_path, manifest, "a", "b")
    versions.activate("a")
    versions.file.chmod(0o644)
    if not os.geteuid():
        os.chown(versions.file, 10_001, 10_002)
    changes: list[Callable[[], object]] = [lambda: versions.activate("b"), versions.rollback]
    before = os.umask(0o077)  # of an operator on a hardened server
    try:
        for change in (*changes, lambda: versions.set_canary("b", 0.5)):
            change()
            told = versions.file.stat()
            assert stat.S_IMODE(told.st_mode) == 0o644
            assert os.geteuid() or (told.st_uid, told.st_gid) == (10_001, 10_002)
    finally:
        os.umask(before)


def test_a_first_choice_can_be_read_by_whom_the_folder_can(tmp_path: Path, manifest: Path) -> None:
    versions = add(tmp_path, manifest, "a")
    tmp_path.chmod(0o755)
    before = os.umask(0o077)
    try:
        versions.activate("a")
    finally:
        os.umask(before)
    assert stat.S_IMODE(versions.file.stat().st_mode) == 0o644
    assert stat.S_IMODE((tmp_path / LOCK).stat().st_mode) == 0o666


def test_where_the_owner_cannot_stay_the_mode_is_no_narrower(
    tmp_path: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions, chosen = add(tmp_path, manifest, "a", "b"), list[tuple[int, int]]()
    versions.activate("a")
    versions.file.chmod(0o600)

    def refused(path: Path, user: int, group: int) -> None:
        chosen.append((user, group))
        if user >= 0:
            raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chown", refused)
    before = os.umask(0o022)
    try:
        versions.activate("b")
    finally:
        os.umask(before)
    told = versions.file.stat()
    assert stat.S_IMODE(told.st_mode) == 0o644 and chosen == [(told.st_uid, told.st_gid), (-1, told.st_gid)]


def test_the_lock_need_not_be_ones_own_file(tmp_path: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may write to the folder may change what is active. On NFS only a file that can be written can be locked."""
    versions, opened, real = add(tmp_path, manifest, "a"), list[int](), os.open

    def noted(path: Any, flags: int, *more: Any, **options: Any) -> int:
        if str(path).endswith(LOCK):
            opened.append(flags)
            if flags & os.O_RDWR:
                os.close(real(path, flags, 0o444))
                raise PermissionError(13, "Permission denied")
        return real(path, flags, *more, **options)

    monkeypatch.setattr(os, "open", noted)
    versions.activate("a")
    assert opened == [os.O_RDWR | os.O_CREAT, os.O_RDONLY]


@pytest.mark.parametrize("share", [0.0, -0.1, 1.01, float("nan"), float("inf")])
def test_a_share_beyond_all_users_is_refused(tmp_path: Path, manifest: Path, share: float) -> None:
    versions = add(tmp_path, manifest, "a", "b")
    versions.activate("a")
    with pytest.raises(BundleError, match=r"share of the users must lie in \(0, 1\]"):
        versions.set_canary("b", share)


def test_any_part_of_active_json_is_refused_with_its_path(tmp_path: Path, manifest: Path) -> None:
    versions = add(tmp_path, manifest, "a", "b", "v 3")
    for name in ("a", "b"):
        versions.activate(name)
    versions.set_canary("v 3", 0.25)
    whole = versions.file.read_bytes().rstrip()
    for length in range(len(whole)):
        versions.file.write_bytes(whole[:length])
        for act in (versions.read, versions.list, versions.rollback, lambda: versions.activate("a")):
            with pytest.raises(BundleError, match=r"active\.json: damaged"):
                act()
    versions.file.write_bytes(whole)
    assert versions.read() == Active(active="b", previous=("a",), canary=Canary(bundle="v 3", share=0.25))


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ({}, "active: "),
        ({"active": 1}, "active: "),
        ({"active": "a", "former": []}, "former: "),
        ({"active": "a", "previous": ["b"] * 21}, "previous: "),
        ({"active": "a", "canary": {"bundle": "b", "share": 0}}, "canary.share: "),
        ({"active": "a", "canary": {"bundle": "b", "share": "0.5"}}, "canary.share: "),
        ({"active": "a", "canary": {"bundle": "a", "share": 0.5}}, "a is the active bundle"),
    ],
)
def test_active_json_by_hand_is_held_to_the_same_rules(tmp_path: Path, content: dict[str, Any], where: str) -> None:
    (tmp_path / "active.json").write_text(json.dumps(content))
    with pytest.raises(BundleError, match=f"active.json: damaged: .*{where}"):
        Versions(tmp_path).read()


def test_the_list_tells_states_and_problems_newest_first(tmp_path: Path, manifest: Path) -> None:
    versions = add(tmp_path / "root", manifest, "a", "b", "d", ".b.0.1.partial")
    assert [(info.name, info.state) for info in versions.list()] == [("a", ""), ("b", ""), ("d", "")]
    write_world(versions.root / "new", model_version="world-8")
    half_written(versions.root)
    (versions.root / "no bundle").mkdir()
    add(versions.root, manifest, "z\udc80", "old")
    for name in ("old", "a", "d", "new"):
        versions.activate(name)
    versions.set_canary("b", 0.5)
    for name in ("old", "d"):  # a rollback would take the second one
        shutil.rmtree(versions.root / name)
    infos = versions.list()
    states = {info.name: info.state for info in infos}
    assert states == {"new": "active", "a": "previous", "b": "canary", "c": "", "d": "previous", "z\udc80": ""}
    assert list(states) == ["new", "a", "b", "c", "d", "z\udc80"]
    assert [(info.model_version, info.items) for info in infos[:3]] == [("world-8", 60), *[("world-7", 60)] * 2]
    assert [info.problem is None for info in infos] == [True, True, True, False, False, False]
    assert "c/manifest.json" in str(infos[3].problem) and "d: not a bundle" in str(infos[4].problem)
    assert "cannot name a bundle" in str(infos[5].problem)


@pytest.mark.parametrize("file", ["item_vectors.npy", "query_tower/saved_model.pb"])
def test_the_list_has_a_bundle_without_a_manifest_and_no_other_directory(
    tmp_path: Path, manifest: Path, file: str
) -> None:
    """As a copy that was interrupted leaves one."""
    versions = add(tmp_path / "root", manifest, "a")
    for name in ("half", ".half.0.1.partial"):
        (versions.root / name / file).parent.mkdir(parents=True)
        (versions.root / name / file).write_bytes(b"")
    for name in ("logs", "dataset"):
        (versions.root / name).mkdir()
        (versions.root / name / f"{name}.json").write_bytes(b"")
    infos = versions.list()
    assert [(info.name, info.state, info.items) for info in infos] == [("a", "", 60), ("half", "", None)]
    assert "half: not a bundle: no manifest.json" in str(infos[1].problem)


def test_a_path_is_a_bundle_or_a_root_of_bundles_or_neither(tmp_path: Path, manifest: Path) -> None:
    root = tmp_path / "my root"
    versions = add(root, manifest, "a")
    assert bundle_root(root / "a") is None
    with pytest.raises(BundleError, match=f"none of its bundles is active; .* activate NAME --root '{root}'"):
        bundle_root(root)
    versions.activate("a")
    found = bundle_root(root)
    assert found is not None and found.read().active == "a"
    (tmp_path / "empty").mkdir()
    with pytest.raises(BundleError, match=r"empty: not a bundle: no manifest.json in it, and no bundles"):
        bundle_root(tmp_path / "empty")
    for act in (bundle_root, lambda path: Versions(path).list(), lambda path: Versions(path).clear_canary()):
        with pytest.raises(BundleError, match=r"nowhere: .*no such directory"):
            act(tmp_path / "nowhere")


def test_a_rollback_to_a_damaged_bundle_changes_nothing(tmp_path: Path) -> None:
    write_versions(tmp_path, "a", "b")
    versions = Versions(tmp_path)
    versions.activate("a")
    versions.activate("b")
    (tmp_path / "a" / "manifest.json").write_text("{")
    with pytest.raises(BundleError, match="not valid JSON"):
        versions.rollback()
    assert versions.read().active == "b"
