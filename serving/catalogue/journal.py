"""The journal: puts and deletes of items, users' events and what they were shown, stored before it is acknowledged.

Any thread of any process can add changes and read those after a sequence number. Items, events and impressions are
numbered separately. A reader that has seen a number has seen every change with a lower one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class JournalError(Exception):
    """The journal cannot be opened, read or written; a failed write left nothing. Names the place and the reason."""


@dataclass(frozen=True)
class ItemChange:
    """The latest state of one item; a deleted one has neither features nor attributes."""

    seq: int
    item_id: str
    deleted: bool
    features: dict[str, Any]
    attributes: dict[str, Any]


@dataclass(frozen=True)
class UserEvent:
    """One user's interaction with one item; `time` in whole seconds since 1970, UTC."""

    event_id: str
    user_id: str
    item_id: str
    time: int


@dataclass(frozen=True)
class Impression:
    """The items that one user was shown together, in order, and the id of the request that recalled them."""

    impression_id: str
    request_id: str
    user_id: str
    item_ids: tuple[str, ...]
    time: int


@dataclass(frozen=True)
class Numbers:
    """The last sequence number of each kind of change, and how often a user was forgotten."""

    items: int
    events: int
    impressions: int
    forgotten: int


class Journal(Protocol):
    """An open journal. Thread-safe; another process, also a fork, must open its own.

    Each method raises `JournalError` if the journal cannot be read or written.

    Attributes:
        identity: random, written at creation; sequence numbers are valid only within one identity.
    """

    identity: str

    def put_items(self, items: Sequence[tuple[str, Mapping[str, Any], Mapping[str, Any]]]) -> int:
        """Puts items, all or none, in order. They are on disk when it returns.

        Args:
            items: (item id, features, attributes) each; values must be valid JSON.

        Returns:
            The sequence number of the last item change.

        Raises:
            JournalError: nothing was put.
        """

    def delete_items(self, item_ids: Sequence[str]) -> int:
        """Deletes items, including ones unknown to the journal; otherwise like `put_items`."""

    def add_events(self, events: Sequence[UserEvent]) -> int:
        """Adds events, all or none, in order; skips every event id that was ever added before.

        Returns:
            How many were new.

        Raises:
            JournalError: nothing was added.
        """

    def add_impressions(self, impressions: Sequence[Impression]) -> int:
        """Adds impressions as `add_events` adds events."""

    def items_since(self, seq: int) -> list[ItemChange]:
        """The latest state of every item whose last change has a number above `seq`, in order of change."""

    def events_since(self, seq: int, most: int = -1) -> list[tuple[int, UserEvent]]:
        """Every event with a number above `seq`, or the first `most`, in order of adding; -1 is all."""

    def impressions_since(self, seq: int, most: int = -1) -> list[tuple[int, Impression]]:
        """Every impression with a number above `seq`, or the first `most`, in order of adding; -1 is all."""

    def counts(self) -> tuple[int, ...]:
        """How many changed items, events and impressions it holds."""

    def version(self) -> int:
        """A number that grows with every change that answers depend on, by any process; the same in all of them."""
        last = self.numbers()
        return last.items + last.events + last.forgotten

    def forgotten(self) -> int:
        """How often a user was forgotten: events that a reader holds may be gone once this has grown."""
        return self.numbers().forgotten

    def forget(self, user_id: str, *, dry_run: bool = False) -> dict[str, int]:
        """Deletes all events and impressions of a user.

        Args:
            user_id: the user.
            dry_run: only count them.

        Returns:
            How many there were.

        Raises:
            JournalError: nothing was deleted, or traces are left on the disk: call it again.
        """

    def numbers(self) -> Numbers:
        """The last number of each kind."""

    def load(self, identity: str, numbers: Numbers, blocks: Iterable[tuple[str, Sequence[tuple[Any, ...]]]]) -> None:
        """Takes over what another journal holds, all or nothing; an exception of `blocks` ends it, too.

        Args:
            identity: of the other journal, and then of this one.
            numbers: likewise.
            blocks: tables and rows of `serving.catalogue.journal_rows`, under their numbers.

        Raises:
            JournalError: this one has held changes; nothing was taken over.
        """

    def close(self) -> None:
        """Closes it; a second call does nothing."""
