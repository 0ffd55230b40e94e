"""Staging: complete output or none, and what killed processes left beside the output goes away at the next attempt."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.bundles import build_index
from pipelines.cli import demo
from pipelines.cli.exit_codes import exit_code
from pipelines.ingest import prepare
from serving.bundle.reader import Bundle
from serving.files import staging
from serving.files.staging import OutputExistsError, publish, refuse_existing, staged
from tests.support.worlds.serving import write_world
from towers.config.sections import DataConfig

HOLD = """
import sys, time
from pathlib import Path
from serving.files.staging import staged
with staged(Path(sys.argv[1]), overwrite=True) as path:
    path.mkdir()
    (path / "half").write_text("half")
    print("staged", flush=True)
    time.sleep(600)
"""


def holding(out: Path) -> "subprocess.Popen[str]":
    """Another process that has begun to write `out`."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(out)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "staged\n"
    return process


@pytest.fixture
def living(tmp_path: Path) -> Iterator[Path]:
    process = holding(tmp_path / "out")
    (half,) = tmp_path.glob(".out.*.partial")
    yield half
    process.kill()
    process.wait()


def killed(out: Path) -> None:
    process = holding(out)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def write(out: Path, text: str = "whole", *, overwrite: bool = False) -> None:
    with staged(out, overwrite=overwrite, marker="file") as path:
        path.mkdir()
        (path / "file").write_text(text)


def test_what_a_killed_process_left_is_removed_at_the_next_attempt(tmp_path: Path) -> None:
    killed(tmp_path / "out")
    killed(tmp_path / "other")
    assert len(names(tmp_path)) == 2
    with staged(tmp_path / "out") as path:
        assert len(list(tmp_path.glob(".out.*"))) == 0
        path.write_text("whole")
    assert (tmp_path / "out").read_text() == "whole"
    left = [name for name in names(tmp_path) if name != "out"]
    assert len(left) == 1 and left[0].startswith(".other.")


def test_a_name_with_the_signs_of_a_pattern_is_taken_literally(tmp_path: Path) -> None:
    killed(tmp_path / "out[12]*")
    killed(tmp_path / "out1x")
    write(tmp_path / "out[12]*")
    assert len(names(tmp_path)) == 2
    assert any(name.startswith(".out1x.") for name in names(tmp_path))


def test_what_a_living_process_writes_is_left_alone(tmp_path: Path, living: Path) -> None:
    write(tmp_path / "out")
    assert (living / "half").read_text() == "half"
    assert (tmp_path / "out" / "file").read_text() == "whole"


def dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def left_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, machine: str, process: int, kind: str) -> Path:
    """What that process of that machine would have left beside `out`."""
    with monkeypatch.context() as patch:
        patch.setattr(staging.platform, "node", lambda: machine)
        patch.setattr(staging.os, "getpid", lambda: process)
        path = staging.sibling(tmp_path / "out", kind)
    path.mkdir()
    (path / "file").write_text("left")
    return path


@pytest.mark.parametrize("kind", ["partial", "old"])
def test_a_process_number_of_another_machine_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    here = left_by(tmp_path, monkeypatch, machine=staging.platform.node(), process=dead_process(), kind=kind)
    elsewhere = left_by(tmp_path, monkeypatch, machine="elsewhere", process=dead_process(), kind=kind)
    write(tmp_path / "out")
    assert not here.exists() and elsewhere.exists()


@pytest.mark.parametrize("kind", ["partial", "old"])
def test_a_process_with_the_number_of_a_killed_one_takes_nothing_for_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """As process 1 of a container that starts again."""
    left = left_by(tmp_path, monkeypatch, machine=staging.platform.node(), process=os.getpid(), kind=kind)
    monkeypatch.setattr(staging, "_ours", set())
    write(tmp_path / "out")
    assert names(tmp_path) == ["out"] and not left.exists()


def test_what_this_process_writes_is_its_own_whatever_the_path_is_called(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with staged(tmp_path / "link" / "out") as path:
        path.write_text("half")
        staging.remove_left_overs(tmp_path / "real")
        assert path.read_text() == "half"


def test_a_process_with_the_number_of_a_killed_one_puts_back_what_that_had_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("partial", "old"):
        left_by(tmp_path, monkeypatch, machine=staging.platform.node(), process=os.getpid(), kind=kind)
    staging.put_back(tmp_path)
    assert not (tmp_path / "out").exists(), "this process is writing it"
    monkeypatch.setattr(staging, "_ours", set())
    staging.put_back(tmp_path)
    assert (tmp_path / "out" / "file").read_text() == "left"


def test_old_content_is_kept_until_there_is_an_output_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill between the two renames of a replacement: the old content is then the only one."""
    old = left_by(tmp_path, monkeypatch, machine=staging.platform.node(), process=dead_process(), kind="old")
    with pytest.raises(KeyboardInterrupt), staged(tmp_path / "out"):
        assert old.exists()
        raise KeyboardInterrupt
    assert (old / "file").read_text() == "left"
    write(tmp_path / "out")
    assert names(tmp_path) == ["out"]


def test_a_kill_while_the_old_content_is_removed_leaves_nothing_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "out", "first")
    left_by(tmp_path, monkeypatch, machine=staging.platform.node(), process=dead_process(), kind="old")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "file").write_text("second")
    publish(tmp_path / "work", tmp_path / "out")
    assert names(tmp_path) == ["out"] and (tmp_path / "out" / "file").read_text() == "second"


@pytest.mark.parametrize("rename", ["rename", "replace"])
def test_a_signal_just_after_a_rename_leaves_the_old_content_or_the_new_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rename: str
) -> None:
    out, original = tmp_path / "out", getattr(Path, rename)
    write(out, "old")

    def interrupted(path: Path, target: Path) -> None:
        original(path, target)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, rename, interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(out, "new", overwrite=True)
    assert (out / "file").read_text() == ("old" if rename == "rename" else "new")
    write(out, "again", overwrite=True)
    assert (out / "file").read_text() == "again" and names(tmp_path) == ["out"]


def test_replacing_and_refusing(tmp_path: Path) -> None:
    write(tmp_path / "out", "first")
    with pytest.raises(OutputExistsError, match="out already exists"):
        write(tmp_path / "out", "second")
    write(tmp_path / "out", "third", overwrite=True)
    assert names(tmp_path) == ["out"] and (tmp_path / "out" / "file").read_text() == "third"
    with pytest.raises(RuntimeError), staged(tmp_path / "out", overwrite=True, marker="file") as path:
        path.write_text("half")
        raise RuntimeError
    assert names(tmp_path) == ["out"] and (tmp_path / "out" / "file").read_text() == "third"


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_another_process_made_meanwhile_is_no_more_replaced_than_what_was_there(
    tmp_path: Path, *, overwrite: bool
) -> None:
    """Two commands at once; with `overwrite` what appears is of another kind."""
    out = tmp_path / "out"
    with pytest.raises(OutputExistsError), staged(out, overwrite=overwrite, marker="file") as path:
        path.mkdir()
        (path / "file").write_text("second")
        out.mkdir()
        (out / ("another" if overwrite else "file")).write_text("first")
    assert [each.read_text() for each in out.iterdir()] == ["first"]
    assert names(tmp_path) == ["out"]


def test_content_is_on_the_disk_before_its_name_and_the_name_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    replace, fsync = Path.replace, os.fsync

    def flushed(handle: int) -> None:
        fsync(handle)
        done.append(f"flush {Path(f'/proc/self/fd/{handle}').readlink().name}")

    def renamed(self: Path, target: Path) -> Path:
        done.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(Path, "replace", renamed)
    with staged(tmp_path / "out") as staging:
        staging.mkdir()
        (staging / "file").write_text("whole")
    folder, file, *rest = done
    assert folder.startswith("flush .out.") and file == "flush file"
    assert rest == ["rename", f"flush {tmp_path.name}"]


def test_publishing_does_not_walk_the_folder_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    flushed: list[Path] = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest: (flushed.append(Path(path)), real(path, *rest))[1])
    with staged(tmp_path / "out") as staging:
        staging.write_text("whole")
    assert tmp_path in flushed
    assert not [path for path in flushed if "other" in path.parts]


@pytest.fixture
def no_permission() -> Iterator[Path]:
    """A directory that this process may read, but not write to; as root it becomes another user meanwhile."""
    place = Path(tempfile.mkdtemp())  # not below pytest's own, which other users may not enter
    (place / "there").touch()
    place.chmod(0o555)
    user = os.geteuid()
    if not user:
        os.seteuid(65534)
    try:
        yield place
    finally:
        os.seteuid(user)
        place.chmod(0o755)
        shutil.rmtree(place)


@pytest.mark.parametrize("name", ["out", "a/b/out"])
def test_an_output_without_permission_is_refused_before_the_work_and_by_its_own_name(
    no_permission: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(lambda: refuse_existing(no_permission / name), kept="") == 2
    assert capsys.readouterr().err == (
        f"error: {no_permission / name}: cannot be written: no permission to write in {no_permission}\n"
    )
    with pytest.raises(PermissionError, match="cannot be written"), staged(no_permission / name):
        pytest.fail("the work began")


def test_an_output_that_is_there_cannot_be_replaced_without_permission_either(no_permission: Path) -> None:
    with pytest.raises(PermissionError, match="cannot be written"):
        refuse_existing(no_permission / "there", overwrite=True)


def test_a_file_is_replaced_only_by_its_own_kind_and_never_if_it_is_read(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for text, replaceable in (("", True), ("KIND and more", True), ("other", False), ("KIN", False)):
        out.write_text(text)
        if replaceable:
            refuse_existing(out, overwrite=True, starts=b"KIND", inputs=[None, "s3://bucket/out", tmp_path / "other"])
        else:
            with pytest.raises(OutputExistsError, match="another kind of file"):
                refuse_existing(out, overwrite=True, starts=b"KIND")
    out.unlink()
    os.mkfifo(out)  # nobody writes to it: a look at its start would wait for good
    with pytest.raises(OutputExistsError, match="another kind of file"):
        refuse_existing(out, overwrite=True, starts=b"KIND")
    out.unlink()
    out.write_text("KIND")
    (tmp_path / "link").symlink_to(out)
    with pytest.raises(OutputExistsError, match=f"{out} is what this command reads; name another --out"):
        refuse_existing(out, overwrite=True, starts=b"KIND", inputs=[str(tmp_path / "link")])


def test_what_another_users_process_writes_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = staging.sibling(tmp_path / "out", "partial")
    other = own.with_name(own.name.replace(f".{os.getpid()}.", ".1."))
    other.mkdir()

    def refused(process: int, signal: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "kill", refused)
    with staged(tmp_path / "out") as half:
        half.write_text("x")
    assert other.is_dir()


@pytest.mark.parametrize("url", ["s3://bucket/out", "postgresql://u:secret@host/db", "gs:/bucket"])
def test_an_output_in_a_store_is_refused_and_no_folder_has_its_name(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def write() -> None:
        with staged(Path(url)) as path:
            path.mkdir()

    assert exit_code(write, kept="") == 2
    scheme = url.partition(":")[0]
    told = f"cannot be written: must be a path on this machine (a folder called {scheme}: by its absolute path)"
    assert capsys.readouterr().err == f"error: {scheme}://…: {told}\n"
    assert exit_code(lambda: demo.run(Path(url)), kept="") == 2
    assert list(tmp_path.iterdir()) == []
    refuse_existing(tmp_path / url)


def test_a_link_to_nothing_is_refused_before_the_work_and_one_to_a_folder_is_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.symlink_to(tmp_path / "big" / "run")
    for overwrite in (False, True):
        with pytest.raises(OutputExistsError, match=r"out is a link to .*big/run, which does not exist; remove it"):
            refuse_existing(out, overwrite=overwrite)
    (tmp_path / "big" / "run").mkdir(parents=True)
    with staged(out, overwrite=True) as half:
        half.mkdir()
    assert out.is_dir()


def test_an_output_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match=f"cannot be written: {tmp_path / 'file'} is not a directory"):
        refuse_existing(tmp_path / "file" / "out")


def test_a_relative_output_and_one_in_new_directories_are_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refuse_existing(Path("out"))
    refuse_existing(Path("a/b/out"))
    assert names(tmp_path) == []


def test_prepare_and_index_ask_for_the_place_before_they_read_or_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="file is not a directory"):
        prepare.run(DataConfig(), tmp_path / "no such events", tmp_path / "file" / "out")
    write_world(tmp_path / "bundle")
    monkeypatch.setattr(Bundle, "sample_queries", lambda *_: pytest.fail("the work began"))
    monkeypatch.setattr("serving.files.staging.os.access", lambda *_, **__: False)
    with pytest.raises(PermissionError, match=f"no permission to write in {tmp_path / 'bundle'}"):
        build_index.run(tmp_path / "bundle")
