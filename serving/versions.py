"""Which bundle of a directory of bundles answers: `active.json`, never half-written, changed by one operator at a time.

In: ROOT, whose directories are bundles (`ROOT/NAME/manifest.json`). Out: their list, and what `ROOT/active.json` names:
the active bundle, those before it, a canary. Bundles are only named here; `serving.generations` opens them.
"""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from serving.errors import BundleError
from serving.manifest import MANIFEST, not_a_bundle, read_manifest
from serving.staging import staged

ACTIVE = "active.json"
LOCK = ".lock"
REMEMBERED = 20
# What file systems allow a name, in bytes.
LONGEST_NAME = 255

State = Literal["active", "previous", "canary", ""]


def checked_name(name: str) -> str:
    """The name of a bundle as it came, where it can be one.

    Raises:
        ValueError: it is not the plain name of a directory, or starts with a dot, as what is being written does.
    """
    plain = name.isprintable() and not set(name) & {"/", "\\"} and len(name.encode(errors="replace")) <= LONGEST_NAME
    if not name or name.startswith(".") or not plain:
        raise ValueError(
            f"{name[:LONGEST_NAME]!r} cannot name a bundle: that is the plain name of a directory in the root, "
            "no path, without a dot in front"
        )
    return name


Name = Annotated[str, AfterValidator(checked_name)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Canary(_Record):
    """Another bundle beside the active one, for a share of the users in (0, 1]."""

    bundle: Name
    share: float = Field(gt=0, le=1)


class Active(_Record):
    """What `active.json` holds: the bundle that answers, those before it (newest first), and the canary."""

    active: Name
    previous: tuple[Name, ...] = Field((), max_length=REMEMBERED)
    canary: Canary | None = None

    @model_validator(mode="after")
    def _canary_is_another(self) -> "Active":
        if self.canary is not None and self.canary.bundle == self.active:
            raise ValueError(f"{self.active} is the active bundle; a canary is another one")
        return self


@dataclass(frozen=True)
class VersionInfo:
    """One bundle of a root.

    Attributes:
        name: of its directory.
        model_version: of its manifest; None where that cannot be read, as the next two.
        created_at: when it was exported.
        items: in its catalogue.
        state: what `active.json` makes of it.
        problem: why its manifest cannot be read, or None.
    """

    name: str
    model_version: str | None
    created_at: datetime | None
    items: int | None
    state: State
    problem: str | None


class Versions:
    """The bundles of one root.

    Args:
        root: the directory of bundles.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def file(self) -> Path:
        """Where `active.json` lies, or will."""
        return self.root / ACTIVE

    def list(self) -> list[VersionInfo]:
        """Every bundle, newest first, then those whose manifest cannot be read and those named but not there.

        Raises:
            BundleError: there is no such root, or its `active.json` is damaged.
        """
        if not self.root.is_dir():
            raise BundleError(f"{self.root}: no such directory")
        active = self._read()
        names = {path.parent.name for path in self.root.glob(f"*/{MANIFEST}") if path.parent.name[0] != "."}
        states: dict[str, State] = {}
        if active is not None:
            states = dict.fromkeys(active.previous, "previous")
            states |= {active.canary.bundle: "canary"} if active.canary else {}
            states |= {active.active: "active"}
        infos = [self._info(name, states.get(name, "")) for name in sorted({*names, *states})]
        return sorted(infos, key=lambda info: info.created_at.timestamp() if info.created_at else 0.0, reverse=True)

    def read(self) -> Active:
        """What is active now.

        Raises:
            BundleError: nothing is, or `active.json` is damaged.
        """
        active = self._read()
        if active is None:
            if not self.root.is_dir():
                raise BundleError(f"{self.root}: no such directory")
            raise BundleError(
                f"{self.root}: none of its bundles is active; name one: towers bundles activate NAME --root {self.root}"
            )
        return active

    def path(self, name: str) -> Path:
        """The directory of a bundle; whether it holds one is for its reader to find out.

        Raises:
            BundleError: that is no name of a bundle, or it leads out of the root.
        """
        try:
            path = self.root / checked_name(name)
        except ValueError as error:
            raise BundleError(f"{self.root}: {error}") from None
        if path.is_symlink():
            raise BundleError(f"{path}: a link; the bundles of a root are plain directories")
        return path

    def activate(self, name: str) -> Active:
        """Makes a bundle the active one; the one before it is remembered for `rollback`.

        Naming the active one again changes nothing, but has the service try it again where it was refused.

        Raises:
            BundleError: there is no such bundle, or its manifest cannot be read.
        """
        read_manifest(self.path(name))
        with self._alone() as before:
            if before is None:
                return self._write(Active(active=name))
            earlier = [each for each in (before.active, *before.previous) if each != name]
            previous = tuple(earlier[:REMEMBERED])
            return self._write(Active(active=name, previous=previous, canary=_other(before.canary, name)))

    def rollback(self, expected: str | None = None) -> str:
        """Makes the bundle before the active one active again; the one it takes over from is forgotten.

        Args:
            expected: the name that must stand there; another operator may have changed it since it was looked up.

        Returns:
            Its name.

        Raises:
            BundleError: there is none, it is another than expected, or its manifest cannot be read.
        """
        with self._alone():
            before = self.read()
            name = self.before(before)
            if expected not in (None, name):
                raise BundleError(f"{self.root}: by now {name}, and not {expected}, is what was active before")
            read_manifest(self.path(name))
            self._write(Active(active=name, previous=before.previous[1:], canary=_other(before.canary, name)))
            return name

    def before(self, active: Active) -> str:
        """The name of the bundle that was active before.

        Raises:
            BundleError: none was.
        """
        if not active.previous:
            raise BundleError(f"{self.root}: no bundle was active before {active.active}; activate one by its name")
        return active.previous[0]

    def set_canary(self, name: str, share: float) -> Active:
        """Sends a share of the users to another bundle.

        Args:
            name: the bundle.
            share: of the users, in (0, 1].

        Raises:
            BundleError: the share is wrong, no bundle is active, this one is, or its manifest cannot be read.
        """
        if not 0 < share <= 1:
            raise BundleError(f"{self.root}: the canary's share of the users must lie in (0, 1], got {share:g}")
        read_manifest(self.path(name))
        with self._alone():
            before = self.read()
            if before.active == name:
                raise BundleError(f"{self.root}: {name} is the active bundle; a canary is another one")
            return self._write(before.model_copy(update={"canary": Canary(bundle=name, share=share)}))

    def clear_canary(self) -> Active:
        """Gives every user the active bundle again.

        Raises:
            BundleError: no bundle is active, or `active.json` is damaged.
        """
        with self._alone():
            return self._write(self.read().model_copy(update={"canary": None}))

    def _read(self) -> Active | None:
        try:
            return Active.model_validate_json(self.file.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BundleError(f"{self.file}: cannot be read: {error.strerror}") from None
        except ValidationError as error:
            detail = error.errors(include_input=False)[0]
            where = ".".join(str(part) for part in detail["loc"])
            raise BundleError(
                f"{self.file}: damaged: {f'{where}: ' if where else ''}{detail['msg']}; remove it and activate a bundle"
            ) from None

    def _write(self, active: Active) -> Active:
        with staged(self.file, overwrite=True) as staging:
            staging.write_text(json.dumps(active.model_dump(), indent=2) + "\n", encoding="utf-8")
        return active

    def _info(self, name: str, state: State) -> VersionInfo:
        try:
            manifest = read_manifest(self.path(name))
        except BundleError as error:
            return VersionInfo(name, None, None, None, state, str(error))
        return VersionInfo(name, manifest.model_version, manifest.created_at, manifest.items, state, None)

    @contextmanager
    def _alone(self) -> Iterator[Active | None]:
        """Holds the lock that every change is made under, and gives what is active; it goes with the process."""
        try:
            lock = (self.root / LOCK).open("ab")
        except (FileNotFoundError, NotADirectoryError):
            raise BundleError(f"{self.root}: no such directory") from None
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield self._read()


def bundle_root(path: Path) -> Versions | None:
    """Whether a path is one bundle or a root of bundles.

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


def _other(canary: Canary | None, active: str) -> Canary | None:
    """The canary, unless it has just become the active bundle."""
    return None if canary is not None and canary.bundle == active else canary
