"""Keeps local copies of the bundles that are active in a store: a root that services follow like any other.

`active.json` of the copies names only what is copied and verified. Whatever goes wrong changes nothing there, and is
written down for all processes that use the copies.
"""

import fcntl
import os
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from serving.background import Rest, no_pause
from serving.bundle.active import ACTIVE, Active, parsed_active
from serving.bundle.manifest import MANIFEST
from serving.bundle.versions import Versions
from serving.client.address import without_secrets
from serving.errors import BundleError
from serving.files.disk_full import DiskFullError
from serving.files.staging import put_back, remove, remove_left_overs, staged, unclear
from serving.service.fetch import PARTIAL, staging_of
from serving.service.look import Look, Refusal, refusal_of
from serving.service.store import Store

STATE, LOCK = ".store.json", ".store.lock"


class State(BaseModel):
    """What the last look into the store found.

    Attributes:
        url: of the store, without a password.
        stamp: of all that decides what is copied; None if the next look must try again.
        refused: by the bundle's name.
        away: why nothing could be learnt from the store, if so.
    """

    model_config = ConfigDict(frozen=True)

    url: str
    stamp: str | None = None
    refused: dict[str, Refusal] = {}
    away: Refusal | None = None


class Mirror:
    """The copies of one store. All processes of a machine may share them; one at a time looks into the store.

    Args:
        url: of a root of bundles in a store.
        root: the directory of the copies.
        verify: whether copies that are there already are compared by content, not only by size.
    """

    def __init__(self, url: str, root: Path, *, verify: bool = True) -> None:
        self.root, self._url, self._verify = root, url, verify
        self._shown = without_secrets(url.rstrip("/"))
        self._fault: Refusal | None = None

    @property
    def refused(self) -> dict[str, Refusal]:
        """What of the store is not used: by the bundle's name, or under `active.json`."""
        state = self._state()
        away = self._fault or state.away
        return state.refused | ({} if away is None else {ACTIVE: away})

    def follow_first(self, *, again: bool, fresh_s: float = 0.0) -> None:
        """Does what `follow` does, before anything answers.

        Raises:
            BundleError: there is no copy that could answer, or the directory holds something else.
        """
        self._refuse_others()
        self.follow(again=again, fresh_s=fresh_s, wait=again or not (self.root / ACTIVE).exists())
        if not (self.root / ACTIVE).exists():
            raise BundleError("; ".join(each.reason for each in self.refused.values()))

    def follow(
        self,
        *,
        again: bool,
        answering: Collection[str] | None = None,
        rest: Rest = no_pause,
        fresh_s: float = 0.0,
        wait: bool = True,
    ) -> None:
        """Copies what is active in the store, and makes the copies active. Faults are in `refused`.

        Args:
            again: also retry what was refused although nothing has changed in the store.
            answering: the bundles in use; others are removed, except the one before the active one. None removes none.
            rest: called after each block.
            fresh_s: do nothing if the last look is not older.
            wait: for another process that looks, which may take as long as the copy of a bundle; else do nothing.
        """
        try:
            with self._alone(wait=wait):
                if not 0 <= time.time() - self._looked_at() < fresh_s:
                    self._write(self._look(again, answering, rest))
            self._fault = None
        except BlockingIOError:
            pass
        except OSError as error:
            reason = f"{self.root}: cannot hold copies: {error.strerror}; name another directory as `cache`"
            self._fault = self._refusal(BundleError(reason))
        except (BundleError, DiskFullError) as error:
            self._fault = self._refusal(error)

    def _look(self, again: bool, answering: Collection[str] | None, rest: Rest) -> State:
        before = self._state()
        put_back(self.root, alone=True)
        remove_left_overs(self.root)
        try:
            store = Store(self._url)
            content = store.active()
            wanted = parsed_active(content, store.place(ACTIVE))
        except BundleError as error:
            return before.model_copy(update={"away": self._refusal(error)})
        look = Look(store, self.root, answering or () if self._verify else None, rest)
        roles = [wanted.active, *([] if wanted.canary is None else [wanted.canary.bundle])]
        outdated = [] if answering is None else look.outdated({*self._copies()} - {*roles, *answering})
        stamp = look.stamp(content, roles)
        held = self._held()
        if stamp is not None and stamp == before.stamp and not (again or outdated):
            if held is not None and answering is not None:  # the first look could not know what is in use
                self._use(held, held, answering, roles, again=False)
            return before.model_copy(update={"away": None})
        copied = [name for name in roles if look.copied(name)]
        later = content
        with suppress(BundleError):
            later = store.active()
        if later != content:  # a copy takes minutes; meanwhile a bundle may have been rolled back
            return self._look(again, answering, rest)
        now = _now(wanted, copied, held)
        if now is None and (name := next(filter(look.copied, wanted.previous), None)):
            now = wanted.model_copy(update={"active": name, "canary": None})
        if now is not None:
            now = now.model_copy(update={"previous": tuple(name for name in now.previous if name not in outdated)})
            self._use(now, held, answering, roles, again=again)
        return State(url=before.url, stamp=stamp if look.certain else None, refused=look.refused)

    def _use(
        self, now: Active, held: Active | None, answering: Collection[str] | None, roles: list[str], *, again: bool
    ) -> None:
        """Makes copies active; removes those that nobody needs, but no unfinished one of the bundles in `roles`."""
        there = [name for name in now.previous if name != now.active and (self.root / name / MANIFEST).is_file()]
        needed = {now.active, *there[:1], *(answering or ())} | ({now.canary.bundle} if now.canary else set())
        previous = tuple(there if answering is None else [name for name in there if name in needed])
        now = now.model_copy(update={"previous": previous})
        if now != held or again:
            with staged(self.root / ACTIVE, overwrite=True) as staging:
                staging.write_text(now.model_dump_json(), encoding="utf-8")
        if answering is not None:
            unfinished = [path.name for path in self.root.glob(f".*{PARTIAL}")]
            for name in {*self._copies(), *unfinished} - needed - {staging_of(self.root, each).name for each in roles}:
                # The manifest last: by it the rest is known as that of a copy after a kill.
                for path in sorted((self.root / name).iterdir(), key=lambda path: path.name == MANIFEST):
                    remove(path)
                remove(self.root / name)
            for out, _, path in unclear(self.root):  # of a container of another name, killed; here nobody else writes
                if out.exists():
                    remove(path)

    def _copies(self) -> list[str]:
        """The names of the copies; other directories, such as one's backups, are not for it to remove."""
        found = [path.parent for path in self.root.glob(f"[!.]*/{MANIFEST}")]
        return [path.name for path in found if not path.is_symlink()]

    def _held(self) -> Active | None:
        with suppress(BundleError):
            return Versions(self.root).read()
        return None

    def _state(self) -> State:
        try:
            return State.model_validate_json((self.root / STATE).read_bytes())
        except (OSError, ValidationError):
            return State(url=self._shown)

    def _write(self, state: State) -> None:
        with staged(self.root / STATE, overwrite=True) as staging:
            staging.write_text(state.model_dump_json(), encoding="utf-8")

    def _looked_at(self) -> float:
        try:
            return (self.root / STATE).stat().st_mtime
        except FileNotFoundError:
            # Marks the directory as ours before the first copy; the time is that of no look.
            self._write(self._state())
            os.utime(self.root / STATE, (0, 0))
            return 0.0

    def _refuse_others(self) -> None:
        """Refuses a directory of something else: it would be overwritten."""
        other = "name another one as `cache`"
        there = self.root.is_dir() and any(not path.name.startswith(".") for path in self.root.iterdir())
        if there and not (self.root / STATE).exists():
            raise BundleError(f"{self.root}: not empty, and it holds no copies of a store; {other}")
        held = self._state().url
        if held != self._shown:
            raise BundleError(f"{self.root}: holds copies of {held}, not of {self._shown}; {other}")

    def _refusal(self, error: Exception) -> Refusal:
        return refusal_of(error, self._shown, self.root)

    @contextmanager
    def _alone(self, *, wait: bool) -> Iterator[None]:
        self.root.mkdir(parents=True, exist_ok=True)
        self._refuse_others()
        with (self.root / LOCK).open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            yield


def _now(wanted: Active, copied: Sequence[str], held: Active | None) -> Active | None:
    """What is active here: what the store wants as far as it is copied, else the active bundle of before."""
    canary = wanted.canary if wanted.canary is not None and wanted.canary.bundle in copied else None
    if wanted.active in copied:
        return wanted.model_copy(update={"canary": canary})
    if held is None:
        return None
    return held.model_copy(update={"canary": None if canary and canary.bundle == held.active else canary})
