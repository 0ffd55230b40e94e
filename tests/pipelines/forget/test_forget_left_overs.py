"""What a command under another host name left is never passed over: the user may be in it."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pipelines.dataset.dataset import Dataset
from pipelines.errors import DataError
from pipelines.forget import forget
from serving.bundle.reader import Bundle
from serving.bundle.versions import Versions
from serving.errors import BundleError
from serving.files import staging
from tests.support.paths import ROOT
from tests.support.worlds.serving import write_world

GONE = "u5"


def left_by(machine: str, out: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path beside an output that a dead process of a machine had."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with monkeypatch.context() as patch:
        patch.setattr(staging.platform, "node", lambda: machine)
        patch.setattr(staging.os, "getpid", lambda: process.pid)
        return staging.sibling(out, kind)


def of_two(root: Path) -> Path:
    for name in ("one", "two"):
        write_world(root / name, model_version=name)
    return root


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize("kind", ["partial", "old"])
def test_a_copy_that_another_pod_left_stops_the_command_until_it_is_removed(
    kind: str, dry_run: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "bundles"
    write_world(root / "one")
    write_world(tmp_path / "elsewhere" / "two")
    (root / "two").symlink_to(tmp_path / "elsewhere" / "two")
    (root / "file").touch()
    shutil.copytree(ROOT / "tests" / "golden" / "dataset", tmp_path / "data")
    user = Dataset.open(tmp_path / "data").users["user_id"][3]
    left_by("pod-a", root / "active.json", "partial", monkeypatch).touch()  # holds names of bundles alone
    for out, places in (
        (root / "one", {"bundles": [root]}),
        (root / "gone", {"bundles": [root]}),
        (root / "one", {"bundles": [root / "one"]}),
        (tmp_path / "elsewhere" / "two", {"bundles": [root]}),
        (tmp_path / "data", {"datasets": [tmp_path / "data"]}),
    ):
        left = left_by("pod-a", out, kind, monkeypatch)
        shutil.copytree(root / "one", left)
        todo = f"rename {left} to gone" if (kind, out.name) == ("old", "gone") else f"remove {left}"
        with pytest.raises(DataError, match=f"^{out.parent}: a command on another machine .* if it has ended, {todo};"):
            forget.run(user, **places, dry_run=dry_run)  # type: ignore[arg-type]
        assert left.exists()
        shutil.rmtree(left)
    assert user in Dataset.open(tmp_path / "data").users["user_id"], "nothing was removed"
    assert len(forget.run(GONE, bundles=[root], dry_run=dry_run)) == 2


@pytest.mark.parametrize("machine", ["pod-a", staging.platform.node()])
def test_an_active_bundle_that_was_moved_aside_is_named_and_forgets_once_it_is_back(
    machine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill between the two renames; of this machine only if the new content is gone, else it is put back."""
    root = of_two(tmp_path / "bundles")
    Versions(root).activate("one")
    old = left_by(machine, root / "one", "old", monkeypatch)
    (root / "one").rename(old)
    with pytest.raises(DataError, match=f"rename {old} to one; then give the command again"):
        forget.run(GONE, bundles=[root])
    assert GONE in Bundle.open(root / "two").query_rows, "nothing was removed"
    old.rename(root / "one")
    assert set(forget.run(GONE, bundles=[root])) == {root / "one", root / "two"}


@pytest.mark.parametrize("state", ["active", "canary"])
def test_a_bundle_that_answers_and_is_missing_stops_the_command(state: str, tmp_path: Path) -> None:
    root = of_two(tmp_path / "bundles")
    Versions(root).activate("one")
    Versions(root).set_canary("two", 0.5)
    missing = root / {"active": "one", "canary": "two"}[state]
    shutil.rmtree(missing)
    with pytest.raises(
        BundleError, match=f"{missing}: missing, but {root}/active.json names it as {state}; restore it"
    ):
        forget.run(GONE, bundles=[root])


def test_copies_of_a_store_that_another_pod_left_stop_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fsspec", reason="needs the extra 'cloud'")
    write_world(tmp_path / "store" / "one")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", os.fspath(tmp_path / "tmp"))
    left = left_by("pod-a", tmp_path / "tmp" / "towers-forget", "partial", monkeypatch)
    left.mkdir()
    with pytest.raises(DataError, match=f"remove {left}; then give the command again"):
        forget.run(GONE, bundles=[f"file://{tmp_path}/store"])
    left.rmdir()
    assert len(forget.run(GONE, bundles=[f"file://{tmp_path}/store"])) == 1
