"""`towers keys`: the file of API keys, changed whole or not at all, readable by its owner only.

In: the file, a name, a role. Out: the new file in the place of the old one; a new key on stdout, once.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tomli_w
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipelines.errors import DataError
from pipelines.progress import say
from serving.keys import NAME, Key, KeysError, Role, digest, new_key, read_keys
from serving.staging import staged


def add(file: Path, name: str, role: Role) -> None:
    """Makes a key, and prints it on stdout: nowhere is it kept.

    Args:
        file: the file of keys, made where there is none.
        name: whose key it is.
        role: what it may do.

    Raises:
        DataError: the file or the name is wrong, or there is such a name already.
    """
    if not NAME.fullmatch(name):
        raise DataError(f"--name {name}: must be 1 to 64 letters, digits, '.', '_' or '-'")
    with _alone(file):
        keys = _read(file) if file.exists() else []
        if any(each.name == name for each in keys):
            raise DataError(f"--name {name}: {file} has a key of this name; remove it first, or take another name")
        key = new_key()
        _write(file, [*keys, Key(name, role, digest(key.encode()))])
    say(f"key {name!r} may {'read' if role == 'read' else 'read and change'}; it is shown only now:")
    print(key)  # noqa: T201 - alone on stdout, for a shell's $(...)


def show(file: Path) -> None:
    """Prints names, roles and the first digits of each digest.

    Raises:
        DataError: the file cannot be used.
    """
    table = Table("name", "role", "SHA-256")
    for key in _read(file):
        table.add_row(Text(key.name), key.role, f"{key.sha256[:8]}…")
    Console().print(table)


def remove(file: Path, name: str) -> None:
    """Takes a key out.

    Raises:
        DataError: the file cannot be used, or has no such key.
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
    """Two commands at one time would each lose what the other wrote."""
    try:
        directory = os.open(file.absolute().parent, os.O_RDONLY)
    except OSError as error:
        raise DataError(f"--file {file}: {error.strerror}") from None
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _write(file: Path, keys: list[Key]) -> None:
    content = tomli_w.dumps({"key": [key._asdict() for key in keys]})
    with staged(file, overwrite=True) as staging:
        staging.touch(0o600, exist_ok=False)  # its owner's alone from the beginning
        staging.write_text(content, encoding="utf-8")
