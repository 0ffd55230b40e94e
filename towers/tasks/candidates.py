"""The candidates that all queries of a batch share: what the sampler draws, their vectors, and what is masked."""

import zlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from towers.config.loss_section import SampledLoss
from towers.data.batch import Batch
from towers.losses.blockwise_softmax import Candidates
from towers.losses.impressions import with_impressions
from towers.losses.scores import Scores, hardest, known, product, without_hits
from towers.ops.replicas import Replicas
from towers.samplers.sampler import NegativeSampler, SampledCandidates

# Masks and noise of the two sides, and of positives and negatives, come from separate streams: each has its own seed.
POSITIVES, NEGATIVES = (np.array([zlib.crc32(name) >> 1, 0], np.int32) for name in (b"positives", b"negatives"))

NO_ITEM = -1


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


def in_blocks(drawn: CandidateVectors, inputs: Batch, loss: SampledLoss, count: int, own: int | None) -> Candidates:
    """The candidates with their correction, and what each query must not see of them.

    Args:
        drawn: the candidates.
        inputs: the batch.
        loss: says what is removed.
        count: items of the catalogue.
        own: the first of the candidates that are the queries' own items; None: none are.
    """
    sample, vectors = drawn
    excluded = liked = None
    if loss.remove_accidental_hits:
        # The example's own item is among them, as the first positive.
        excluded, own = tf.where(inputs.present, inputs.item, NO_ITEM), None
    if loss.known_positives:
        # Hits are looked up together with them at almost no cost: no candidate's name is compared.
        items = inputs.known if excluded is None else tf.concat([inputs.known, excluded], 1)
        liked, excluded = known(items, sample.item, count), None
    return Candidates(vectors, -loss.strength * sample.log_q, sample.mask, sample.item, excluded, liked, own)


def in_scores(
    drawn: CandidateVectors,
    inputs: Batch,
    loss: SampledLoss,
    count: int,
    own: int | None,
    query: tf.Tensor,
    own_scores: tf.Tensor,
    *,
    half: bool,
) -> Scores:
    """The scores of all candidates [B, M] and their mask, for a loss that needs more of them than a sum.

    Args:
        drawn, inputs, loss, count, own: as in `in_blocks`.
        query: [B, D], multiplied by the scale of the scores.
        own_scores: [B, K + n] of the positives and impressions.
        half: multiply in bfloat16.
    """
    sample, vectors = drawn
    batch = tf.shape(inputs.item)[0]
    negative = product(query, vectors, half=half, transpose_b=True)
    mask = tf.broadcast_to(sample.mask[tf.newaxis, :], tf.shape(negative))
    if own is not None:
        # The diagonal holds each query's own item.
        mask = tf.linalg.set_diag(mask, tf.zeros([batch], tf.bool), k=own)
    if loss.remove_accidental_hits:
        mask = without_hits(mask, inputs.item, inputs.present, sample.item)
    if loss.known_positives:
        mask &= ~known(inputs.known, sample.item, count).hits()
    positive, shown = split(own_scores, inputs)
    scores = Scores(positive, negative, inputs.present, mask, sample.log_q_positive, sample.log_q)
    if loss.hardest_negatives is not None:
        scores = hardest(scores, min(loss.hardest_negatives, negative.shape[1]), loss.strength)
    if loss.impressions:
        scores = with_impressions(scores, shown, inputs.shown >= 0, loss.impression_weight)
    return scores


def split(own: tf.Tensor, inputs: Batch) -> list[tf.Tensor]:
    """The scores [B, K] of the positives and those [B, n] of the impressions."""
    scores: list[tf.Tensor] = tf.split(own, [inputs.item.shape[1], inputs.shown.shape[1]], axis=1)
    return scores
