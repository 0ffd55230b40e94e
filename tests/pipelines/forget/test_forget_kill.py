"""A `towers forget` that was killed at any step is finished by the next one: nobody else is lost, nothing is left."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.dataset.dataset import Dataset
from pipelines.forget import dataset as forget_dataset
from pipelines.forget import forget
from pipelines.rankers.cache import Cache
from serving.bundle.reader import Bundle
from serving.files import staging
from tests.support.paths import ROOT
from tests.support.worlds.serving import USERS, write_world

GOLDEN = ROOT / "tests" / "golden"
GONE = "u5"
KILL = """
import os, signal, sys
from pathlib import Path
from pipelines.forget import forget
Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
forget.run(sys.argv[2], bundles=[Path(sys.argv[1])])
"""


class Snapshots:
    """Copies of a folder before and after each change of the files beside an output: what a kill there would leave."""

    def __init__(self, folder: Path, copies: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.copies, self.taken = folder, copies, list[Path]()
        for owner, name in (
            (Path, "rename"),
            (Path, "replace"),
            (shutil, "copytree"),
            (staging, "remove"),
            (forget_dataset, "remove"),
        ):
            patch.setattr(owner, name, self._around(getattr(owner, name)))

    def _around(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*args: Any, **kwargs: Any) -> Any:
            self._take()
            result = change(*args, **kwargs)
            self._take()
            return result

        return changed

    def _take(self) -> None:
        copy = self.copies / str(len(self.taken))
        subprocess.run(["cp", "-r", self.folder, copy], check=True)
        self.taken.append(copy)


def of_a_dead_process(folder: Path, process: int) -> bool:
    """Gives what this process left in a copy the number of a dead one; tells whether there is any."""
    left = [path for path in folder.iterdir() if path.name.startswith(".") and f".{os.getpid()}." in path.name]
    for path in left:
        path.rename(path.with_name(path.name.replace(f".{os.getpid()}.", f".{process}.")))
    return bool(left)


@pytest.fixture(scope="module")
def dead() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def holding(folder: Path, user: str) -> list[str]:
    return [str(path) for path in folder.rglob("*") if path.is_file() and user.encode() in path.read_bytes()]


@pytest.mark.long
def test_a_forget_killed_at_any_step_is_finished_in_every_bundle_of_a_root(tmp_path: Path, dead: int) -> None:
    root = tmp_path / "bundles"
    for name in ("one", "two"):
        write_world(root / name)
    with pytest.MonkeyPatch.context() as patch:
        snapshots = Snapshots(root, tmp_path, patch)
        forget.run(GONE, bundles=[root])
    killed_between = 0
    for copy in snapshots.taken:
        left = of_a_dead_process(copy, dead)
        killed_between += left and not all((copy / name).exists() for name in ("one", "two"))
        forget.run(GONE, bundles=[copy])
        assert sorted(path.name for path in copy.iterdir()) == ["one", "two"]
        assert holding(copy, GONE) == []
        for name in ("one", "two"):
            bundle = Bundle.open(copy / name)
            assert list(bundle.query_names) == [f"u{n}" for n in range(USERS) if f"u{n}" != GONE]
            assert bundle.manifest.lineage["forgotten_users"] == 1
    assert killed_between >= 2, "no copy is from between the two renames of a bundle"


def test_a_forget_killed_at_any_step_is_finished_in_a_data_set(tmp_path: Path, dead: int) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    shutil.copytree(GOLDEN / "dataset", folder / "set")
    names = Dataset.open(folder / "set").users["user_id"].to_list()
    (folder / ".set.baselines").mkdir()
    assert Cache.beside(folder / "set").folder == folder / ".set.baselines"
    (folder / ".set.baselines" / "ease.npz").write_text("fitted on the user, too")
    with pytest.MonkeyPatch.context() as patch:
        snapshots = Snapshots(folder, tmp_path, patch)
        forget.run(names[17], datasets=[folder / "set"])
    killed_between = 0
    for copy in snapshots.taken:
        killed_between += of_a_dead_process(copy, dead) and not (copy / "set").exists()
        forget.run(names[17], datasets=[copy / "set"])
        assert [path.name for path in copy.iterdir() if path.name != ".set.digests"] == ["set"]
        assert Dataset.open(copy / "set").users["user_id"].to_list() == [each for each in names if each != names[17]]
    assert killed_between >= 1


@pytest.mark.slow
def test_a_forget_that_is_really_killed_between_the_two_renames_is_finished(tmp_path: Path) -> None:
    write_world(tmp_path / "bundle")
    done = subprocess.run([sys.executable, "-c", KILL, tmp_path / "bundle", GONE], check=False)
    assert done.returncode == -signal.SIGKILL
    assert sorted(path.name.rpartition(".")[2] for path in tmp_path.iterdir()) == ["old", "partial"]
    found = forget.run(GONE, bundles=[tmp_path / "bundle"])
    assert found[tmp_path / "bundle"]["stored users"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"] and holding(tmp_path, GONE) == []
