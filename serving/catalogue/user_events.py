"""Users' events since the bundle was made: their newest seen items, which also end their history.

Takes events in any order, returns what each user took in time order. The journal ensures that each event id counts
once. Of one user only the newest are held: every recall of that user reads them all, in the event loop. They are the
newest of each type, because a bundle may leave types out of its histories: many views would push a purchase out.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

MOST = 1_000
MOST_TYPES = 8  # so many times `most` are held of all types together: callers choose their names


class Taken(NamedTuple):
    """What a user took: an event's time in seconds since 1970, its number in the journal, its item and its type."""

    time: int
    seq: int
    item_id: str
    type: str


class UserEvents:
    """Events by user: one writer at a time (`CatalogueUpdates`); readers need no lock.

    A user's tuple is replaced, never changed.

    Args:
        most: the most events held of one user and type.

    Attributes:
        count: number of events held.
        item_counts: number of events per item, including those no longer held.
    """

    def __init__(self, most: int = MOST) -> None:
        self.most, self.count = most, 0
        self.item_counts: Counter[str] = Counter()
        self._taken: dict[str, tuple[Taken, ...]] = {}

    def apply(self, events: Iterable[tuple[str, Taken]], *, anew: bool = False) -> None:
        """Adds new events: the user id and what was taken, each; `anew` replaces all earlier ones."""
        new: dict[str, list[Taken]] = {}
        counts: Counter[str] = Counter()
        for user_id, taken in events:
            new.setdefault(user_id, []).append(taken)
            counts[taken.item_id] += 1
        old = {} if anew else self._taken
        # Events of the same second stay in the order in which they were acknowledged.
        kept = {user: self._newest(sorted([*old.get(user, ()), *taken])) for user, taken in new.items()}
        self.count = (0 if anew else self.count) + sum(len(kept[user]) - len(old.get(user, ())) for user in kept)
        if anew:
            # In one assignment, so that no reader finds a user without events.
            self._taken = kept
            self.item_counts.clear()
        else:
            self._taken.update(kept)
        self.item_counts.update(counts)

    def _newest(self, taken: Sequence[Taken]) -> tuple[Taken, ...]:
        """The newest of each type, of events in time order."""
        if len(taken) <= self.most:
            return tuple(taken)
        counts: Counter[str] = Counter()
        newest = []
        for each in reversed(taken):
            counts[each.type] += 1
            if counts[each.type] <= self.most:
                newest.append(each)
        return tuple(reversed(newest[: MOST_TYPES * self.most]))

    def __contains__(self, user_id: object) -> bool:
        """Whether a user has events."""
        return user_id in self._taken

    def taken(self, user_id: str | None) -> tuple[Taken, ...]:
        """What a user took, newest last; empty for an unknown user."""
        return self._taken.get(user_id or "", ())
