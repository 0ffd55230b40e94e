"""The cheapest way to recommend by content: the items whose pretrained vectors are nearest to those of the history."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import HeldOut
from pipelines.rankers.evaluate import Lists, Ranker
from pipelines.rankers.popular import fill


def nearest(vectors: NDArray[np.float32], k: int, others: Ranker) -> Ranker:
    """The items nearest by cosine to the mean vector of a user's items, without these.

    Args:
        vectors: [N, L] of every item; centred here, and each scaled to length 1.
        k: length of the lists.
        others: answers users without a history.
    """
    centred = vectors - vectors.mean(axis=0)
    unit = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)

    def rank(held: HeldOut) -> Lists:
        lists: NDArray[np.int32] = np.full((len(held.users), k), -1, np.int32)
        for place in range(len(held.users)):
            history = held.seen_items[held.seen_offsets[place] : held.seen_offsets[place + 1]]
            if len(history):
                scores = unit @ unit[history].mean(axis=0)
                scores[history] = -np.inf
                lists[place] = np.argsort(-scores, kind="stable")[:k]
        return fill(lists, others(held)[:, :k])

    return rank


def column_of(data: Dataset, name: str) -> NDArray[np.float32]:
    """A vector column of the items, [N, L]; every item has one."""
    rows: Sequence[Sequence[float]] = data.items[name].to_list()
    return np.asarray(rows, np.float32)
