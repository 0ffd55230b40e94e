"""The candidates that all queries of a batch share: what the sampler draws, and their vectors."""

import zlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from towers.data.batch import Batch
from towers.ops.replicas import Replicas
from towers.samplers.sampler import NegativeSampler, SampledCandidates

# Masks and noise of the two sides, and of positives and negatives, come from separate streams: each has its own seed.
POSITIVES, NEGATIVES = (np.array([zlib.crc32(name) >> 1, 0], np.int32) for name in (b"positives", b"negatives"))


class CandidateVectors(NamedTuple):
    """The candidates from the sampler and their vectors [M, D]."""

    candidates: SampledCandidates
    vectors: tf.Tensor


def draw(
    sampler: NegativeSampler,
    inputs: Batch,
    positive: tf.Tensor,
    encoded: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    replicas: Replicas,
) -> CandidateVectors:
    """Draws the candidates of a batch.

    Args:
        sampler: draws them.
        inputs: the batch, of several workers this one's part.
        positive: [B, D] vectors of the examples' own items.
        encoded: gives the vectors [n, D] of items [n] for a seed [2].
        replicas: the workers that share the batch.
    """
    items = replicas.gather(inputs.item)
    drawn = sampler.draw(items, inputs.seed)
    drawn = drawn._replace(log_q_positive=replicas.own(drawn.log_q_positive))
    if sampler.batch_alone:
        return CandidateVectors(drawn, replicas.gather(positive))
    others = drawn.item[tf.shape(items)[0] :] if sampler.includes_batch else drawn.item
    vectors = encoded(others, inputs.seed + NEGATIVES)
    if not sampler.includes_batch:
        return CandidateVectors(drawn, vectors)
    return CandidateVectors(drawn, tf.concat([replicas.gather(positive), vectors], 0))
