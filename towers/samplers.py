"""Where negatives come from, and how often each item is expected among them.

In: training counts. Out: log Q by item. The library owns Q: nobody types a probability in.
"""

import numpy as np
from numpy.typing import NDArray

from towers.events import Floats


class InBatchSampler:
    """Negatives are the batch's own items: item j is expected ``Q_j = B q_j`` times, q_j its share of the examples.

    Args:
        counts: [N] training examples of each item.
        batch_size: B.
    """

    def __init__(self, counts: NDArray[np.int64], batch_size: int) -> None:
        # float64 until the logarithm is taken: q is exact down to one example in any number of them.
        with np.errstate(divide="ignore"):
            log_q = np.log(counts.astype(np.float64)) - np.log(float(counts.sum()))
        self._log_expected_counts: Floats = (log_q + np.log(float(batch_size))).astype(np.float32)

    def log_expected_counts(self, item: NDArray[np.int32]) -> Floats:
        """log Q of `item` [B]; -inf for an item that no training example holds."""
        return self._log_expected_counts[item]
