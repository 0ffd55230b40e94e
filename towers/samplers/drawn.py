"""What a sampler gives a training step, and what every sampler is.

In: the batch's positives and the step's seed. Out: `Drawn`: candidates with their log Q.
"""

from abc import abstractmethod
from typing import Any, NamedTuple

import tensorflow as tf


class Drawn(NamedTuple):
    """The candidates of one batch.

    Attributes:
        item: int64 [M] items, by rank of training examples (0 is the most frequent).
        log_q: float32 [M] log of the expected number of times each is among the M.
        log_q_positive: float32 [B, K] the same of the positives.
        mask: bool [M]; False where a candidate does not count.
    """

    item: tf.Tensor
    log_q: tf.Tensor
    log_q_positive: tf.Tensor
    mask: tf.Tensor


class Sample(NamedTuple):
    """What one draw gives before its Q is asked for.

    Attributes:
        item: int64 [M].
        mask: bool [M]; False where a candidate does not count.
        tries: float32 scalar, the draws it took; of a mixture a tuple, one for each part.
    """

    item: tf.Tensor
    mask: tf.Tensor
    tries: Any


class NegativeSampler(tf.Module):
    """Draws the negatives of a batch.

    Attributes:
        own: leading candidates are the batch's own first positives, B of them, in the batch's order.
    """

    own = False

    def draw(self, positives: tf.Tensor, seed: tf.Tensor) -> Drawn:
        """Draws, then counts the batch's positives where the sampler learns from them.

        Args:
            positives: int64 [B, K] items; the first of each row is counted.
            seed: int32 [2]; the same seed (and state) draws the same.
        """
        sample = self.sample(positives, tf.cast(seed, tf.int64))
        drawn = Drawn(
            sample.item,
            tf.math.log(self.expected_count(sample.item, sample.tries)),
            tf.math.log(self.expected_count(positives, sample.tries)),
            sample.mask,
        )
        self.learn(positives[:, 0])
        return drawn

    @abstractmethod
    def sample(self, positives: tf.Tensor, seed: tf.Tensor) -> Sample:
        """The candidates.

        Args:
            positives: int64 [B, K].
            seed: int64 [2].
        """

    @abstractmethod
    def expected_count(self, item: tf.Tensor, tries: Any) -> tf.Tensor:
        """Q of items of any shape: how often each was expected in the sample that took so many `tries`.

        float32 from formulas without cancellation: log Q is within 1e-6 at any q down to 1e-37. (float64 log1p and
        expm1 would take longer than the draw.)
        """

    def learn(self, item: tf.Tensor) -> None:
        """Counts the positives `item` [B], where the sampler learns."""
        del item
