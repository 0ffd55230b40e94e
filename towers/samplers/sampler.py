"""The negative samplers: the batch's own items, draws from a noise, and mixtures."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from towers.data.events import Int64s
from towers.ops.stateless_random import fold
from towers.samplers.distinct import Plan, distinct_count, draw_distinct
from towers.samplers.duplicates import first_copies
from towers.samplers.learned import LearnedCounts
from towers.samplers.noises import Earlier, Noise


class SampledCandidates(NamedTuple):
    """The candidates of one batch.

    Attributes:
        item: int64 [M] items, by rank of training examples (0 is the most frequent).
        log_q: float32 [M] log of how often each is expected among the M.
        log_q_positive: float32 [B, K] the same for the positives.
        mask: bool [M]; False for a masked candidate.
    """

    item: tf.Tensor
    log_q: tf.Tensor
    log_q_positive: tf.Tensor
    mask: tf.Tensor


class Draw(NamedTuple):
    """One draw, before its Q is computed.

    Attributes:
        item: int64 [M].
        mask: bool [M]; False for a masked candidate.
        tries: float32 scalar, the number of draws it took; for a mixture a tuple, one for each part.
    """

    item: tf.Tensor
    mask: tf.Tensor
    tries: Any


class NegativeSampler(tf.Module):
    """Draws the negatives of a batch.

    Attributes:
        includes_batch: whether the first B candidates are the batch's own first positives, in order.
        batch_alone: whether there are no others.
        learns: whether it counts the positives that pass.
    """

    includes_batch = False
    batch_alone: ClassVar[bool] = False
    learns = False

    def draw(self, positives: tf.Tensor, seed: tf.Tensor) -> SampledCandidates:
        """Draws, then counts the batch's positives if the sampler learns from them.

        Args:
            positives: int64 [B, K] items; the first of each row is counted.
            seed: int32 [2]; the same seed and state give the same draw.
        """
        sample = self.sample(positives, tf.cast(seed, tf.int64))
        drawn = SampledCandidates(
            sample.item,
            tf.math.log(self.expected_count(sample.item, sample.tries)),
            tf.math.log(self.expected_count(positives, sample.tries)),
            sample.mask,
        )
        self.learn(positives[:, 0])
        return drawn

    @abstractmethod
    def sample(self, positives: tf.Tensor, seed: tf.Tensor) -> Draw:
        """Draws the candidates.

        Args:
            positives: int64 [B, K].
            seed: int64 [2].
        """

    @abstractmethod
    def expected_count(self, item: tf.Tensor, tries: Any) -> tf.Tensor:
        """Q of items of any shape: how often each was expected in the sample that took `tries` draws.

        Uses float32 and formulas without cancellation: log Q is within 1e-6 of its size for any q down to 1e-37. (In
        float64, log1p and expm1 would take longer than the draw.)
        """

    def learn(self, item: tf.Tensor) -> None:
        """Counts the positives `item` [B] if the sampler learns."""

    def warm_start(self, value_of: Earlier, ranks: Int64s, share: float) -> None:
        """Starts from what an earlier run learnt, if the sampler learns.

        Args:
            value_of: gives the value of a variable of this sampler in the earlier run.
            ranks: [N] the earlier rank of each item, by its rank; -1 for a new item.
            share: of what the earlier run counted, 0 to 1.
        """


class InBatchSampler(NegativeSampler):
    """Candidates are the queries' own first positives (Yi et al., RecSys 2019): ``Q = B q``.

    Args:
        counts: [N] training examples of each item; 0 for one whose events are no examples.
        learned: count positives as they pass, from 1 each, instead of using `counts`.
        distinct: mask all but the first copy of an item: ``Q = 1 - (1 - q)^B``.
    """

    includes_batch = True
    batch_alone = True

    def __init__(self, counts: NDArray[np.int64], learned: bool = False, distinct: bool = False) -> None:
        super().__init__(name="in_batch")
        self._size, self._distinct = len(counts), distinct
        self.learns = learned
        self.learned = LearnedCounts(len(counts)) if learned else None
        if not learned:
            self._share = tf.constant(counts / counts.sum(), tf.float32)

    def sample(self, positives: tf.Tensor, seed: tf.Tensor) -> Draw:
        """The first positive of each query."""
        item = positives[:, 0]
        mask = first_copies(item, self._size) if self._distinct else tf.ones_like(item, tf.bool)
        return Draw(item, mask, tf.cast(tf.size(item, tf.int64), tf.float32))

    def expected_count(self, item: tf.Tensor, tries: tf.Tensor) -> tf.Tensor:
        """Q of items of any shape."""
        q = self.learned.probability(item) if self.learned else tf.gather(self._share, item)
        return distinct_count(q, tries) if self._distinct else tries * q

    def learn(self, item: tf.Tensor) -> None:
        """Counts the positives if frequencies are learned."""
        if self.learned:
            self.learned.add(item)

    def warm_start(self, value_of: Earlier, ranks: Int64s, share: float) -> None:
        """Takes over the counts if frequencies are learned."""
        if self.learned:
            self.learned.warm_start(value_of, ranks, share)


class NoiseSampler(NegativeSampler):
    """Draws k negatives from `noise`, shared by the whole batch.

    Q is ``k q`` with replacement and ``1 - (1 - q)^T`` for distinct draws, T the number of draws for k distinct items.

    Args:
        noise: the distribution.
        count: k.
        plan: how to draw distinct items; None draws with replacement.
        name: the sampler's name; with `part`, it selects the random stream.
        part: index in the mixture.
    """

    def __init__(self, noise: Noise, count: int, plan: Plan | None, name: str, part: int) -> None:
        super().__init__(name=name)
        self.noise, self.learns = noise, noise.learns
        self._count, self._plan, self._stream, self._part = count, plan, name, part

    def sample(self, positives: tf.Tensor, seed: tf.Tensor) -> Draw:
        """Draws k items."""
        own_seed = fold(seed, self._stream, self._part)
        every = tf.ones([self._count], tf.bool)
        if self._plan is None:
            return Draw(self.noise.draw(self._count, own_seed), every, tf.constant(self._count, tf.float32))
        item, tries = draw_distinct(self.noise, self._count, self._plan, own_seed)
        return Draw(item, every, tries)

    def expected_count(self, item: tf.Tensor, tries: tf.Tensor) -> tf.Tensor:
        """Q of items of any shape."""
        q = self.noise.probability(item)
        return tries * q if self._plan is None else distinct_count(q, tries)

    def learn(self, item: tf.Tensor) -> None:
        """Counts the positives if the distribution is learned."""
        if self.learns:
            self.noise.learn(item)

    def warm_start(self, value_of: Earlier, ranks: Int64s, share: float) -> None:
        """Takes over what the distribution counted."""
        self.noise.warm_start(value_of, ranks, share)


class MixedSampler(NegativeSampler):
    """Joins samplers: ``Q_c = sum of the parts' Q_c`` for every candidate, whichever part drew it.

    An item that two parts can draw is expected as often as both together expect it. Source: Yang et al., WWW 2020.

    Args:
        parts: samplers; one that gives the batch's own items comes first.
    """

    def __init__(self, parts: Sequence[NegativeSampler]) -> None:
        super().__init__(name="mixed")
        self.parts = list(parts)
        self.includes_batch = self.parts[0].includes_batch
        self.learns = any(part.learns for part in self.parts)

    def sample(self, positives: tf.Tensor, seed: tf.Tensor) -> Draw:
        """The candidates of all parts, in order."""
        samples = [part.sample(positives, seed) for part in self.parts]
        return Draw(
            tf.concat([sample.item for sample in samples], axis=0),
            tf.concat([sample.mask for sample in samples], axis=0),
            tuple(sample.tries for sample in samples),
        )

    def expected_count(self, item: tf.Tensor, tries: tuple[tf.Tensor, ...]) -> tf.Tensor:
        """Q of items of any shape."""
        return sum(part.expected_count(item, own) for part, own in zip(self.parts, tries, strict=True))

    def learn(self, item: tf.Tensor) -> None:
        """Lets each part that learns count the positives."""
        for part in self.parts:
            part.learn(item)

    def warm_start(self, value_of: Earlier, ranks: Int64s, share: float) -> None:
        """Lets each part take over its own counts."""
        for part in self.parts:
            part.warm_start(value_of, ranks, share)
