"""Defines warm users and new items by what the model's training saw of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import HeldOut, seen

WARM, COLD = "warm", "cold"
COLD_WITH, COLD_WITHOUT = "cold_with_history", "cold_without_history"
DEFINITIONS = {
    WARM: "users of whom the model was trained on an event",
    COLD: "users of whom the model was trained on no event",
    COLD_WITH: "cold users with an event before the test, which training did not see",
    COLD_WITHOUT: "cold users without an event before the test",
}
NEW_ITEM = "items of which the model was trained on no event"


@dataclass(frozen=True)
class Trained:
    """What the model was trained on.

    Attributes:
        users: [users] whether training saw an event of each.
        items: [N] whether training saw an event of each.
    """

    users: NDArray[np.bool_]
    items: NDArray[np.bool_]

    @classmethod
    def of(cls, data: Dataset, splits: Sequence[str]) -> "Trained":
        """Counts the events of these splits; an event of weight 0 is an impression and does not count."""
        offsets, items = seen(data, splits)
        return cls(np.diff(offsets) > 0, np.bincount(items, minlength=data.manifest.items) > 0)

    @property
    def new_items(self) -> NDArray[np.bool_]:
        """[N] items without a training event."""
        return ~self.items

    def slices(self, held: HeldOut) -> dict[str, NDArray[np.bool_]]:
        """Returns slice name -> [Q] which held-out users are in it."""
        warm, known = self.users[held.users], np.diff(held.seen_offsets) > 0
        return {WARM: warm, COLD: ~warm, COLD_WITH: ~warm & known, COLD_WITHOUT: ~warm & ~known}
