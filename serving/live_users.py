"""What users took since the bundle was made: their newest seen items, which are also the end of their history.

In: events, in any order. Out: item ids per user, in time order. Each event counts once, by its id; the journal sees to
that.
"""

import threading
from collections import Counter
from collections.abc import Iterable


class LiveUsers:
    """Events by user. Readers need no lock: a user's tuple is replaced, never changed.

    Attributes:
        count: events taken in.
        item_counts: how often each item was taken.
    """

    def __init__(self) -> None:
        self.count = 0
        self.item_counts: Counter[str] = Counter()
        self._taken: dict[str, tuple[tuple[int, int, str], ...]] = {}
        self._lock = threading.Lock()

    def apply(self, events: Iterable[tuple[int, str, str, int]]) -> None:
        """Takes in (sequence number, user id, item id, time) of new events."""
        new: dict[str, list[tuple[int, int, str]]] = {}
        counts: Counter[str] = Counter()
        for seq, user_id, item_id, time in events:
            new.setdefault(user_id, []).append((time, seq, item_id))
            counts[item_id] += 1
        with self._lock:
            for user_id, taken in new.items():
                # Of one moment, the order in which they were acknowledged.
                self._taken[user_id] = tuple(sorted([*self._taken.get(user_id, ()), *taken]))
                self.count += len(taken)
            self.item_counts.update(counts)

    def items(self, user_id: str | None) -> list[str]:
        """The item ids of a user, newest last; none for a user of whom nothing is known."""
        return [item_id for _, _, item_id in self._taken.get(user_id or "", ())]
