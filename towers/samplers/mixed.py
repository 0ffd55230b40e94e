"""Several samplers side by side.

In: samplers. Out: one whose candidates are all of theirs, and whose Q is the sum of theirs.
"""

from collections.abc import Sequence

import tensorflow as tf

from towers.samplers.drawn import NegativeSampler, Sample


class MixedSampler(NegativeSampler):
    """``Q_c = sum of the parts' Q_c`` for every candidate, whichever part drew it (Yang et al., WWW 2020).

    An item that two parts can draw is expected as often as both together say.

    Args:
        parts: samplers; one that gives the batch's own items stands first.
    """

    def __init__(self, parts: Sequence[NegativeSampler]) -> None:
        super().__init__(name="mixed")
        self.parts = list(parts)
        self.own = self.parts[0].own

    def sample(self, positives: tf.Tensor, seed: tf.Tensor) -> Sample:
        """The parts' candidates, one part after another."""
        samples = [part.sample(positives, seed) for part in self.parts]
        return Sample(
            tf.concat([sample.item for sample in samples], axis=0),
            tf.concat([sample.mask for sample in samples], axis=0),
            tuple(sample.tries for sample in samples),
        )

    def expected_count(self, item: tf.Tensor, tries: tuple[tf.Tensor, ...]) -> tf.Tensor:
        """Q of items of any shape."""
        return sum(part.expected_count(item, own) for part, own in zip(self.parts, tries, strict=True))

    def learn(self, item: tf.Tensor) -> None:
        """Each part counts the positives, where it learns."""
        for part in self.parts:
            part.learn(item)
