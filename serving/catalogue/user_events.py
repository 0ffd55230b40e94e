"""Users' events since the bundle was made: their newest seen items, which also end their history.

Takes events in any order, returns item ids per user in time order. The journal ensures that each event id counts once.
Of one user only the newest are held: every recall of that user reads them all, in the event loop.
"""

import threading
from collections import Counter
from collections.abc import Iterable

MOST = 1_000


class UserEvents:
    """Events by user. Readers need no lock: a user's tuple is replaced, never changed.

    Args:
        most: the most events held of one user.

    Attributes:
        count: number of events held.
        item_counts: number of events per item, including those no longer held.
    """

    def __init__(self, most: int = MOST) -> None:
        self.most, self.count = most, 0
        self.item_counts: Counter[str] = Counter()
        self._taken: dict[str, tuple[tuple[int, int, str], ...]] = {}
        self._lock = threading.Lock()

    def apply(self, events: Iterable[tuple[int, str, str, int]], *, anew: bool = False) -> None:
        """Adds new events: (sequence number, user id, item id, time) each; `anew` replaces all earlier ones."""
        new: dict[str, list[tuple[int, int, str]]] = {}
        counts: Counter[str] = Counter()
        for seq, user_id, item_id, time in events:
            new.setdefault(user_id, []).append((time, seq, item_id))
            counts[item_id] += 1
        with self._lock:
            old = {} if anew else self._taken
            # Events of the same second stay in the order in which they were acknowledged.
            kept = {user: tuple(sorted([*old.get(user, ()), *taken])[-self.most :]) for user, taken in new.items()}
            self.count = (0 if anew else self.count) + sum(len(kept[user]) - len(old.get(user, ())) for user in kept)
            if anew:
                # In one assignment, so that no reader finds a user without events.
                self._taken = kept
                self.item_counts.clear()
            else:
                self._taken.update(kept)
            self.item_counts.update(counts)

    def __contains__(self, user_id: object) -> bool:
        """Whether a user has events."""
        return user_id in self._taken

    def items(self, user_id: str | None) -> list[str]:
        """The item ids of a user, newest last; empty for an unknown user."""
        return [item_id for _, _, item_id in self._taken.get(user_id or "", ())]
