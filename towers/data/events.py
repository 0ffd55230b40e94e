"""The events of one split as flat arrays, sorted by user and then by time."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Int16s = NDArray[np.int16]
Floats = NDArray[np.float32]
Number = TypeVar("Number", bound=np.integer[Any])


@dataclass(frozen=True)
class Events:
    """Events sorted by user, then time. The arrays may be memory-mapped.

    Attributes:
        user: [E] user numbers.
        item: [E] item numbers.
        offsets: [users + 1]; the events of user u are ``offsets[u]:offsets[u + 1]``.
        time: [E]; None in untimed data.
        history_end: [E]; None in untimed data; the history of event e is ``past.offsets[user[e]]:history_end[e]`` of
            `past`, all strictly earlier.
        weight: [E]; None if no weight was mapped.
        type: [E] number of each event's type, -1 for none; None if the data has no types.
        place: [E] how many positive events of its user come before each; None if all are positive.
        positives: the positive events, where others (impressions, of weight 0) lie among them; None otherwise.
    """

    user: Int32s
    item: Int32s
    offsets: Int64s
    time: Int64s | None = None
    history_end: Int64s | None = None
    weight: Floats | None = None
    type: Int16s | None = None
    place: Int32s | None = None
    positives: "Events | None" = None
    _pasts: dict[tuple[int, ...], "Past"] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __len__(self) -> int:
        return len(self.item)

    def between(self, low: int, high: int) -> "Events":
        """The events of users `low` to `high` - 1, as views, without histories; `offsets` count from the first."""
        first = int(self.offsets[low])
        part = slice(first, int(self.offsets[high]))
        return Events(
            self.user[part],
            self.item[part],
            self.offsets[low : high + 1] - first,
            None if self.time is None else self.time[part],
            weight=None if self.weight is None else self.weight[part],
            type=None if self.type is None else self.type[part],
            place=None if self.place is None else self.place[part],
        )

    @property
    def past(self) -> "Events":
        """The events that histories consist of."""
        return self if self.positives is None else self.positives

    def past_place(self, event: Int64s) -> Int64s:
        """The places in `past` of events; one that is not there has that of the next one that is."""
        return event if self.place is None else self.past.offsets[self.user[event]] + self.place[event]

    def past_of(self, types: Sequence[int]) -> "Past":
        """Those of them that are of these types; of all types if there are none. Found once."""
        key = tuple(types)
        if key not in self._pasts:
            self._pasts[key] = Past.of(self.past, key)
        return self._pasts[key]


@dataclass(frozen=True)
class Past:
    """The events that the histories of one feature consist of.

    Attributes:
        item: [P] item numbers.
        time: [P]; None in untimed data.
        types: the types of the events; none: all types.
        before: [E + 1] how many of them come before each place in `Events.past`; None if they are all of those.
    """

    item: Int32s
    time: Int64s | None
    types: tuple[int, ...] = ()
    before: Int64s | None = None

    @classmethod
    def of(cls, events: Events, types: tuple[int, ...], items: NDArray[np.bool_] | None = None) -> "Past":
        """The events of some types, in their order; with `items` [N], only those of the items marked there."""
        if not types and items is None:
            return cls(events.item, events.time)
        kept = np.ones(len(events), np.bool_) if items is None else items[events.item]
        if types:
            kept &= of_types(np.full(len(events), -1) if events.type is None else events.type, types)
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept)])
        return cls(events.item[kept], None if events.time is None else events.time[kept], types, before)

    def places(self, places: Int64s) -> Int64s:
        """The places here of places in `Events.past`; an event that is not here has that of the next one that is."""
        return places if self.before is None else self.before[places]


def of_types(numbers: NDArray[np.integer[Any]], types: Sequence[int]) -> NDArray[np.bool_]:
    """Which of some numbers of types are among `types`; all of them if that names none."""
    return np.isin(numbers, types) if types else np.ones(numbers.shape, np.bool_)


def select_lists(
    rows: NDArray[np.integer[Any]], offsets: Int64s, items: NDArray[Number]
) -> tuple[Int64s, NDArray[Number]]:
    """Returns some lists of items, in the order of `rows`, without items of -1.

    List r of all is `items[offsets[r]:offsets[r + 1]]`, with `offsets` [R + 1]; the same holds for those returned.
    """
    counts = np.diff(offsets)[rows]
    starts = np.repeat(offsets[rows], counts)
    picked = items[starts + np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)]
    kept = picked >= 0
    owner = np.repeat(np.arange(len(rows)), counts)[kept]
    return np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=len(rows)))]), picked[kept]
