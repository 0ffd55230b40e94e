"""Prepares held-out events for evaluation: for each user, the items known before and the items to find.

All protocols here share a rule: items that a user took earlier are known and masked, so they are not targets, unless
repeats count; users without targets are not evaluated. Impressions, of weight 0, are neither known nor targets. A query
knows its user's earlier splits up to the moment of their first held-out event, that moment included; a training example
knows strictly earlier events (docs/project/design.md says why they differ).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.dataset.arrays import select_events, sum_of_offsets
from pipelines.dataset.dataset import Dataset
from pipelines.errors import DataError
from serving.search.index import is_in
from towers.data.events import Events, Int16s, Int32s, Int64s, select_lists

EARLIER = {"valid": ("train",), "test": ("train", "valid")}
BLOCK_EVENTS = 1_000_000
Window = tuple[int | None, int | None]  # the first tick that counts, and the first that no longer does
# Users, target counts, targets, seen counts, seen items, times and types, number of pairs that are not targets.
Block = tuple[Int32s, Int64s, Int32s, Int64s, Int32s, Int64s, Int16s, int]


@dataclass(frozen=True)
class HeldOut:
    """The evaluation data of one held-out split.

    Attributes:
        users: [Q] numbers of the users with at least one target, ascending.
        target_offsets: [Q + 1]; query q has the targets ``target_items[target_offsets[q]:target_offsets[q + 1]]``.
        target_items: item numbers, each once per query, in the order of the events.
        seen_offsets: [Q + 1]; likewise for `seen_items`.
        seen_items: items of the user's earlier events, newest last, with repeats.
        seen_times: [len(seen_items)] their times, in ticks; None if the data set is not timed.
        seen_types: [len(seen_items)] the numbers of their types; None if the data set has none.
        dropped_targets: number of distinct held-out pairs that are not targets because the user had already taken the
            item.
        repeats: what a user took before may be recommended and is a target when they take it again.
    """

    users: Int32s
    target_offsets: Int64s
    target_items: Int32s
    seen_offsets: Int64s
    seen_items: Int32s
    dropped_targets: int
    seen_times: Int64s | None = None
    seen_types: Int16s | None = None
    repeats: bool = False

    @property
    def masked(self) -> tuple[Int64s, Int32s]:
        """What no ranker may recommend: offsets [Q + 1] and items; nothing where repeats count."""
        if self.repeats:
            return np.zeros_like(self.seen_offsets), self.seen_items[:0]
        return self.seen_offsets, self.seen_items

    def of_queries(self, rows: NDArray[np.integer[Any]]) -> "HeldOut":
        """Only these queries, by their place in `users`, in this order."""
        target_offsets, target_items = select_lists(rows, self.target_offsets, self.target_items)
        seen_offsets, seen_items = select_lists(rows, self.seen_offsets, self.seen_items)
        return replace(
            self,
            users=self.users[rows],
            target_offsets=target_offsets,
            target_items=target_items,
            seen_offsets=seen_offsets,
            seen_items=seen_items,
            seen_times=None,
            seen_types=None,
        )


def heldout(
    dataset: Dataset,
    split: str,
    users: Int32s | None = None,
    *,
    repeats: bool = False,
    window: Window = (None, None),
) -> HeldOut:
    """Returns the evaluation data of ``valid`` (train is known) or ``test`` (train and valid are known).

    Args:
        dataset: the data set.
        split: the split to evaluate on.
        users: only these users; None for all.
        repeats: count an item again that its user had taken before.
        window: count only held-out events of these times, in ticks; the others are as if they were not in the data.

    Raises:
        KeyError: `split` is neither.
        ValueError: a window, but the data set is not timed.
    """
    blocks = _blocks(dataset, split, users, repeats=repeats, window=window)
    asked, target_counts, targets, seen_counts, seen_items, seen_times, seen_types, dropped = zip(*blocks, strict=True)
    return HeldOut(
        users=np.concatenate(asked),
        target_offsets=_offsets(np.concatenate(target_counts)),
        target_items=np.concatenate(targets),
        seen_offsets=_offsets(np.concatenate(seen_counts)),
        seen_items=np.concatenate(seen_items),
        dropped_targets=sum(dropped),
        seen_times=np.concatenate(seen_times) if dataset.manifest.timed else None,
        seen_types=np.concatenate(seen_types) if dataset.manifest.event_types else None,
        repeats=repeats,
    )


def has_targets(dataset: Dataset, split: str) -> bool:
    """Whether `heldout` has users: an event that repeats an earlier one is no target."""
    # Ends at the first of them: a recipe is checked more than once before it is trained.
    return dataset.manifest.events[split] > 0 and any(len(users) for users in _user_blocks(dataset, split))


def refuse_no_targets(dataset: Dataset) -> None:
    """Raises DataError if no report could be made of this data set."""
    if not has_targets(dataset, "test"):
        why = "all are impressions" if dataset.manifest.events["test"] else "prepare it with data.test_share above 0"
        raise DataError(f"{dataset.path}: no user has a test event to recall; {why}")


def heldout_users(dataset: Dataset, split: str, *, repeats: bool = False) -> Int32s:
    """Returns the users of `heldout`, without the lists of what they took, which are as long as the events."""
    return np.concatenate([*_user_blocks(dataset, split, repeats=repeats)])


def _user_blocks(dataset: Dataset, split: str, *, repeats: bool = False) -> Iterator[Int32s]:
    return (users for users, *_ in _blocks(dataset, split, None, repeats=repeats, window=(None, None)))


def _blocks(dataset: Dataset, split: str, chosen: Int32s | None, *, repeats: bool, window: Window) -> Iterator[Block]:
    parts, held_out = [dataset.events(name) for name in EARLIER[split]], dataset.events(split)
    items = max(dataset.manifest.items, 1)
    for low, high in user_blocks([held_out, *parts]):
        held = held_out.between(low, high)
        if window != (None, None):
            held = select_events(held, within(held, window))
        pair = held.user.astype(np.int64) * items + held.item
        _, place = np.unique(pair, return_index=True)
        place.sort()
        user, pair = held.user[place], pair[place]
        seen_user, seen_item, seen_time, seen_type = _known(
            [part.between(low, high) for part in parts], _first_times(held), low
        )
        known = np.sort(seen_user.astype(np.int64) * items + seen_item)
        fresh = np.ones(len(pair), bool) if repeats else ~is_in(pair, known)
        among = np.ones(high - low, bool) if chosen is None else np.isin(np.arange(low, high), chosen)
        wanted = fresh & among[user - low]
        user, pair = user[wanted], pair[wanted]
        users, target_counts = np.unique(user, return_counts=True)
        asked = np.zeros(high - low, bool)
        asked[users - low] = True
        theirs = asked[seen_user - low]
        seen_counts = np.bincount(seen_user[theirs] - low, minlength=high - low)[asked]
        yield (
            users.astype(np.int32),
            target_counts.astype(np.int64),
            (pair % items).astype(np.int32),
            seen_counts.astype(np.int64),
            seen_item[theirs],
            seen_time[theirs],
            seen_type[theirs],
            int(np.count_nonzero(~fresh)),
        )


def within(events: Events, window: Window) -> NDArray[np.bool_]:
    """Returns which events are in the window, [E]; those of untimed data are in the window of all times alone."""
    if window == (None, None):
        return np.ones(len(events), np.bool_)
    if events.time is None:
        raise ValueError("a window needs a timed data set")
    low, high = window
    inside = np.ones(len(events), np.bool_) if low is None else np.asarray(events.time >= low)
    return inside if high is None else inside & (events.time < high)


def seen(dataset: Dataset, splits: Sequence[str]) -> tuple[Int64s, Int32s]:
    """Returns every user's items in the splits, named in time order: offsets [users + 1] and items, newest last."""
    parts = [dataset.events(split) for split in splits]
    return sum_of_offsets(parts), np.concatenate([part.item for part in parts])[_by_user(parts)]


def seen_times(dataset: Dataset, splits: Sequence[str]) -> Int64s | None:
    """Returns the times of these items, in the order of `seen`; None if the data set is not timed."""
    times: Int64s | None = _seen_array(dataset, splits, "time")
    return times


def seen_types(dataset: Dataset, splits: Sequence[str]) -> Int16s | None:
    """Returns the numbers of the types of these events, likewise; None if the data set has no types."""
    types: Int16s | None = _seen_array(dataset, splits, "type")
    return types


def _seen_array(dataset: Dataset, splits: Sequence[str], name: str) -> Any:
    parts = [dataset.events(split) for split in splits]
    values = [array for part in parts if (array := getattr(part, name)) is not None]
    return np.concatenate(values)[_by_user(parts)] if len(values) == len(parts) else None


def user_blocks(parts: Sequence[Events]) -> Iterator[tuple[int, int]]:
    """Yields ranges of users with about `BLOCK_EVENTS` events each, so memory does not grow with the data set."""
    ends = sum_of_offsets(parts)
    users = len(ends) - 1
    bounds = np.searchsorted(ends, np.arange(BLOCK_EVENTS, int(ends[-1]), BLOCK_EVENTS))
    edges = np.unique(np.concatenate(([0], bounds, [users])))
    for low, high in pairwise(edges) if users else [(0, 0)]:
        yield int(low), int(high)


def _by_user(parts: Sequence[Events]) -> NDArray[np.intp]:
    """Returns the order of the joined events of several splits by user."""
    # Stable, so a user's events keep the order of the splits and, within a split, of time.
    return np.argsort(np.concatenate([part.user for part in parts]), kind="stable")


def _first_times(held: Events) -> NDArray[np.int64] | None:
    """Returns the time of each user's first held-out event in a block; the largest int64 for users without one."""
    if held.time is None:
        return None
    begin, end = held.offsets[:-1], held.offsets[1:]
    times = np.full(len(begin), np.iinfo(np.int64).max)
    some = begin < end
    times[some] = held.time[begin[some]]
    return times


def _known(parts: Sequence[Events], until: NDArray[np.int64] | None, low: int) -> tuple[Int32s, Int32s, Int64s, Int16s]:
    """Returns users, items, times and types of the events up to `until`; 0 for the last two where there are none."""
    order = _by_user(parts)
    user = np.concatenate([part.user for part in parts])[order]
    item = np.concatenate([part.item for part in parts])[order]
    times = [np.zeros(len(part), np.int64) if part.time is None else part.time for part in parts]
    time = np.concatenate(times)[order]
    types = [np.zeros(len(part), np.int16) if part.type is None else part.type for part in parts]
    of_type = np.concatenate(types)[order]
    early = np.ones(len(user), bool) if until is None else time <= until[user - low]
    return user[early], item[early], time[early], of_type[early]


def _offsets(counts: NDArray[np.int64]) -> Int64s:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)))
