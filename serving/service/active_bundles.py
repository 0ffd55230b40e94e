"""Holds the active bundle and the canary: opens new ones beside the old, swaps them in and frees the old.

Takes a bundle or a root of bundles (`serving.bundle.versions`) and a callable that opens one: it verifies, probes,
raises BundleError. Picks the `ActiveBundle` for a user. A bundle that cannot be opened is refused; the old one stays.
"""

import ctypes
import gc
import hashlib
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from serving.background import Pauses
from serving.bundle.active import ACTIVE
from serving.bundle.manifest import MANIFEST
from serving.bundle.versions import Versions, bundle_root
from serving.errors import BundleError
from serving.service.bundle_refusals import FIRST_PAUSE_S, BundleRefusal, Stamp, passes, stamp_of
from serving.service.look import Refusal, new_refusals

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class ActiveBundle(Generic[T]):
    """One opened bundle. A request keeps the one it picked until it is answered.

    Attributes:
        name: name of the bundle's directory.
        opened: what `open` returned.
        stamp: the manifest's stamp when the bundle was opened.
    """

    name: str
    opened: T
    stamp: Stamp


class ActiveBundles(Generic[T]):
    """Holds the bundles that serve. Every method is thread-safe.

    Args:
        path: a bundle, or a root of bundles.
        open: opens, verifies and probes the bundle at a path; its result must be in no reference cycle, so that it is
            freed with the last request. Its BundleErrors end in the text of their `__cause__`, if they have one.
    """

    def __init__(self, path: Path, open: Callable[[Path], T]) -> None:
        self.path, self._open = path, open
        self._versions: Versions | None = None
        self._checking = threading.Lock()
        # The bundles by role, and the canary's share of the users: one value, so that readers see both change at once.
        self._now: tuple[Mapping[str, ActiveBundle[T]], float] = {}, 0.0
        self._refused: dict[str, BundleRefusal] = {}
        self._retired: list[weakref.ref[T]] = []

    @property
    def active(self) -> ActiveBundle[T]:
        """Serves all users outside the canary's share."""
        return self.answering["active"]

    @property
    def canary(self) -> ActiveBundle[T] | None:
        """Serves the canary's share of the users, or None."""
        return self.answering.get("canary")

    @property
    def answering(self) -> Mapping[str, ActiveBundle[T]]:
        """The bundles that serve by role: "active", and "canary" if there is one; empty before `open_first`."""
        return self._now[0]

    @property
    def refused(self) -> Mapping[str, Refusal]:
        """Why each refused bundle does not serve, by name; under `active.json` if that cannot be read."""
        return self._refused

    def open_first(self) -> str | None:
        """Opens the active bundle, or else the newest of those before it that opens, and the canary if it opens.

        Returns what was refused, as one log line, or None.

        Raises:
            BundleError: there is no active bundle, or it is refused like all those before it.
        """
        with self._checking:
            self._versions = bundle_root(self.path)
            first = self._wanted()[0]["active"]
            earlier = () if self._versions is None else self._versions.earlier()
            active = next(filter(None, map(self._active_bundle, (first, *earlier))), None)
            refused = self._refused
            if active is None:
                raise BundleError(refused[first.name].reason)
            self._now = {"active": active}, 0.0
            self._check()  # opens the canary, and what was activated meanwhile
            told = [f"refused: {each.reason}" for each in (refused | self._refused).values()]
            return "; ".join([*told, f"{self.active.name} answers"]) if told else None

    def check(self, *, again: bool = False) -> str | None:
        """Checks for newly activated or rewritten bundles, opens them and swaps them in.

        A refused bundle is not retried until `active.json` or its manifest is rewritten, or after a pause if the fault
        may pass by itself. A refused canary gets no users. One thread runs at a time; the others wait.

        Args:
            again: also retry, and tell again, what was refused.

        Returns:
            What changed, as one log line, or None.
        """
        with self._checking:
            told = self._check(again)
            self._give_back()
            return told

    def pick(self, user_id: str | None) -> ActiveBundle[T]:
        """Picks the active bundle for a user: stable per canary, and users stay in it when its share grows.

        Args:
            user_id: None or "" gets the active bundle.
        """
        answering, share = self._now
        canary = answering.get("canary")
        if canary is None or not user_id or _place(user_id, canary.name) >= share:
            return answering["active"]
        return canary

    def _check(self, again: bool = False) -> str | None:
        before, active, refused = self._now, self.active, {} if again else self._refused
        try:
            wanted, share = self._wanted()
        except BundleError as error:
            self._note(ACTIVE, BundleRefusal(reason=str(error), short=str(error), stamps=(None, None)))
        else:
            opened = [self._active_bundle(path, again) for path in wanted.values()]
            # Opening takes seconds: what was rolled back meanwhile must never answer. If `active.json` cannot be read
            # now, the next check tells; to drop a bundle for that would be to open it anew at every check.
            with suppress(BundleError):
                wanted, share = self._wanted()
            self._flip(wanted, share, opened)
        (now, share), canary = self._now, self.canary
        before_it = "the earlier bundle of that name" if now["active"].name == active.name else active.name
        told = [] if now["active"] is active else [f"{now['active'].name} answers now, in place of {before_it}"]
        if (canary, share) != (before[0].get("canary"), before[1]):
            told.append(f"canary {canary.name} for {share:.2%} of the users" if canary else "no canary")
        told += [f"refused: {each.reason}" for each in new_refusals(refused, self._refused)]
        return "; ".join(told) or None

    def _flip(self, wanted: Mapping[str, Path], share: float, opened: list[ActiveBundle[T] | None]) -> None:
        """Lets the bundles answer that are wanted and open, and drops others; the next check opens what is missing."""
        ready = {(each.name, each.stamp): each for each in (*self.answering.values(), *opened) if each is not None}
        found = {role: ready.get((path.name, stamp_of(path / MANIFEST))) for role, path in wanted.items()}
        now = {"active": self.active} | {role: each for role, each in found.items() if each is not None}
        names = {path.name for path in wanted.values()}
        self._refused = {name: refusal for name, refusal in self._refused.items() if name in names}
        self._now = now, share if "canary" in now else 0.0
        # Of `opened`, not of the active bundle: a request holds only the former.
        self._retired += [weakref.ref(each.opened) for each in ready.values() if each not in now.values()]

    def _active_bundle(self, path: Path, again: bool = False) -> ActiveBundle[T] | None:
        """The bundle at a path: one that already serves, or a newly opened one; None if it is refused."""
        # Taken before opening, so that the next check sees what is written meanwhile.
        stamp = stamp_of(path / MANIFEST)
        stamps = (stamp_of(self.path / ACTIVE), stamp)
        for each in self.answering.values():
            if (each.name, each.stamp) == (path.name, stamp):
                self._note(path.name, None)
                return each
        refusal = self._refused.get(path.name)
        if refusal is not None and not again and refusal.stands(stamps):
            return None
        try:
            opened = self._open(path if self._versions is None else self._versions.path(path.name))
        except BundleError as error:
            reason, unforeseen = str(error), None if error.__cause__ is None else str(error.__cause__)
            passing = passes(error)
        except Exception as error:  # noqa: BLE001 - whatever a library raises on a damaged bundle, the old one stays
            # Its text alone: it refers to this frame and those below, which hold all that was opened of the bundle.
            reason, unforeseen = f"{path}: cannot be opened: {type(error).__name__}: {error}", str(error)
            passing = passes(error)
        else:
            self._note(path.name, None)
            return ActiveBundle(path.name, opened, stamp)
        _free_memory()
        # Of an unexpected exception only the type: its text may hold anything.
        short = reason if unforeseen is None else reason.removesuffix(f": {unforeseen}")
        pauses = None
        if passing:
            pauses = (refusal and refusal.pauses) or Pauses(FIRST_PAUSE_S)
            pauses.fail()
        self._note(path.name, BundleRefusal(reason=reason, short=short, stamps=stamps, pauses=pauses))
        return None

    def _wanted(self) -> tuple[dict[str, Path], float]:
        """The paths that should serve, by role, and the canary's share; a link is refused when it is opened."""
        if self._versions is None:
            return {"active": self.path}, 0.0
        active, root = self._versions.read(), self._versions.root
        paths, canary = {"active": root / active.active}, active.canary
        if canary is None:
            return paths, 0.0
        return paths | {"canary": root / canary.bundle}, canary.share

    def _note(self, name: str, refusal: BundleRefusal | None) -> None:
        # A new mapping each time: other threads may be reading the old one.
        others = {each: why for each, why in self._refused.items() if each != name}
        self._refused = others if refusal is None else others | {name: refusal}

    def _give_back(self) -> None:
        """Frees the memory of retired bundles whose last request is answered."""
        alive = [retired for retired in self._retired if retired() is not None]
        if len(alive) < len(self._retired):
            self._retired = alive
            _free_memory()


def _place(user_id: str, bundle: str) -> float:
    """A user's position in [0, 1), in a different order for each bundle."""
    digest = hashlib.blake2b(f"{bundle}\0{user_id}".encode(errors="surrogatepass"), digest_size=8).digest()
    # The upper 53 bits, which a float holds exactly: the quotient stays below 1.
    return (int.from_bytes(digest) >> 11) / 2**53


def _free_memory() -> None:
    # A SavedModel is full of cycles, which only the collector frees; the C library keeps freed memory.
    gc.collect()
    _trim()


def _trim() -> None:
    """Returns free memory to the system if the C library can."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
