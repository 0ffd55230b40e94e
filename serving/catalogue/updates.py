"""Validates live changes, writes them to the journal, and applies the journal to every opened bundle.

Changes come from callers and, through the journal, from other workers. The next refresh makes them visible as live
items in each bundle's catalogue and as live events of users.
"""

import logging
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from serving.bundle.reader import Bundle
from serving.bundle.request_features import TowerEncoder, check_features
from serving.catalogue.catalogue import Catalogue
from serving.catalogue.item_columns import checked_attributes, fitting_attributes
from serving.catalogue.journal import Impression, ItemChange, Journal, JournalError, UserEvent
from serving.catalogue.overlay import Change, Progress
from serving.catalogue.user_events import MOST, Taken, UserEvents
from serving.errors import BundleError, RequestError
from serving.search.index import Floats
from serving.telemetry.logs import SERVICE

log = logging.getLogger(SERVICE)

BATCH = 1_024  # items per call of the tower


class CatalogueUpdates:
    """Applies the journal's changes to every bundle that serves.

    Args:
        journal: where changes are stored; without one nothing can be changed.
        item_encoder: loads the candidate tower of a bundle; called once per bundle, on first use.
        most_events: the most events held of one user.
    """

    def __init__(
        self, journal: Journal | None, item_encoder: Callable[[Bundle], TowerEncoder], most_events: int = MOST
    ) -> None:
        self.journal, self._item_encoder = journal, item_encoder
        self.users = UserEvents(most_events)
        self._lock = threading.Lock()
        self._version, self._events, self._forgotten = -1, 0, 0
        # Weak: these must not keep a retired bundle alive.
        self._applied: weakref.WeakKeyDictionary[Catalogue, Progress] = weakref.WeakKeyDictionary()
        self._encoders: weakref.WeakKeyDictionary[Bundle, TowerEncoder] = weakref.WeakKeyDictionary()

    def attach(self, catalogue: Catalogue) -> None:
        """Brings a newly opened bundle up to date before it serves, and keeps it so.

        Raises:
            BundleError: it holds later changes than the journal, in which new ones would get their numbers again.
            JournalError: the journal cannot be read now; the next refresh tries again.
        """
        if self.journal is None:
            return
        held = catalogue.bundle.manifest.live
        same = held is not None and held.journal == self.journal.identity
        applied, events = (held.items, held.events) if held is not None and same else (0, 0)
        try:
            if applied > (last := self.journal.numbers()).items or events > last.events:
                told = f"it holds item change {applied}, event {events}; this state ends at {last.items}, {last.events}"
                raise BundleError(f"{catalogue.bundle.path}: {told}: restore a later one with `towers state restore`")
            # Outside the lock: encoding a long journal must not block changes or the other bundles.
            applied = self._catch_up(catalogue, applied)
        finally:
            with self._lock:
                # If reading fails above or below, the next refresh must not consider itself up to date.
                self._version = -1
                self._applied[catalogue] = Progress(applied)
        with self._lock:
            progress = self._applied[catalogue]
            progress.reach(self._catch_up(catalogue, progress.seq))
            # Another thread may have read events since the first catch-up.
            catalogue.live.recount(catalogue.live.view.ids)
            self._read_events()

    def refresh(self) -> bool:
        """Applies what changed since the last call; returns whether there was anything to do. Thread-safe."""
        if self.journal is None or self.journal.version() == self._version:
            return False
        with self._lock:
            version = self.journal.version()
            for catalogue, progress in list(self._applied.items()):
                if progress.waits():
                    continue
                try:
                    progress.reach(self._catch_up(catalogue, progress.seq))
                except JournalError:
                    raise
                except Exception:
                    # One bundle must not block the others.
                    log.exception("%s: live items cannot be applied", catalogue.bundle.path)
                    progress.fail()
            self._read_events()
            # Read before the changes, so that the next call finds later ones; a bundle that failed stays behind.
            self._version = -1 if any(each.behind for each in self._applied.values()) else version
        return True

    def put(
        self,
        catalogue: Catalogue,
        items: Sequence[tuple[str, Mapping[str, Any], Mapping[str, Any]]],
        path: str = "items.{}.",
    ) -> int:
        """Adds or replaces items, all or none. They are on disk, and visible in this process, when it returns.

        Args:
            catalogue: the catalogue of the bundle whose towers and columns the items must fit.
            items: (item id, features of the candidate tower, item columns) each.
            path: how errors name an item's fields; ``{}`` stands for its position.

        Returns:
            The sequence number of the last change.

        Raises:
            RequestError: an item does not fit, or training learnt nothing about it; names its field.
            JournalError: the journal cannot be written.
        """
        journal, checked = self._journal(), []
        for place, (item_id, features, attributes) in enumerate(items):
            try:
                if not item_id:
                    raise RequestError.at("id", "must not be empty")
                check_features(catalogue.bundle.manifest.candidate_features, features, item_id)
                checked.append((item_id, features, checked_attributes(attributes, catalogue.bundle.attribute_schema)))
            except RequestError as error:
                error.inside(path.format(place))
                raise
        vectors = self._encode(catalogue.bundle, [(item_id, features) for item_id, features, _ in items])
        for place in np.flatnonzero(~vectors.any(axis=1)).tolist():
            known = ", ".join(spec.name for spec in catalogue.bundle.manifest.candidate_features) or "none"
            raise RequestError.at(
                f"{path.format(place)}features",
                "training learnt nothing of these values, so that the item could not be recalled; "
                f"the features are {known}",
                code="not_recallable",
            )
        seq = journal.put_items(checked)
        self._show()
        return seq

    def delete(self, item_ids: Sequence[str]) -> int:
        """Deletes items; unknown ids are not an error. On disk, and visible in this process, when it returns.

        Raises:
            RequestError: there is no journal.
            JournalError: the journal cannot be written.
        """
        seq = self._journal().delete_items(item_ids)
        self._show()
        return seq

    def add_events(self, events: Sequence[UserEvent]) -> int:
        """Adds events; returns how many were new. On disk, and visible in this process, when it returns.

        Raises:
            RequestError: there is no journal.
            JournalError: the journal cannot be written.
        """
        added = self._journal().add_events(events)
        self._show()
        return added

    def add_impressions(self, impressions: Sequence[Impression]) -> int:
        """Adds impressions, which change no answer; returns how many were new. On disk when it returns.

        Raises:
            RequestError: there is no journal.
            JournalError: the journal cannot be written.
        """
        return self._journal().add_impressions(impressions)

    def _show(self) -> None:
        """Makes a stored change visible; a failure here does not undo it."""
        try:
            self.refresh()
        except JournalError as error:
            log.error("live changes cannot be read: %s", error)

    def _journal(self) -> Journal:
        if self.journal is None:
            raise RequestError("this service keeps no live changes; start it with --state DIR", code="no_state")
        return self.journal

    def _read_events(self) -> None:
        assert self.journal is not None
        # Read before the events: a user who is forgotten in between is dropped at the next refresh.
        forgotten = self.journal.forgotten()
        anew = forgotten != self._forgotten
        news = self.journal.events_since(0 if anew else self._events)
        if not news and not anew:
            return
        taken = [(each.user_id, Taken(each.time, seq, each.item_id, each.type)) for seq, each in news]
        self.users.apply(taken, anew=anew)
        self._forgotten = forgotten
        self._events = news[-1][0] if news else self._events
        items = {each.item_id for _, each in news}
        for catalogue in self._applied:
            catalogue.live.recount(catalogue.live.view.ids if anew else items)

    def _catch_up(self, catalogue: Catalogue, seq: int) -> int:
        """Applies the changes after `seq`; returns the number of the last one."""
        assert self.journal is not None
        news = self.journal.items_since(seq)
        if not news:
            return seq
        catalogue.live.apply(self._changes(catalogue.bundle, news))
        return news[-1].seq

    def _changes(self, bundle: Bundle, news: Sequence[ItemChange]) -> list[Change]:
        """The journal's changes for this bundle; an item that it cannot encode is as the bundle has it.

        Whatever earlier change this worker has applied: one that starts now finds only the item's last.
        """
        fitting, changes = [], list[Change]()
        for each in news:
            try:
                check_features(bundle.manifest.candidate_features, each.features)
                fitting.append(each)
            except RequestError as error:
                changes.append(Change(each.item_id, None, undone=True))
                log.warning("%s: a live item is left out: %s", bundle.path, error.message)
        vectors = iter(self._encode(bundle, [(each.item_id, each.features) for each in fitting if not each.deleted]))
        for each in fitting:
            vector = None if each.deleted else next(vectors)
            if vector is None or vector.any():
                attributes = fitting_attributes(each.attributes, bundle.attribute_schema)
                changes.append(Change(each.item_id, vector, attributes))
            else:
                changes.append(Change(each.item_id, None, undone=True))
                log.warning("%s: a live item is left out: training learnt nothing about its features", bundle.path)
        return changes

    def encoder(self, bundle: Bundle) -> TowerEncoder:
        """The candidate tower of a bundle, loaded once."""
        if bundle not in self._encoders:
            self._encoders[bundle] = self._item_encoder(bundle)
        return self._encoders[bundle]

    def _encode(self, bundle: Bundle, items: Sequence[tuple[str, Mapping[str, Any]]]) -> Floats:
        if not items:
            return np.empty((0, bundle.manifest.dimension), np.float32)
        encoder = self.encoder(bundle)
        named = next((spec.name for spec in bundle.manifest.candidate_features if spec.kind == "id"), None)
        requests = [dict(features) if named is None else {**features, named: item_id} for item_id, features in items]
        return np.concatenate([encoder.encode(requests[at : at + BATCH]) for at in range(0, len(requests), BATCH)])
