"""What users took, as the query tower reads it: the lists of a request, else the stored items and later events.

A tower may take several histories. One whose `events` names types takes only the items of such events, any other takes
all.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from serving.bundle.manifest import FeatureSpec
from serving.bundle.reader import Bundle
from serving.bundle.request_features import history_of
from serving.catalogue.journal_rows import UNTYPED
from serving.catalogue.user_events import Taken


class Histories:
    """The histories that a bundle's query tower takes.

    Args:
        bundle: an opened bundle.

    Attributes:
        specs: the histories among the tower's features.
        times: the names of the inputs for their times.
        names: the names of all of these.
        of_all_types: whether one of them takes all events, as the history beside a request's features does.
        partial: whether the bundle has items without a training event: known by their features, or added by a fold.
    """

    def __init__(self, bundle: Bundle) -> None:
        self.bundle, self.specs = bundle, bundle.manifest.histories
        self.times = [spec.name for spec in bundle.manifest.query_features if spec.kind == "history_times"]
        self.names = {*self.times, *(spec.name for spec in self.specs)}
        self.of_all_types = any(not spec.events for spec in self.specs)
        data = bundle.manifest.lineage.get("config", {}).get("data", {})
        types = data.get("event_types")
        self._counting = {*types, UNTYPED} if types else None  # of other types training knew no event
        self._stays = {"first": 1, "last": -1}.get(data.get("duplicates"))  # a repeated item counts as in training
        self.partial = not bundle.popularity.all()
        self._numbers = {name: number for number, name in enumerate(bundle.manifest.event_types)}

    def read(self, taken: Sequence[Taken]) -> list[str]:
        """The items that at least one of them takes, in order."""
        types = {name for spec in self.specs for name in spec.events}
        return [each.item_id for each in taken if self.of_all_types or each.type in types]

    def sent(self, features: Mapping[str, Any]) -> list[str]:
        """All items of the histories among a request's features."""
        return [item_id for spec in self.specs for item_id in features.get(spec.name, ())]

    def known(self, features: Mapping[str, Any], history: Sequence[str]) -> dict[str, Sequence[str]]:
        """The known items of a request by history; unknown ones would only push them out of the last `length`.

        Args:
            features: a request's features.
            history: the known items beside them, for each history of all types that the features lack.
        """
        return {
            spec.name: self.trained(features.get(spec.name)) or ([] if spec.events else history) for spec in self.specs
        }

    def length(self, known: Mapping[str, Sequence[object]], history: Sequence[str]) -> int:
        """How many known items a request sends: in all histories of types together, or in the longest other list.

        `history`, the known items beside the features, counts if no history is of all types.
        """
        of_types = [len(known[spec.name]) for spec in self.specs if spec.events]
        others = [len(known[spec.name]) for spec in self.specs if not spec.events] or [len(history)]
        return max(sum(of_types), *others)

    def fill(
        self,
        features: dict[str, Any],
        known: Mapping[str, Sequence[str]],
        user_row: int | None,
        live: Sequence[Taken],
    ) -> None:
        """Sets all histories and their times among a request's features, as the tower takes them.

        Args:
            features: the request's features.
            known: its known items.
            user_row: the user, whose stored items and `live` fill what the request lacks; None if unknown.
            live: what the user took since.
        """
        for name in self.times:
            pairs = zip(features.get(history_of(name)) or (), features.pop(name, None) or (), strict=False)
            if times := [time for item_id, time in pairs if self._knows(item_id)]:
                features[name] = times
        for spec in self.specs:
            features[spec.name] = known[spec.name] or self._stored(spec, user_row, live)

    def later(self, live: Sequence[Taken], user_row: int | None) -> Sequence[Taken]:
        """What adds to a user's stored history, of all that the user took since the bundle was made, newest last."""
        stays, counting = self._stays, self._counting
        if counting is not None:  # before repeats, as `prepare` and a fold do
            live = [each for each in live if each.type in counting]
        if stays is not None:
            once: dict[str, Taken] = {}
            for each in live[::stays]:
                once.setdefault(each.item_id, each)
            live = tuple(once.values())[::stays]
        if not live or user_row is None:
            return live
        rows, seen, types = self.bundle.item_rows, self.bundle.seen(user_row).tolist(), self.bundle.seen_types(user_row)
        if types is None or stays is not None:
            held = set(seen)
            return [each for each in live if rows.get(each.item_id) not in held]
        # Where repeats stay, an item that was clicked and then bought is in both histories.
        pairs = set(zip(seen, types.tolist(), strict=True))
        return [each for each in live if (rows.get(each.item_id), self._numbers.get(each.type, -1)) not in pairs]

    def trained(self, item_ids: Sequence[str] | None) -> list[str]:
        """The items that the tower knows; those without a training event mean nothing to it."""
        return [item_id for item_id in item_ids or () if self._knows(item_id)]

    def knows(self, item_ids: Sequence[str] | None) -> bool:
        """Whether the tower knows one of the items."""
        return any(map(self._knows, item_ids or ()))

    def _knows(self, item_id: str) -> bool:
        row = self.bundle.item_rows.find(item_id)
        # Of items with fewer events than `min_count`, or with validation events alone, the bundle does not tell it.
        return row >= 0 and not (self.partial and self.bundle.popularity[row] == 0)

    def _stored(self, spec: FeatureSpec, user_row: int | None, live: Sequence[Taken]) -> list[str]:
        """The newest items that the service knows of a user, newest last: the stored ones, then later ones."""
        most, before = spec.length or 0, list[str]()
        if user_row is not None:
            rows = self.bundle.seen(user_row)
            if spec.events:
                numbers = [self._numbers[name] for name in spec.events if name in self._numbers]
                types = self.bundle.seen_types(user_row)
                rows = rows[:0] if types is None else rows[np.isin(types, numbers)]
            before = self.bundle.item_names.at(rows[-most:])
        if not live:
            return before
        later = [each.item_id for each in live if not spec.events or each.type in spec.events]
        return (before + self.trained(later))[-most:]
