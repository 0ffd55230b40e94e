"""Keeps every opened bundle up to date with the journal, and takes changes in: validated, on the disk, then visible.

In: changes of items and events of users, from callers and, through the journal, from other workers. Out: live items in
each bundle's catalogue and live events of users, both within one look at the journal.
"""

import logging
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from serving.attributes import checked_attributes, fitting_attributes
from serving.bundle import Bundle
from serving.errors import RequestError
from serving.features import check_features
from serving.index import Floats
from serving.journal import ItemChange, Journal, JournalError, UserEvent
from serving.live_items import Change
from serving.live_users import LiveUsers
from serving.recall import Recaller

log = logging.getLogger("uvicorn.error.serving")

BATCH = 1_024  # items through the tower at once


class ItemEncoder(Protocol):
    """The candidate tower: `serving.encoder.Encoder`, or a plain function's wrapper in a test."""

    def encode(self, requests: Sequence[Mapping[str, Any]]) -> Floats:
        """The vectors [B, D] of B items; zero where training learnt nothing of what came."""
        ...


class Live:
    """The journal's changes, in every bundle that answers.

    Args:
        journal: where changes are kept; without one nothing can be changed.
        item_encoder: loads the candidate tower of a bundle; called once for each, when it is first asked for.
    """

    def __init__(self, journal: Journal | None, item_encoder: Callable[[Bundle], ItemEncoder]) -> None:
        self.journal, self._item_encoder = journal, item_encoder
        self.users = LiveUsers()
        self._lock = threading.Lock()
        self._version = -1
        self._events = 0
        # A bundle that nobody answers from any more is forgotten here, too.
        self._applied: weakref.WeakKeyDictionary[Recaller, int] = weakref.WeakKeyDictionary()
        self._encoders: weakref.WeakKeyDictionary[Bundle, ItemEncoder] = weakref.WeakKeyDictionary()

    def attach(self, recaller: Recaller) -> None:
        """Brings a newly opened bundle up to date, and keeps it so; before it answers."""
        if self.journal is None:
            return
        held = recaller.bundle.manifest.live
        same = held is not None and held.journal == self.journal.identity
        # Outside the lock: a long journal takes long to encode, and changes and the other bundles go on meanwhile.
        applied = self._catch_up(recaller, held.items if held is not None and same else 0)
        with self._lock:
            # Should reading fail here, the next look must not take itself for up to date.
            self._version = -1
            self._applied[recaller] = applied
            self._applied[recaller] = self._catch_up(recaller, applied)
            # Another thread may have read events since the first look at the items.
            recaller.catalogue.live.recount(recaller.catalogue.live.view.ids)
            self._read_events()

    def refresh(self) -> bool:
        """Takes in what changed since the last look; whether anything did. Any thread may call it."""
        if self.journal is None or self.journal.version() == self._version:
            return False
        with self._lock:
            version = self.journal.version()
            for recaller in list(self._applied):
                try:
                    self._applied[recaller] = self._catch_up(recaller, self._applied[recaller])
                except JournalError:
                    raise
                except Exception:
                    # One bundle must not hold up the others.
                    log.exception("%s: live items cannot be taken in", recaller.bundle.path)
            self._read_events()
            # Read before the changes: what is added meanwhile is found by the next look.
            self._version = version
        return True

    def put(
        self,
        recaller: Recaller,
        items: Sequence[tuple[str, Mapping[str, Any], Mapping[str, Any]]],
        path: str = "items.{}.",
    ) -> int:
        """Adds or replaces items: all of them or none. They are on the disk, and visible here, when it returns.

        Args:
            recaller: whose towers and columns the items must fit.
            items: (item id, features of the candidate tower, item columns) each.
            path: how an error names the fields of an item, its place for ``{}``.

        Returns:
            The sequence number of the last change.

        Raises:
            RequestError: an item does not fit, or training learnt nothing of it; names its field.
            JournalError: the journal cannot be written.
        """
        journal = self._journal()
        checked = []
        for place, (item_id, features, attributes) in enumerate(items):
            try:
                if not item_id:
                    raise RequestError.at("id", "must not be empty")
                check_features(recaller.bundle.manifest.candidate_features, features)
                checked.append((item_id, features, checked_attributes(attributes, recaller.bundle.attribute_schema)))
            except RequestError as error:
                error.inside(path.format(place))
                raise
        vectors = self._encode(recaller.bundle, [(item_id, features) for item_id, features, _ in items])
        for place in np.flatnonzero(~vectors.any(axis=1)).tolist():
            known = ", ".join(spec.name for spec in recaller.bundle.manifest.candidate_features) or "none"
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
        """Deletes items; unknown ones stay so. On the disk, and visible here, when it returns.

        Raises:
            RequestError: there is no journal.
            JournalError: the journal cannot be written.
        """
        seq = self._journal().delete_items(item_ids)
        self._show()
        return seq

    def add_events(self, events: Sequence[UserEvent]) -> int:
        """Adds what users took; how many were new. On the disk, and visible here, when it returns.

        Raises:
            RequestError: there is no journal.
            JournalError: the journal cannot be written.
        """
        added = self._journal().add_events(events)
        self._show()
        return added

    def _show(self) -> None:
        """Makes a change visible that is on the disk already: whatever fails here, it is not undone."""
        try:
            self.refresh()
        except JournalError as error:
            log.error("live changes cannot be read: %s", error)

    def _journal(self) -> Journal:
        if self.journal is None:
            raise RequestError("this service keeps no live changes; start it with --state DIR", code="no_state")
        return self.journal

    def _read_events(self) -> None:
        news = self.journal.events_since(self._events) if self.journal is not None else []
        self.users.apply((seq, each.user_id, each.item_id, each.time) for seq, each in news)
        if news:
            self._events = news[-1][0]
            taken = {each.item_id for _, each in news}
            for recaller in self._applied:
                recaller.catalogue.live.recount(taken)

    def _catch_up(self, recaller: Recaller, seq: int) -> int:
        """Takes in the changes after `seq`; the last one's number."""
        assert self.journal is not None
        news = self.journal.items_since(seq)
        if not news:
            return seq
        recaller.catalogue.live.apply(self._changes(recaller.bundle, news))
        return news[-1].seq

    def _changes(self, bundle: Bundle, news: Sequence[ItemChange]) -> list[Change]:
        """The journal's changes as this bundle sees them; an item that it cannot encode stays as the bundle has it."""
        changes = {}
        encoded = []
        for each in news:
            try:
                check_features(bundle.manifest.candidate_features, each.features)
            except RequestError as error:
                log.warning("%s: a live item is left out: %s", bundle.path, error.message)
                continue
            attributes = fitting_attributes(each.attributes, bundle.attribute_schema)
            changes[each.item_id] = Change(each.item_id, None, attributes)
            if not each.deleted:
                encoded.append((each.item_id, each.features))
        for (item_id, _), vector in zip(encoded, self._encode(bundle, encoded), strict=True):
            if vector.any():
                changes[item_id] = Change(item_id, vector, changes[item_id].attributes)
            else:
                log.warning("%s: a live item is left out: training learnt nothing of its features", bundle.path)
                del changes[item_id]
        return list(changes.values())

    def encoder(self, bundle: Bundle) -> ItemEncoder:
        """The candidate tower of a bundle, loaded once."""
        if bundle not in self._encoders:
            self._encoders[bundle] = self._item_encoder(bundle)
        return self._encoders[bundle]

    def _encode(self, bundle: Bundle, items: Sequence[tuple[str, Mapping[str, Any]]]) -> Floats:
        if not items:
            return np.empty((0, bundle.manifest.dimension), np.float32)
        encoder = self.encoder(bundle)
        named = next((spec.name for spec in bundle.manifest.candidate_features if spec.kind == "id"), None)
        requests = [dict(features) if named is None else {named: item_id, **features} for item_id, features in items]
        return np.concatenate(
            [encoder.encode(requests[begin : begin + BATCH]) for begin in range(0, len(requests), BATCH)]
        )
