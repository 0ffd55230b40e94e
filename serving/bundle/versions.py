"""Selects the active bundle of a root: `active.json`, written atomically by one operator at a time.

A root holds bundles (`ROOT/NAME/manifest.json`), and `ROOT/active.json` names the active one, the ones before it and a
canary. Bundles are only named here; `serving.service.active_bundles` opens them.
"""

import json
import os
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from serving.bundle.active import ACTIVE, REMEMBERED, Active, Canary, State, VersionInfo, checked_name, parsed_active
from serving.bundle.arrays import FIXED
from serving.bundle.manifest import MANIFEST, not_a_bundle, read_manifest
from serving.errors import BundleError
from serving.files.access import keep_access
from serving.files.lock import waited
from serving.files.staging import staged

LOCK = ".lock"
CANDIDATE = ".candidate"  # ends the hidden name of a bundle that is not published yet


class Versions:
    """The bundles of one root.

    Args:
        root: the directory of bundles.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def file(self) -> Path:
        """The path of `active.json`, which may not exist yet."""
        return self.root / ACTIVE

    def list(self) -> list[VersionInfo]:
        """All bundles, newest first, then those whose manifest is missing or unreadable and those needed but missing.

        Raises:
            BundleError: the root does not exist, or its `active.json` is damaged.
        """
        if not self.root.is_dir():
            raise BundleError(f"{self.root}: no such directory")
        active = self._read()
        # Without its manifest a bundle is known by its other files.
        found = [path for file in (MANIFEST, *FIXED) for path in self.root.glob(f"[!.]*/{file}")]
        names = {path.relative_to(self.root).parts[0] for path in found}
        states: dict[str, State] = {}
        if active is not None:
            # Old bundles may be gone, as `towers daily` removes them; a rollback needs only the newest.
            states = {name: "previous" for name in active.previous if name in {*names, *active.previous[:1]}}
            states |= {active.canary.bundle: "canary"} if active.canary else {}
            states |= {active.active: "active"}
        infos = [self._info(name, states.get(name, "")) for name in sorted({*names, *states})]
        return sorted(infos, key=lambda info: info.created_at.timestamp() if info.created_at else 0.0, reverse=True)

    def read(self) -> Active:
        """Reads `active.json`.

        Raises:
            BundleError: no bundle is active, or the file is damaged.
        """
        active = self._read()
        if active is None:
            if not self.root.is_dir():
                raise BundleError(f"{self.root}: no such directory")
            remedy = f"name one: towers bundles activate NAME --root {shlex.quote(str(self.root))}"
            raise BundleError(f"{self.root}: none of its bundles is active; {remedy}")
        return active

    def earlier(self) -> tuple[Path, ...]:
        """The directories of the bundles that were active before, newest first; links are left out."""
        return self._without_links(self.read().previous)

    def plain(self) -> tuple[Path, ...]:
        """The directories of the active bundle and of those before it, newest first; links are left out.

        Raises:
            BundleError: no bundle is active, `active.json` is damaged, or all are links.
        """
        active = self.read()
        return self._without_links((active.active, *active.previous)) or (self.path(active.active),)

    def path(self, name: str) -> Path:
        """The directory of a bundle; its content is not checked here.

        Raises:
            BundleError: the name is not valid, or it leads out of the root.
        """
        try:
            path = self.root / checked_name(name)
        except ValueError as error:
            raise BundleError(f"{self.root}: {error}") from None
        if path.is_symlink():
            raise BundleError(f"{path}: a link; the bundles of a root are plain directories")
        return path

    def activate(self, name: str) -> Active:
        """Makes a bundle the active one; the one before it is kept for `rollback`.

        Activating the active one again changes nothing, but makes the service retry it if it was refused.

        Raises:
            BundleError: there is no such bundle, or its manifest cannot be read.
        """
        read_manifest(self.path(name))
        with self._alone() as before:
            if before is None:
                return self._write(Active(active=name))
            previous = tuple(each for each in (before.active, *before.previous) if each != name)[:REMEMBERED]
            return self._write(Active(active=name, previous=previous, canary=before.canary_beside(name)))

    def rollback(self, expected: str | None = None) -> str:
        """Makes the bundle before the active one active again; the one it replaces is forgotten.

        Args:
            expected: the name it must have; another operator may have changed it since the lookup.

        Returns:
            Its name.

        Raises:
            BundleError: there is none, it is not the expected one, or its manifest cannot be read.
        """
        with self._alone():
            before = self.read()
            name = self.before(before)
            if expected not in (None, name):
                raise BundleError(f"{self.root}: the previous bundle is now {name}, not {expected}")
            read_manifest(self.path(name))
            self._write(Active(active=name, previous=before.previous[1:], canary=before.canary_beside(name)))
            return name

    def before(self, active: Active) -> str:
        """The name of the bundle that was active before.

        Raises:
            BundleError: none was, or it has been removed.
        """
        if not active.previous:
            raise BundleError(f"{self.root}: no bundle was active before {active.active}; activate one by its name")
        name = active.previous[0]
        if not self.path(name).exists():
            raise BundleError(f"{self.root}: {name}, active before {active.active}, is gone; activate one by its name")
        return name

    def set_canary(self, name: str, share: float) -> Active:
        """Sends a share of the users to another bundle.

        Args:
            name: the bundle.
            share: share of the users, in (0, 1].

        Raises:
            BundleError: the share is invalid, no bundle is active, this one is, or its manifest cannot be read.
        """
        read_manifest(self.path(name))
        with self._alone():
            before = self.beside_canary(name, share)
            return self._write(before.model_copy(update={"canary": Canary(bundle=name, share=share)}))

    def beside_canary(self, name: str, share: float) -> Active:
        """What is active now, if this can be its canary; the bundle is not looked at.

        Raises:
            BundleError: the share is invalid, no bundle is active, or this one is.
        """
        if not 0 < share <= 1:
            raise BundleError(f"{self.root}: the canary's share of the users must lie in (0, 1], got {share:g}")
        active = self.read()
        if active.active == name:
            raise BundleError(f"{self.root}: {name} is the active bundle; a canary is another one")
        return active

    def refuse_unwritable(self) -> None:
        """Refuses a root in which no change can be made, before the long work on a bundle.

        Raises:
            BundleError: the root does not exist, its `active.json` is damaged, or it cannot be written.
        """
        with self._alone():
            pass

    def clear_canary(self) -> Active:
        """Sends all users to the active bundle again.

        Raises:
            BundleError: no bundle is active, or `active.json` is damaged.
        """
        with self._alone():
            return self._write(self.read().model_copy(update={"canary": None}))

    def _without_links(self, names: Iterable[str]) -> tuple[Path, ...]:
        return tuple(path for path in map(self.root.joinpath, names) if not path.is_symlink())

    def _read(self) -> Active | None:
        try:
            content = self.file.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BundleError(f"{self.file}: cannot be read: {error.strerror}") from None
        return parsed_active(content, str(self.file))

    def _write(self, active: Active) -> Active:
        with staged(self.file, overwrite=True) as staging:
            staging.write_text(json.dumps(active.model_dump(), indent=2) + "\n", encoding="utf-8")
            keep_access(staging, self.file)
        return active

    def _info(self, name: str, state: State) -> VersionInfo:
        try:
            manifest = read_manifest(self.path(name))
        except BundleError as error:
            return VersionInfo(name, None, None, None, state, str(error))
        return VersionInfo(name, manifest.model_version, manifest.created_at, manifest.items, state, None)

    @contextmanager
    def _alone(self) -> Iterator[Active | None]:
        """Holds the lock for changes and yields what is active; the lock ends with the process."""
        if not self.root.is_dir():
            raise BundleError(f"{self.root}: no such directory")
        if not os.access(self.root, os.W_OK):
            raise BundleError(f"{self.root}: cannot be written, and so not its {ACTIVE}")
        with waited(self.root / LOCK):
            yield self._read()


def bundle_root(path: Path) -> Versions | None:
    """Tells whether a path is one bundle or a root of bundles.

    Returns:
        None for a bundle, the `Versions` of a root.

    Raises:
        BundleError: it is neither, or none of the root's bundles is active.
    """
    if (path / MANIFEST).exists():
        return None
    versions = Versions(path)
    if not versions.file.exists() and not any(path.glob(f"*/{MANIFEST}")):
        raise not_a_bundle(path)
    versions.read()
    return versions
