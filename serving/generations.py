"""What answers now, and the canary beside it: opened beside the old one, exchanged by one assignment, given back.

In: a bundle, or a root of bundles (`serving.versions`), and what opens one: it verifies, probes, raises BundleError.
Out: the `Generation` that answers a user. A bundle that cannot be opened is refused, and the old one goes on.
"""

import ctypes
import gc
import hashlib
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from serving.errors import BundleError
from serving.manifest import MANIFEST
from serving.versions import ACTIVE, Versions, bundle_root

T = TypeVar("T")
# What changes with every writing of a file: its place, time and size.
Stamp = tuple[int, int, int] | None


@dataclass(frozen=True, eq=False)
class Generation(Generic[T]):
    """One opened bundle. A request keeps the one that it picked until it is answered.

    Attributes:
        name: of the bundle's directory.
        opened: what `open` gave.
        stamp: of the manifest when it was opened.
    """

    name: str
    opened: T
    stamp: Stamp


@dataclass(frozen=True)
class _Roles(Generic[T]):
    """Who answers: the paths of what should, or what does."""

    active: T
    canary: T | None = None
    share: float = 0.0

    @property
    def by_name(self) -> dict[str, T]:
        """Who has which role."""
        return {"active": self.active} if self.canary is None else {"active": self.active, "canary": self.canary}


@dataclass(frozen=True)
class _Refusal:
    """Why a bundle was refused, in short for callers, and the stamps of `active.json` and of its manifest then."""

    reason: str
    short: str
    stamps: tuple[Stamp, Stamp]


class Generations(Generic[T]):
    """Holds the bundles that answer. Every method may be called from any thread.

    Args:
        path: a bundle, or a root of bundles.
        open: opens, verifies and probes the bundle at a path; what it gives must be in no cycle of references, so that
            it goes with the last request. Its BundleErrors end in the text of their `__cause__`, where they have one.
    """

    def __init__(self, path: Path, open: Callable[[Path], T]) -> None:
        self.path, self._open = path, open
        self._versions: Versions | None = None
        self._checking = threading.Lock()
        self._now: _Roles[Generation[T]] | None = None
        self._refused: dict[str, _Refusal] = {}
        self._retired: list[weakref.ref[T]] = []

    @property
    def active(self) -> Generation[T]:
        """What answers, but for the canary's share."""
        return self._roles().active

    @property
    def canary(self) -> Generation[T] | None:
        """What answers the canary's share of the users, or None."""
        return self._roles().canary

    @property
    def answering(self) -> dict[str, Generation[T]]:
        """What answers, by its role: "active", and "canary" where there is one."""
        return self._roles().by_name

    @property
    def refused(self) -> dict[str, str]:
        """Why each bundle that should answer does not, by name; `active.json` where that cannot be read."""
        return {name: refusal.reason for name, refusal in self._refused.items()}

    @property
    def refused_in_short(self) -> dict[str, str]:
        """As `refused`; of an exception that nobody foresaw only its type, as its text may hold anything."""
        return {name: refusal.short for name, refusal in self._refused.items()}

    def open_first(self) -> None:
        """Opens the active bundle, and the canary; a canary that is refused does not hold it up.

        Raises:
            BundleError: there is no active bundle, or it is refused.
        """
        with self._checking:
            self._versions = bundle_root(self.path)
            wanted = self._wanted()
            active = self._generation(wanted.active)
            if active is None:
                raise BundleError(self._refused[wanted.active.name].reason)
            self._flip(wanted, active)

    def check(self) -> str | None:
        """Looks whether other bundles are to answer, or the same were written anew, and opens and exchanges them.

        What is refused is not tried again until `active.json` or its manifest is written again. A canary that is
        refused gets no users. One thread at a time; a second one waits.

        Returns:
            What has changed, in one line for a log, or None.
        """
        with self._checking:
            told = self._check()
            self._give_back()
            return told

    def pick(self, user_id: str | None) -> Generation[T]:
        """What answers a user: always the same while the canary is, and with a larger share those before stay in it.

        Args:
            user_id: None, or an empty one, gets the active bundle.
        """
        now = self._roles()
        if now.canary is None or not user_id or _place(user_id, now.canary.name) >= now.share:
            return now.active
        return now.canary

    def _roles(self) -> _Roles[Generation[T]]:
        if self._now is None:
            raise RuntimeError("open_first() comes before everything else")
        return self._now

    def _check(self) -> str | None:
        before, refused = self._roles(), self._refused
        try:
            wanted = self._wanted()
        except BundleError as error:
            self._refused = {ACTIVE: _Refusal(str(error), str(error), (None, None))}
        else:
            self._flip(wanted, self._generation(wanted.active) or before.active)
        now = self._roles()
        told = [] if now.active is before.active else [f"{now.active.name} answers now, after {before.active.name}"]
        if (now.canary, now.share) != (before.canary, before.share):
            told.append(f"canary {now.canary.name} for {now.share:.2%} of the users" if now.canary else "no canary")
        told += [f"refused: {each.reason}" for name, each in self._refused.items() if refused.get(name) != each]
        return "; ".join(told) or None

    def _flip(self, wanted: _Roles[Path], active: Generation[T]) -> None:
        canary = None if wanted.canary is None else self._generation(wanted.canary)
        names = {path.name for path in wanted.by_name.values()}
        self._refused = {name: refusal for name, refusal in self._refused.items() if name in names}
        before = self._held()
        self._now = _Roles(active, canary, 0.0 if canary is None else wanted.share)
        # Not the generation: a request keeps only what was opened.
        self._retired += [weakref.ref(each.opened) for each in before if each not in (active, canary)]

    def _held(self) -> list[Generation[T]]:
        return [] if self._now is None else list(self._now.by_name.values())

    def _generation(self, path: Path) -> Generation[T] | None:
        """The bundle at a path: one that answers already, or opened; None where it is refused."""
        # Before it is opened: what is written meanwhile is for the next look.
        stamp = _stamp(path / MANIFEST)
        stamps = (_stamp(self.path / ACTIVE), stamp)
        for each in self._held():
            if (each.name, each.stamp) == (path.name, stamp):
                self._note(path.name, None)
                return each
        refusal = self._refused.get(path.name)
        if refusal is not None and refusal.stamps == stamps:
            return None
        try:
            opened = self._open(path)
        except BundleError as error:
            reason, unforeseen = str(error), error.__cause__
        except Exception as error:  # noqa: BLE001 - whatever a damaged bundle makes a library raise, the old one goes on
            reason, unforeseen = f"{path}: cannot be opened: {type(error).__name__}: {error}", error
        else:
            self._note(path.name, None)
            return Generation(path.name, opened, stamp)
        short = reason if unforeseen is None else reason.removesuffix(f": {unforeseen}")
        self._note(path.name, _Refusal(reason, short, stamps))
        return None

    def _wanted(self) -> _Roles[Path]:
        if self._versions is None:
            return _Roles(self.path)
        active = self._versions.read()
        path, canary = self._versions.path(active.active), active.canary
        return _Roles(path) if canary is None else _Roles(path, self._versions.path(canary.bundle), canary.share)

    def _note(self, name: str, refusal: _Refusal | None) -> None:
        # A new mapping each time: other threads may be reading the old one.
        others = {each: why for each, why in self._refused.items() if each != name}
        self._refused = others if refusal is None else others | {name: refusal}

    def _give_back(self) -> None:
        """Returns the memory of what answers no more, once the last request that picked it is answered."""
        alive = [retired for retired in self._retired if retired() is not None]
        if len(alive) < len(self._retired):
            self._retired = alive
            # Its SavedModel is full of cycles, which only the collector frees; the C library keeps what was freed.
            gc.collect()
            _trim()


def _place(user_id: str, bundle: str) -> float:
    """Where in [0, 1) a user stands among the users, in another order for each bundle."""
    digest = hashlib.blake2b(f"{bundle}\0{user_id}".encode(errors="surrogatepass"), digest_size=8).digest()
    # The upper 53 bits, which a float holds exactly: the quotient stays below 1.
    return (int.from_bytes(digest) >> 11) / 2**53


def _stamp(path: Path) -> Stamp:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _trim() -> None:
    """Gives free memory back to the system, where the C library is one that can be asked to."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
