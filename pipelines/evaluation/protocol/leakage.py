"""Looks for what makes the figures of a report too good: test events that the model may know in another form.

Each finding is a fact, not a guess: the same event in two splits, two ids with the same events, a column that holds the
id of what is asked, a prior that counts later events. docs/evaluation/report.md names the limits.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.console import amount
from pipelines.dataset.arrays import SPLITS
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import EARLIER, HeldOut, Window, user_blocks, within
from pipelines.dataset.popularity import DAY_S, TICKS_PER_S, has_windows, last_time
from pipelines.evaluation.findings import LATER_PRIOR, NAMES_TARGET, Check, Finding
from pipelines.evaluation.protocol.asked import SPLIT
from serving.bundle.manifest import PriorInfo
from serving.bundle.prior import weighs
from towers.data.blocks import blocks
from towers.data.events import Events

# Events that two ids must share: fewer may be chance. Without a clock, equal times say nothing, so more are needed.
LEAST_TIMED, LEAST_UNTIMED = 3, 10
MOST_NAMED = 0.05  # share of the test users, or targets, whose column names what is asked
TIMES_CHANCE = 2.0  # and this many times as often as another user's, or target's, value does
SEED = 0


def leak_checks(
    data: Dataset, held: HeldOut, prior: PriorInfo | None = None, unknown: int = 0, window: Window = (None, None)
) -> list[Check]:
    """Returns the checks for what leaks.

    Args:
        data: the data set.
        held: the test users.
        prior: of the bundle.
        unknown: how many of the test users have no vector, and are answered with the popular items.
        window: test events of other times do not count.
    """
    events = {name: data.events(name) for name in SPLITS}
    return [
        partial(_events_in_two_splits, data, events),
        partial(later_prior, data, prior, unknown, window),
        *(partial(_twins, data, list(events.values()), side) for side in ("user", "item")),
        partial(_telling_columns, data, held),
    ]


def _events_in_two_splits(data: Dataset, events: dict[str, Events]) -> Iterator[Finding]:
    if not has_windows(data):
        return
    again, parts = 0, list(events.values())
    for low, high in user_blocks(parts):
        frames = {name: _frame(part.between(low, high)) for name, part in events.items()}
        known = pl.concat([frames[name] for name in EARLIER[SPLIT]])
        again += frames[SPLIT].join(known, on=["user", "item", "time"], how="semi").height
    if again:
        text = f"{again:,} test events are also in training or validation: the same user, item and time"
        yield Finding("test events in training", text, again, 0)


def later_prior(
    data: Dataset, prior: PriorInfo | None, unknown: int, window: Window = (None, None)
) -> Iterator[Finding]:
    """Looks for a prior that was renewed, or folded, after the last event that the model may know, or at no known time.

    One that ends before every test event that counts knows none of them, however late it is.
    Without a weight it only ranks the popular items, so of the test it changes the answers of unknown users alone; see
    `leak_checks`.
    """
    if prior is None or not has_windows(data) or data.manifest.time_unit not in TICKS_PER_S:
        return
    latest = max((time for time in (prior.until, prior.folded_until) if time is not None), default=None)
    if not weighs(prior) and not unknown:
        return
    known = last_time([data.events(name) for name in EARLIER[SPLIT]])
    tested = data.events(SPLIT)
    counted, per_s = np.asarray(tested.time)[within(tested, window)], TICKS_PER_S[data.manifest.time_unit]
    told = latest is not None and prior.until is not None  # an export tells it, and a renewal from events with times
    if known is None or (told and len(counted) and latest < counted.min() // per_s):
        return
    lists = f"the list of popular items, the answer to {amount(unknown, 'test users')} of whom nothing is known,"
    what = "the prior" if weighs(prior) else lists
    days = 0.0 if latest is None else (latest - known // per_s) / DAY_S
    if days > 0:
        text = f"{what} counts events of {days:.1f} days after the last one before the test: some may be the test's"
        yield Finding(LATER_PRIOR, text, days, 0)
    elif prior.until is None:
        yield Finding(LATER_PRIOR, f"{what} counts events without times: some may be the test's", days, 0)


def _frame(events: Events) -> pl.DataFrame:
    return pl.DataFrame({"user": events.user, "item": events.item, "time": np.asarray(events.time)})


def _twins(data: Dataset, parts: list[Events], side: str) -> Iterator[Finding]:
    """Two users with the same events, or two items with the same users, at the same times where there are times."""
    clock, sizes_of = has_windows(data), {"user": data.manifest.users, "item": data.manifest.items}
    other, count = "item" if side == "user" else "user", sizes_of[side]
    rng = np.random.default_rng(SEED)
    # The sum of a random number for each event does not depend on their order: equal sums are equal sets of events.
    key_of = rng.integers(0, 2**64, sizes_of[other], np.uint64)
    factor = rng.integers(0, 2**63, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    sums, sizes = np.zeros(count, np.uint64), np.zeros(count, np.int64)
    for part, block in ((each, rows) for each in parts for rows in blocks(each.item)):
        own, keys = getattr(part, side)[block], key_of[getattr(part, other)[block]]
        if part.time is not None and clock:
            keys = _mixed(keys ^ (part.time[block].astype(np.uint64) * factor))
        np.add.at(sums, own, keys)
        sizes += np.bincount(own, minlength=count)
    least = LEAST_TIMED if clock else LEAST_UNTIMED
    many = np.flatnonzero(sizes >= least)
    order = many[np.lexsort((sizes[many], sums[many]))]
    same = (sums[order][1:] == sums[order][:-1]) & (sizes[order][1:] == sizes[order][:-1])
    if same.any():
        twins = int(np.count_nonzero(np.append(same, False) | np.append(False, same)))
        when = " at the same times" if clock else ""
        what = f"took the same items{when}" if side == "user" else f"were taken by the same users{when}"
        text = f"{twins:,} {side}s {what} as another one: one {side} under two ids?"
        if side == "item":  # a report names no user
            place = int(np.argmax(same))
            one, two = data.items["item_id"][order[place : place + 2].tolist()]
            text += f" For example {one!r} and {two!r}"
        yield Finding(f"{side}s under two ids", text, twins, 0)


def _mixed(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser: afterwards a difference in any bit changes half of all bits."""
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return keys ^ (keys >> np.uint64(31))


def _telling_columns(data: Dataset, held: HeldOut) -> Iterator[Finding]:
    """Columns of users that hold the id of an item they take in the test, and of items that hold the id of the user."""
    users = np.repeat(held.users, np.diff(held.target_offsets))
    pairs = pl.DataFrame({"user": users, "item": held.target_items})
    for side, other, table, ids in (
        ("user", "item", data.users, data.items["item_id"]),
        ("item", "user", data.items, data.users["user_id"]),
    ):
        numbers = pl.DataFrame({"value": ids.cast(pl.String), other: np.arange(len(ids), dtype=np.int32)})
        asked = pairs[side].unique().sort()
        for column in [name for name in table.columns[1:] if name != "train_count"]:
            texts = _texts(table[column])
            if texts is None:
                continue
            values = texts.gather(asked)
            # The values of the next one are those of chance: as frequent, but of another.
            shifted = pl.concat([values[1:], values[:1]])
            named, chance = (
                _named(asked, each, numbers, pairs, side, other) / max(len(asked), 1) for each in (values, shifted)
            )
            if named > max(MOST_NAMED, TIMES_CHANCE * chance):
                text = (
                    f"the column {column!r} of {side}s names the {other} of a test event for {named:.0%} of the "
                    f"{side}s in the test ({chance:.0%} by chance): was it computed with the test?"
                )
                yield Finding(f"{side}s.{column} {NAMES_TARGET}", text, named, MOST_NAMED)


def _texts(values: pl.Series) -> pl.Series | None:
    """A column as lists of texts; None for one that cannot hold ids."""
    if values.dtype == pl.String:
        return pl.select(pl.concat_list(values)).to_series()
    if values.dtype == pl.List(pl.String):
        return values
    if values.dtype.is_integer():  # with every digit, which a float does not have
        return _texts(values.cast(pl.String))
    if values.dtype.is_numeric():
        whole = values.cast(pl.Float64)
        return None if (whole != whole.floor()).any() else _texts(whole.cast(pl.Int64, strict=False).cast(pl.String))
    return None


def _named(
    asked: pl.Series, values: pl.Series, numbers: pl.DataFrame, pairs: pl.DataFrame, side: str, other: str
) -> int:
    """How many of those asked have a value that is the id of the other side of one of their pairs."""
    held = pl.DataFrame({side: asked, "value": values}).explode("value").join(numbers, on="value")
    return int(held.join(pairs, on=[side, other], how="semi")[side].n_unique())
