"""`towers keys`: adds, lists and removes API keys.

The file of keys is changed whole or not at all. A new one is readable only by its owner; a changed one keeps its owner,
its group and its mode. A new key is printed on stdout, once.
"""

import fcntl
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tomli_w
from rich.table import Table
from rich.text import Text

from pipelines.console import results, say
from pipelines.errors import DataError
from serving.files.staging import staged
from serving.http.api_keys import NAME, Key, KeysError, Role, digest, new_key, read_keys


def add(file: Path, name: str, role: Role) -> None:
    """Creates a key and prints it on stdout; it is stored nowhere.

    Args:
        file: the file of keys, created if missing.
        name: the name of the key's owner.
        role: what the key may do.

    Raises:
        DataError: the file or the name is invalid, the name is taken, or the file cannot keep its owner.
        OSError: the key could not be printed, and is no key.
    """
    if not NAME.fullmatch(name):
        raise DataError(f"--name {name}: must be 1 to 64 letters, digits, '.', '_' or '-'")
    if sys.stdout is None:
        raise DataError("standard output is closed, and the key is shown only there; nothing is changed")
    with _alone(file):
        keys = _read(file) if file.exists() else []
        if any(each.name == name for each in keys):
            raise DataError(f"--name {name}: {file} has a key of this name; remove it first, or take another name")
        key = new_key()
        _write(file, [*keys, Key(name, role, digest(key.encode()))])
        try:
            say(f"key {name!r} may {'read' if role == 'read' else 'read and change'}; it is shown only now:")
            print(key, flush=True)  # noqa: T201 - alone on stdout, for a shell's $(...)
        except OSError:
            _write(file, keys)  # nobody has seen it
            raise


def show(file: Path) -> None:
    """Prints names, roles and the first digits of each digest.

    Raises:
        DataError: the file cannot be used.
    """
    table = Table("name", "role", "SHA-256")
    for key in _read(file):
        table.add_row(Text(key.name), key.role, f"{key.sha256[:8]}…")
    results().print(table)


def remove(file: Path, name: str) -> None:
    """Removes a key.

    Raises:
        DataError: the file cannot be used or cannot keep its owner, or has no such key.
    """
    with _alone(file):
        keys = _read(file)
        rest = [key for key in keys if key.name != name]
        if len(rest) == len(keys):
            names = ", ".join(key.name for key in keys) or "none"
            raise DataError(f"--name {name}: {file} has no key of this name; it has {names}")
        _write(file, rest)
    say(f"key {name!r} is removed")


def _read(file: Path) -> list[Key]:
    try:
        return read_keys(file)
    except KeysError as error:
        raise DataError(f"--file {error}") from None


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Locks the file's directory: two concurrent commands would each lose the other's changes."""
    try:
        directory = os.open(file.resolve().parent, os.O_RDONLY)
    except OSError as error:
        raise DataError(f"--file {file}: {error.strerror}") from None
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _write(file: Path, keys: list[Key]) -> None:
    file = file.resolve()  # a link stays one, and a service that names the file itself sees the change
    content = tomli_w.dumps({"key": [key._asdict() for key in keys]})
    before = file.stat() if file.exists() else None
    with staged(file, overwrite=True) as staging:
        staging.touch(0o600, exist_ok=False)  # readable only by its owner from the start
        staging.write_text(content, encoding="utf-8")
        if before is not None:
            _keep_owner(file, before, staging)


def _keep_owner(file: Path, before: os.stat_result, staging: Path) -> None:
    """A service that runs as the file's owner must be able to read the new one: else a removed key stays valid."""
    try:
        os.chown(staging, before.st_uid, before.st_gid)
        staging.chmod(stat.S_IMODE(before.st_mode))
    except OSError as error:
        raise DataError(
            f"--file {file}: belongs to user {before.st_uid} and group {before.st_gid}, to whom user {os.geteuid()} "
            f"cannot give the changed file ({error.strerror}); nothing was changed; "
            "give the command as root, or as that user in that group"
        ) from None
