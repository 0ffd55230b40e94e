"""One look at the bundles of a store: what is there, which are copied, and why others cannot be used."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from serving.background import Rest
from serving.bundle.manifest import MANIFEST
from serving.errors import BundleError
from serving.files.disk_full import DiskFullError
from serving.service.fetch import Remote, fetch
from serving.service.store import MissingError, Store, StoreError


class Refusal(BaseModel):
    """Why a bundle is not used: for the log, and in short for callers, without paths or exception texts."""

    model_config = ConfigDict(frozen=True)

    reason: str
    short: str


def new_refusals(before: Mapping[str, Refusal], now: Mapping[str, Refusal]) -> list[Refusal]:
    """The refusals, by name, that were not there before or had another reason."""
    return [each for name, each in now.items() if before.get(name) != each]


class Look:
    """One look at the bundles of a store.

    Attributes:
        refused: why bundles cannot be used, by name.
        certain: whether nothing but a change in the store can alter that.

    Args:
        store: the store.
        root: the directory of the copies.
        trusted: the bundles whose copies are compared by size only, not by content; None trusts all.
        rest: called after each block or file.
    """

    def __init__(self, store: Store, root: Path, trusted: Collection[str] | None, rest: Rest) -> None:
        self.refused: dict[str, Refusal] = {}
        self.certain = True
        self._store, self._root, self._trusted, self._rest = store, root, trusted, rest
        self._remotes: dict[str, Remote | None] = {}

    def outdated(self, names: Collection[str]) -> list[str]:
        """Those of some bundles of which there is a copy, but the store holds another bundle of that name."""
        found = []
        for name in names:
            copy = self._root / name / MANIFEST
            # The copy of a bundle that cannot be read in the store may stay.
            with suppress(StoreError):
                if copy.is_file() and self._store.read(f"{name}/{MANIFEST}") != copy.read_bytes():
                    found.append(name)
        return found

    def stamp(self, content: bytes, names: Sequence[str]) -> str | None:
        """Digest of `active.json` and of the store's listing of some bundles; None after a fault that may pass."""
        remotes = [self._remote(name) for name in names]
        told = [(each.manifest.hex(), each.objects) if each else None for each in remotes]
        text = json.dumps([content.hex(), told], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest() if self.certain else None

    def copied(self, name: str) -> bool:
        """Copies a bundle unless it is there already; returns whether it is there now."""
        remote = self._remote(name)
        if remote is None:
            return False
        try:
            verify = self._trusted is not None and name not in self._trusted
            fetch(self._store, remote, self._root, verify=verify, rest=self._rest)
        except (BundleError, DiskFullError, OSError) as error:
            self._note(name, error)
            return False
        return True

    def _remote(self, name: str) -> Remote | None:
        if name not in self._remotes:
            self._remotes[name] = None
            try:
                self._remotes[name] = Remote(name, self._store.read(f"{name}/{MANIFEST}"), self._store.objects(name))
            except StoreError as error:
                self._note(name, error)
        return self._remotes[name]

    def _note(self, name: str, error: Exception) -> None:
        # A store that is away comes back, and a disk gets room again, without a change in the store.
        lasting = isinstance(error, MissingError) or not isinstance(error, StoreError | DiskFullError | OSError)
        self.certain = self.certain and lasting
        self.refused[name] = refusal_of(error, self._store.url, self._root)


def refusal_of(error: Exception, url: str, root: Path) -> Refusal:
    """The refusal for an error.

    Args:
        error: its text may name places.
        url: of the store, without a password.
        root: the directory of the copies.
    """
    short = error.short if isinstance(error, StoreError) else str(error)
    for place in (url, str(root)):
        short = short.replace(f"{place}/", "").replace(place, Path(place).name)
    return Refusal(reason=str(error), short=short)
