"""API keys: a TOML file of names, roles and digests, reloaded when it changes. It holds no keys.

A key is 32 random bytes, so a single SHA-256 of it cannot be brute-forced, unlike that of a password.
"""

import hashlib
import hmac
import logging
import os
import re
import secrets
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from serving.telemetry.logs import SERVICE

log = logging.getLogger(SERVICE)

Role = Literal["read", "admin"]
ROLES: tuple[Role, ...] = ("read", "admin")
LOOK_S = 0.4  # between two checks of the file
KEY_BYTES = 32
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
DIGEST = re.compile(r"[0-9a-f]{64}")
FIELDS = {"name", "role", "sha256"}


class KeysError(Exception):
    """A key file cannot be used. The message names the file and the reason, and holds no part of a key."""


class Key(NamedTuple):
    """One entry of the file; `sha256` is the digest of the key, in hexadecimal."""

    name: str
    role: Role
    sha256: str


def new_key() -> str:
    """A key: 32 random bytes in URL-safe base64."""
    return secrets.token_urlsafe(KEY_BYTES)


def digest(key: bytes) -> str:
    """The SHA-256 of a key, in hexadecimal."""
    return hashlib.sha256(key).hexdigest()


def read_keys(path: Path) -> list[Key]:
    """The entries of a key file, which may be empty.

    Raises:
        KeysError: it cannot be read, or an entry is invalid.
    """
    try:
        if path.is_fifo():  # as of the shell's `<(…)`: each process reads the keys, the second from an empty pipe
            raise KeysError(f"{path}: a pipe, which can be read only once; name a file")
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise KeysError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:  # not TOML, or not UTF-8; such an error may quote the file
        where = re.search(r"at line \d+", str(error))
        raise KeysError(f"{path}: not a TOML file{f' ({where.group()})' if where else ''}") from None
    entries = content.pop("key", [])
    if content or not isinstance(entries, list):
        raise KeysError(f"{path}: must hold tables [[key]] and nothing else")
    keys = [_entry(entry, f"{path}: [[key]] {number}") for number, entry in enumerate(entries, start=1)]
    for what, values in (("name", [key.name for key in keys]), ("key", [key.sha256 for key in keys])):
        twice = [number for number, value in enumerate(values, start=1) if value in values[: number - 1]]
        if twice:
            raise KeysError(f"{path}: [[key]] {twice[0]}: duplicate {what}")
    return keys


def _entry(entry: object, where: str) -> Key:
    if not isinstance(entry, dict) or entry.keys() != FIELDS:
        raise KeysError(f"{where}: must have name, role and sha256, and nothing else")
    name, role, sha256 = entry["name"], entry["role"], entry["sha256"]
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise KeysError(f"{where}: name: must be 1 to 64 letters, digits, '.', '_' or '-'")
    if role not in ROLES:
        raise KeysError(f"{where}: role: must be 'read' or 'admin'")
    if not isinstance(sha256, str) or not DIGEST.fullmatch(sha256):
        raise KeysError(f"{where}: sha256: must be 64 hexadecimal digits in lower case; 'towers keys add' writes them")
    return Key(name, role, sha256)


class KeyRing:
    """The currently valid keys. A lookup checks the file for changes, at most every 0.4 s.

    `towers keys` replaces the file atomically. If a file is edited in place, a half-written version may be read and
    stays valid until the next check.

    Args:
        path: the file.
        clock: time in seconds.

    Raises:
        KeysError: the file cannot be used at start. Later that is logged, and the old keys stay valid.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._status = self._now()  # of the version whose keys are in use
        self._told: tuple[object, str] | None = None  # the last error, which is logged once
        self._keys = _digests(read_keys(path))
        self._look_at = clock() + LOOK_S
        self._warn_of_readers()

    def role(self, key: bytes) -> Role | None:
        """The role of a key, or None if it is not valid.

        Compares all entries, each in constant time, so that the timing reveals nothing about them.
        """
        if self._clock() >= self._look_at:
            self._look()
        came = hashlib.sha256(key).digest()
        found: Role | None = None
        for sha256, role in self._keys:
            if hmac.compare_digest(sha256, came):
                found = role
        return found

    def _look(self) -> None:
        self._look_at = self._clock() + LOOK_S
        now = self._now()
        if now == self._status:
            return
        try:
            self._keys = _digests(read_keys(self._path))
        except KeysError as error:
            # The status stays that of the keys in use, so the next look tries again: the reason may lie in the process,
            # such as no free file handle, and pass without a change of the file.
            told, self._told = self._told, (now, str(error))
            if told != self._told:
                log.error("the keys are unchanged: %s", error)
            return
        self._status, self._told = now, None
        log.info("%s: %d keys", self._path, len(self._keys))
        self._warn_of_readers()

    def _now(self) -> tuple[int, ...] | None:
        """The file's status, which differs between versions, mode first; None if the file is missing."""
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mode, found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino

    def _warn_of_readers(self) -> None:
        if os.name == "posix" and self._status is not None and self._status[0] & 0o077:
            log.warning("%s: users other than its owner may read it; chmod 600", self._path)


def _digests(keys: list[Key]) -> list[tuple[bytes, Role]]:
    return [(bytes.fromhex(key.sha256), key.role) for key in keys]
