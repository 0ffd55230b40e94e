"""`towers keys`: a key is shown once and kept nowhere, the file stays its owner's and is never half written."""

import errno
import hashlib
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from pipelines.errors import DataError
from pipelines.service import keys as command
from serving.http.api_keys import KeyRing, read_keys


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


def added(file: Path, name: str, role: str, capsys: pytest.CaptureFixture[str]) -> str:
    command.add(file, name, role)  # type: ignore[arg-type]
    return capsys.readouterr().out.strip()


def test_a_new_key_is_printed_alone_and_only_its_digest_is_kept(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = added(file, "shop", "read", capsys), added(file, "loader", "admin", capsys)
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", first)  # 32 bytes
    assert first != second
    content = file.read_text(encoding="utf-8")
    assert first not in content and second not in content
    assert [tuple(key) for key in read_keys(file)] == [
        (name, role, hashlib.sha256(key.encode()).hexdigest())
        for name, role, key in (("shop", "read", first), ("loader", "admin", second))
    ]
    assert [KeyRing(file).role(key.encode()) for key in (first, second)] == ["read", "admin"]
    file.write_bytes(b"\xef\xbb\xbf" + content.encode())  # as an editor on Windows may save it
    assert [KeyRing(file).role(key.encode()) for key in (first, second)] == ["read", "admin"]


def test_a_new_file_is_its_owners_alone_and_a_changed_one_keeps_its_mode(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    added(file, "a", "read", capsys)
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o640)  # of a service that reads it by its group
    added(file, "b", "read", capsys)
    command.remove(file, "a")
    assert file.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in file.parent.iterdir()] == ["keys.toml"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file to another user")
def test_a_file_that_root_changes_stays_that_of_the_services_user(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    added(file, "a", "read", capsys)
    os.chown(file, 10_001, 10_002)
    added(file, "b", "read", capsys)
    command.remove(file, "a")
    found = file.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (10_001, 10_002, 0o600)


def test_a_file_that_cannot_keep_its_owner_is_not_changed(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    added(file, "a", "read", capsys)
    before = file.read_bytes(), file.stat().st_ino

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "chown", refuse)
    told = r"keys\.toml: belongs to user \d+ and group \d+, .* \(Operation not permitted\); nothing was changed; "
    for change in (lambda: command.add(file, "b", "read"), lambda: command.remove(file, "a")):
        with pytest.raises(DataError, match=told):
            change()
    assert (file.read_bytes(), file.stat().st_ino) == before
    assert [path.name for path in file.parent.iterdir()] == ["keys.toml"]
    assert capsys.readouterr().out == ""


def test_a_removed_key_is_gone_and_the_last_one_may_go(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = added(file, "a", "read", capsys)
    command.remove(file, "a")
    assert read_keys(file) == [] and KeyRing(file).role(key.encode()) is None


def test_the_list_shows_who_may_what_and_no_key(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = added(file, "shop", "read", capsys)
    command.show(file)
    shown = capsys.readouterr().out
    assert "shop" in shown and "read" in shown and key not in shown
    assert read_keys(file)[0].sha256 not in shown


@pytest.mark.parametrize("name", ["", "a b", "ü", "x" * 65, "../a"])
def test_a_name_that_cannot_be_is_refused(file: Path, name: str) -> None:
    with pytest.raises(DataError, match=r"^--name .*: must be 1 to 64 letters"):
        command.add(file, name, "read")
    assert not file.exists()


def test_mistakes_name_the_file_and_change_nothing(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataError, match=r"keys\.toml: No such file"):
        command.remove(file, "a")
    with pytest.raises(DataError, match=r"none/keys\.toml: No such file or directory"):
        command.add(file.parent / "none" / "keys.toml", "a", "read")
    added(file, "a", "read", capsys)
    before = file.read_bytes()
    with pytest.raises(DataError, match="has a key of this name"):
        command.add(file, "a", "admin")
    with pytest.raises(DataError, match=r"has no key of this name; it has a$"):
        command.remove(file, "b")
    assert file.read_bytes() == before
    file.write_text("broken", encoding="utf-8")
    for change in (lambda: command.add(file, "c", "read"), lambda: command.remove(file, "a")):
        with pytest.raises(DataError, match=r"--file .*keys\.toml: not a TOML file"):
            change()
    assert file.read_text(encoding="utf-8") == "broken"


def test_two_commands_at_a_time_lose_nothing(file: Path) -> None:
    code = "import sys; from pathlib import Path; from pipelines.service.keys import add\n"
    code += "for n in range(10): add(Path(sys.argv[1]), f'{sys.argv[2]}{n}', 'read')"
    words = [sys.executable, "-c", code, str(file)]
    running = [subprocess.Popen([*words, name], stdout=subprocess.PIPE, stderr=subprocess.PIPE) for name in "ab"]
    for each in running:
        _, said = each.communicate(timeout=60)
        assert each.returncode == 0, said
    assert {key.name for key in read_keys(file)} == {f"{name}{n}" for name in "ab" for n in range(10)}


def test_behind_a_link_the_file_itself_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "real").mkdir()
    link, real = tmp_path / "keys.toml", tmp_path / "real" / "keys.toml"
    link.symlink_to(real)
    added(link, "a", "read", capsys)
    added(link, "b", "read", capsys)
    command.remove(link, "a")
    assert link.is_symlink() and [key.name for key in read_keys(real)] == ["b"]


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_key_that_nobody_could_read_is_none(
    stream: str, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    added(file, "a", "read", capsys)
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, stream, full)
        with pytest.raises(OSError, match="No space left"):
            command.add(file, "b", "read")
        with suppress(OSError):
            full.close()
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(DataError, match="standard output is closed, and the key is shown only there; nothing is ch"):
        command.add(file, "c", "read")
    assert [key.name for key in read_keys(file)] == ["a"]
