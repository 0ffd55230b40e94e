"""The batch's own items as negatives.

In: a batch's positives. Out: them as candidates, with ``Q = B q``; q from the training counts or counted on the way.
"""

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from towers.samplers.copies import first_copies
from towers.samplers.distinct import distinct_count
from towers.samplers.drawn import NegativeSampler, Sample
from towers.samplers.learned_unigram import LearnedCounts


class InBatchSampler(NegativeSampler):
    """Candidates are the queries' own first positives (Yi et al., RecSys 2019): ``Q = B q``.

    Args:
        counts: [N] training examples of each item, at least 1.
        learned: count positives as they pass, from 1 each, instead of taking `counts`.
        distinct: of an item's copies only the first counts: ``Q = 1 - (1 - q)^B``.
    """

    own = True

    def __init__(self, counts: NDArray[np.int64], learned: bool = False, distinct: bool = False) -> None:
        super().__init__(name="in_batch")
        self._size, self._distinct = len(counts), distinct
        self.learned = LearnedCounts(len(counts)) if learned else None
        if not learned:
            self._share = tf.constant(counts / counts.sum(), tf.float32)

    def sample(self, positives: tf.Tensor, seed: tf.Tensor) -> Sample:
        """The first positive of each query."""
        del seed
        item = positives[:, 0]
        mask = first_copies(item, self._size) if self._distinct else tf.ones_like(item, tf.bool)
        rows = item.shape[0] if item.shape[0] is not None else tf.shape(item, out_type=tf.int64)[0]
        return Sample(item, mask, tf.cast(rows, tf.float32))

    def expected_count(self, item: tf.Tensor, tries: tf.Tensor) -> tf.Tensor:
        """Q of items of any shape."""
        q = self.learned.probability(item) if self.learned else tf.gather(self._share, item)
        return distinct_count(q, tries) if self._distinct else tries * q

    def learn(self, item: tf.Tensor) -> None:
        """Counts the positives where frequencies are learned."""
        if self.learned:
            self.learned.add(item)
