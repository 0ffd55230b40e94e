"""Refuses a data set that leaks into training: later events, held-out events, counts of the future.

The `DataError` names the file and the row (from 0, as in arrays). Runs before every training, reads the arrays in
blocks, and relies on nothing that `towers prepare` should have ensured.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.console import Advance, no_bar
from pipelines.dataset.arrays import IMPRESSIONS, SPLITS, sum_of_offsets
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import user_blocks
from pipelines.dataset.manifest import DatasetManifest
from pipelines.errors import DataError
from towers.data.blocks import blocks
from towers.data.events import Events

Bad = NDArray[np.bool_]


def refuse_leaks(dataset: Dataset, advance: Advance = no_bar) -> None:
    """Checks a data set before training.

    Args:
        dataset: the data set.
        advance: of `pipelines.console.progress`, in events: `events_read` in all.

    Raises:
        DataError: sizes or order are wrong, a history or a split holds later events, a held-out pair is also in
            train, or the counts are not those of the training events.
    """
    checks = _Checks(dataset, advance)
    for name in checks.parts:
        checks.sizes(name)
    for name in checks.parts:
        checks.rows(name)
    checks.counts()
    if dataset.manifest.timed:
        checks.histories()
        checks.cut_offs()
        checks.order_of_splits()
    if _pairs_are_distinct(dataset.manifest):
        checks.repeated_pairs()


def events_read(manifest: DatasetManifest) -> int:
    """How many events `refuse_leaks` reads, each as often as it does."""
    every = sum(manifest.events.values())
    histories = manifest.events["train"] if manifest.timed else 0
    cut_offs = every if manifest.timed and manifest.split.kind == "global_time" else 0
    return every + histories + cut_offs + (every if _pairs_are_distinct(manifest) else 0)


def _pairs_are_distinct(manifest: DatasetManifest) -> bool:
    return manifest.split.kind != "given" and manifest.config.duplicates != "keep"


class _Checks:
    def __init__(self, dataset: Dataset, advance: Advance) -> None:
        self.parts = {name: dataset.events(name) for name in dataset.parts()}
        self.dataset, self.manifest, self.advance = dataset, dataset.manifest, advance
        self.counted = np.zeros(dataset.manifest.items, np.int64)  # training events of each item

    def parts_of(self, split: str) -> list[Events]:
        """The events of a split, and its impressions if the data set has any."""
        return [self.parts[name] for name in self.dataset.parts(split)]

    def sizes(self, name: str) -> None:
        """Arrays and frames have their lengths, offsets rise from 0 to it, and times exist exactly if timed."""
        events, manifest, split = self.parts[name], self.manifest, name.removesuffix(IMPRESSIONS)
        size = manifest.events[split] - sum(len(part) for part in self.parts_of(split) if part is not events)
        there = {"user": True, "item": True, "weight": manifest.weighted, "time": manifest.timed}
        there |= {
            "type": bool(manifest.event_types),
            "history_end": manifest.timed and name == "train",
            "place": name != split,
        }
        for array, needed in there.items():
            values = getattr(events, array)
            if (values is not None) != needed:
                state = "is missing" if values is None else "must not be there"
                self._fail(f"{name}/{array}.npy {state} (timed = {manifest.timed}, split {manifest.split.kind})")
            if values is not None and len(values) != size:
                self._fail(f"{name}/{array}.npy has {len(values):,} rows, the manifest says {size:,}")
        if (self.dataset.items.height, self.dataset.users.height) != (manifest.items, manifest.users):
            self._fail("items.parquet or users.parquet has another number of rows than the manifest says")
        if manifest.timed and manifest.split.kind == "random":
            self._fail("a random split cannot be timed")
        offsets = events.offsets
        if len(offsets) != manifest.users + 1 or offsets[0] != 0 or offsets[-1] != size:
            self._fail(f"{name}/offsets.npy must go from 0 to {size:,} in {manifest.users + 1:,} steps")
        falling = np.flatnonzero(np.diff(offsets) < 0)
        if len(falling):
            self._fail(f"{name}/offsets.npy, row {falling[0] + 1}: falls")

    def counts(self) -> None:
        """`train_count` counts exactly the training events; items and users are stored by descending count."""
        items = self.dataset.items["train_count"].to_numpy()
        wrong = np.flatnonzero(self.counted != items)
        if len(wrong):
            row = int(wrong[0])
            self._fail(
                f"items.parquet, row {row} ({self.dataset.items['item_id'][row]!r}): train_count is {items[row]}, but "
                f"{self.counted[row]} training events hold it; counts must hold training events only"
            )
        offsets = sum_of_offsets(self.parts_of("train"))
        for file, values in (("items.parquet", self.counted), ("users.parquet", np.diff(offsets))):
            rising = np.flatnonzero(np.diff(values) > 0)
            if len(rising):
                self._fail(
                    f"{file}, row {rising[0] + 1}: more training events than the row before; stored by falling count"
                )

    def rows(self, name: str) -> None:
        """Each event lies within its user's offsets, its item exists, and a user's times never fall."""
        events = self.parts[name]
        for block in self._blocks(events.item):
            item, user = events.item[block], events.user[block]
            self._rows(name, block.start, (item < 0) | (item >= self.manifest.items), "item.npy: no such item number")
            if name in self.dataset.parts("train"):
                self.counted += np.bincount(item, minlength=self.manifest.items)
            self._rows(name, block.start, (user < 0) | (user >= self.manifest.users), "user.npy: no such user number")
            place = np.arange(block.start, block.start + len(user))
            if events.type is not None:
                wrong = (events.type[block] < -1) | (events.type[block] >= len(self.manifest.event_types))
                self._rows(name, block.start, wrong, "type.npy: no such number of a type")
            outside = (place < events.offsets[user]) | (place >= events.offsets[user.astype(np.int64) + 1])
            self._rows(name, block.start, outside, "user.npy: the event lies outside its user's offsets")
            if events.time is not None:
                start = max(block.start - 1, 0)
                time, owner = events.time[start : block.stop], events.user[start : block.stop]
                falls = (np.diff(time) < 0) & (owner[1:] == owner[:-1])
                self._rows(name, start + 1, falls, "time.npy: earlier than the event before, of the same user")

    def histories(self) -> None:
        """A training event's history ends before it, and the history's last event is strictly earlier."""
        train = self.parts["train"]
        for name in self.dataset.parts("train"):
            events = self.parts[name]
            if train.time is None or events.time is None or not len(train):
                return
            for block in self._blocks(events.item):
                user, time = events.user[block].astype(np.int64), events.time[block]
                begin = train.offsets[user]
                if events.history_end is not None:
                    file, end, most = "history_end.npy", events.history_end[block], np.arange(block.start, block.stop)
                else:  # of an impression: the positive events at most up to its place, whose last may be simultaneous
                    end = begin + np.asarray(events.place)[block]
                    file, most, time = "place.npy", train.offsets[user + 1], time + 1
                self._rows(name, block.start, end < begin, f"{file}: the history holds events of another user")
                self._rows(name, block.start, end > most, f"{file}: the history holds the event itself or later ones")
                # Times ascend within a user, so the last event of a history is its latest.
                latest = train.time[np.maximum(end - 1, 0)]
                late = (end > begin) & (latest >= time)
                self._rows(name, block.start, late, f"{file}: the history holds an event that is not strictly earlier")

    def cut_offs(self) -> None:
        """With global_time each split stays on its side of the cut-offs."""
        if self.manifest.split.kind != "global_time":
            return
        valid_from, test_from = (self.manifest.split.boundaries.get(name) for name in ("valid", "test"))
        if valid_from is None or test_from is None or valid_from > test_from:
            self._fail("dataset.json: split.boundaries must hold valid and test, valid not after test")
            return
        limits = {"train": (None, valid_from), "valid": (valid_from, test_from), "test": (test_from, None)}
        for name, part in self.parts.items():
            (low, high), time = limits[name.removesuffix(IMPRESSIONS)], part.time
            if time is None:
                continue
            for block in self._blocks(time):
                values = time[block]
                if high is not None:
                    self._rows(name, block.start, values >= high, f"time.npy: at or after the cut-off {high}")
                if low is not None:
                    self._rows(name, block.start, values < low, f"time.npy: before the cut-off {low}")

    def order_of_splits(self) -> None:
        """No event is later than one of its user in a later split; leave_last_out holds out one positive per split."""
        latest = np.full(self.manifest.users, np.iinfo(np.int64).min)
        before = ""
        for split in SPLITS:
            counts, newest = np.diff(self.parts[split].offsets), latest.copy()
            if self.manifest.split.kind == "leave_last_out" and split != "train" and (counts > 1).any():
                row = int(self.parts[split].offsets[np.flatnonzero(counts > 1)[0]])
                self._fail(f"{split}, row {row}: leave_last_out holds out one positive of a user, here are several")
            for name in self.dataset.parts(split):
                events = self.parts[name]
                some = np.flatnonzero(np.diff(events.offsets))
                if events.time is None or not len(some):
                    continue
                for low, high in user_blocks([events]):
                    users = some[np.searchsorted(some, low) : np.searchsorted(some, high)]
                    first, last = events.offsets[users], events.offsets[users + 1] - 1
                    early = events.time[first] < latest[users]
                    if early.any():
                        row = int(first[np.flatnonzero(early)[0]])
                        user = self._user(int(events.user[row]))
                        self._fail(f"{name}, row {row} (user {user}): earlier than the user's last event in {before}")
                    newest[users] = np.maximum(newest[users], events.time[last])
            before, latest = f"{before} or {split}" if before else split, newest

    def repeated_pairs(self) -> None:
        """No held-out user-item pair is also in an earlier split; an impression repeats only an impression."""
        items = max(self.manifest.items, 1)
        for low, high in user_blocks(list(self.parts.values())):
            pairs, names, rows = [], [], []
            for number, (part, events) in enumerate(self.parts.items()):
                span = slice(int(events.offsets[low]), int(events.offsets[high]))
                pair = events.user[span].astype(np.int64) * items + events.item[span]
                pairs.append(pair * 2 + part.endswith(IMPRESSIONS))
                names.append(np.full(len(pairs[-1]), number))
                rows.append(np.arange(span.start, span.stop))
            pair, name, row = np.concatenate(pairs), np.concatenate(names), np.concatenate(rows)
            order = np.argsort(pair, kind="stable")
            again = np.flatnonzero(pair[order][1:] == pair[order][:-1])
            if len(again):
                first, second = order[again[0]], order[again[0] + 1]
                user, item = divmod(int(pair[first]) // 2, items)
                one, other = (f"{list(self.parts)[name[each]]}, row {row[each]}" for each in (first, second))
                self._fail(
                    f"{other} (user {self._user(user)}, item {self.dataset.items['item_id'][item]!r}): "
                    f"the same pair is also {one}"
                )
            self.advance(len(pair))

    def _blocks(self, array: NDArray[Any]) -> Iterator[slice]:
        """Blocks of the rows of `array`, each counted once it is checked."""
        for block in blocks(array):
            yield block
            self.advance(block.stop - block.start)

    def _rows(self, name: str, start: int, bad: Bad, reason: str) -> None:
        if bad.any():
            row = start + int(np.argmax(bad))
            user = int(self.parts[name].user[row])
            whose = f" (user {self._user(user)})" if 0 <= user < self.manifest.users else ""
            self._fail(f"{name}, row {row}{whose}: {reason}")

    def _user(self, number: int) -> str:
        return repr(self.dataset.users["user_id"][number])

    def _fail(self, reason: str) -> None:
        raise DataError(f"{self.dataset.path}: refused: {reason}")
