"""`task = "retrieval"`: trains queries to find their items, in steps: scores, negatives, loss, reduction.

Only this module combines the towers, the sampler, the item features and the loss, so each can be exchanged alone.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_recommenders as tfrs
from numpy.typing import NDArray

from towers.config.loss_section import SampledLoss
from towers.config.recipe import Config
from towers.data.batch import Batch
from towers.data.item_ranks import ItemFeatures
from towers.losses.blockwise_softmax import Candidates, softmax_losses
from towers.losses.distillation import Side, distillation
from towers.losses.full_softmax import full_softmax
from towers.losses.registry import FUNCTIONS, arguments
from towers.losses.scores import Scores, hardest, known, log_sum_exp, mean, product, sqrt_1_minus_cos, without_hits
from towers.losses.softmax import adaptive_margin
from towers.losses.two_terms import log_z_of
from towers.model.two_tower import TwoTower
from towers.ops.replicas import ALONE, Replicas
from towers.samplers.sampler import NegativeSampler, SampledCandidates

# Masks and noise of the two sides, and of positives and negatives, come from separate streams: each has its own seed.
POSITIVES, NEGATIVES = (np.array([zlib.crc32(name) >> 1, 0], np.int32) for name in (b"positives", b"negatives"))

NO_ITEM = -1


class CandidateVectors(NamedTuple):
    """The candidates from the sampler and their vectors [M, D]."""

    candidates: SampledCandidates
    vectors: tf.Tensor


class Retrieval(tfrs.Model):
    """Trains a query to score its items above others.

    Args:
        towers: the towers to train.
        config: the whole recipe.
        items: features of every trained item.
        count: N, the number of trained items.
        sampler: None for a loss without sampled negatives.
        replicas: the workers that share each batch.
        teachers: trained towers with the same features, for `config.distillation`.
    """

    def __init__(
        self,
        towers: TwoTower,
        config: Config,
        items: ItemFeatures,
        count: int,
        sampler: NegativeSampler | None = None,
        replicas: Replicas = ALONE,
        teachers: Sequence[TwoTower] = (),
    ) -> None:
        super().__init__()
        self.towers, self.sampler, self.replicas = towers, sampler, replicas
        self.settings = config.loss
        # A function is not tracked: item features are data and stay out of checkpoints.
        self.features_of: Callable[[tf.Tensor], Any] = items.__call__
        self.count = count
        # In a function for the same reason: teachers are neither trained nor saved.
        self.teachers: Callable[[], Sequence[TwoTower]] = lambda: teachers
        self.teachers_share = config.distillation.share if teachers else 0.0
        self.widths = [*config.loss.matryoshka, config.model.dimension]
        self.half = config.train.precision == "bfloat16"
        self.options = arguments(config.loss)
        self.margin = adaptive_margin(config.loss)
        self.log_z = log_z_of(config.loss, count)

    def create_weights(self, inputs: Batch) -> None:
        """Creates the weights of hidden layers, log Z's too; a sampler that learns does not count this batch."""
        query = self.towers.query_tower(inputs.query)
        if self.log_z is not None:
            self.log_z(query)
        item = self.features_of(inputs.item[:, 0])
        self.towers.candidate_tower(item)
        for teacher in self.teachers():
            teacher.query_tower(inputs.query)
            teacher.candidate_tower(item)

    def compute_loss(self, inputs: Batch, training: bool = True) -> tf.Tensor:
        """The weighted mean loss of one batch, a scalar; with several workers this one's part of that mean."""
        seed = self.replicas.seed(inputs.seed)
        query, cost = self.towers.query_tower.sample(inputs.query, seed)
        shape = tf.shape(inputs.item)
        features = self.features_of(tf.reshape(inputs.item, [-1]))
        if self.settings.whole_catalogue:
            # Without noise, like the rest of the catalogue: its own noise would set an item apart from its copy there.
            positive, item_cost = self.towers.candidate_tower(features), tf.zeros([tf.size(inputs.item)])
        else:
            positive, item_cost = self.towers.candidate_tower.sample(features, seed + POSITIVES)
        positive = tf.reshape(positive, tf.concat([shape, tf.shape(positive)[1:]], 0))
        drawn = None if self.sampler is None else self._candidates(self.sampler, inputs, positive)
        totals = [self._total(inputs, query, positive, drawn, width) for width in self.widths]
        if self.teachers_share and drawn is not None and self.settings.sampled is not None:
            taught = self._taught(inputs, query, positive, drawn, self.settings.sampled)
            totals = [
                (1 - self.teachers_share) * a + self.teachers_share * b for a, b in zip(totals, taught, strict=True)
            ]
        total = totals[0] if len(totals) == 1 else tf.add_n(totals) / len(totals)
        if self.settings.bottleneck:
            item_cost = tf.reshape(item_cost, shape)[:, 0]
            total += self.settings.bottleneck * tf.reduce_sum((cost + item_cost) * inputs.weight)
        [weight] = self.replicas.sum([tf.reduce_sum(inputs.weight)])
        return total / tf.maximum(weight, 1e-9)

    def after_epoch(self, epoch: int, batches: Iterable[Batch]) -> dict[str, float]:
        """Updates what changes between epochs; returns values for the log.

        Args:
            epoch: number of epochs trained.
            batches: examples to measure distances on.
        """
        return self.margin.update(epoch, map(self._distances, batches)) if self.margin is not None else {}

    def _distances(self, inputs: Batch) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Classes are items: [B] ranks, and the distance of each example's query to its item."""
        item = inputs.item[:, 0]
        query = self.towers.query_tower(inputs.query)
        cosine = tf.reduce_sum(query * self.towers.candidate_tower(self.features_of(item)), axis=1)
        gather = self.replicas.gather_array
        return gather(item.numpy()), gather(sqrt_1_minus_cos(cosine).numpy())

    def _total(
        self, inputs: Batch, query: tf.Tensor, positive: tf.Tensor, drawn: CandidateVectors | None, width: int
    ) -> tf.Tensor:
        """The weighted sum of the losses of `query` [B, D] and its `positive` items [B, K, D], all cut to a width."""
        loss, cut = self.settings.sampled, self.towers.candidate_tower.cut
        query, positive = cut(query, width), cut(positive, width)
        if drawn is not None:
            drawn = drawn._replace(vectors=cut(drawn.vectors, width))
        if self.sampler is None or drawn is None or loss is None or not loss.sums_only or not query.shape[0]:
            return tf.reduce_sum(self._example_losses(inputs, query, positive, drawn) * inputs.weight)
        query *= self.towers.scale()
        logits = tf.einsum("bd,bkd->bk", query, positive) - loss.strength * drawn.candidates.log_q_positive
        own = log_sum_exp(logits, inputs.present)
        candidates = self._in_blocks(inputs, drawn, loss, query.shape[0])
        negatives = softmax_losses(query, own, inputs.weight, candidates, half=self.half)
        return negatives + tf.reduce_sum(inputs.weight * (own - mean(logits, inputs.present)))

    def _in_blocks(self, inputs: Batch, drawn: CandidateVectors, loss: SampledLoss, batch: int) -> Candidates:
        """The candidates, and what each of `batch` queries must not see of them."""
        sample, vectors = drawn
        excluded = liked = None
        if loss.remove_accidental_hits:
            # The example's own item is among them, as the first positive.
            excluded = tf.where(inputs.present, inputs.item, NO_ITEM)
        if loss.known_positives:
            # Hits are looked up together with them at almost no cost: no candidate's name is compared.
            items = inputs.known if excluded is None else tf.concat([inputs.known, excluded], 1)
            liked, excluded = known(items, sample.item, self.count), None
        apart = None
        if self.sampler is not None and self.sampler.includes_batch and not loss.remove_accidental_hits:
            apart = self.replicas.begin(batch)
        return Candidates(vectors, -loss.strength * sample.log_q, sample.mask, sample.item, excluded, liked, apart)

    def _taught(
        self, inputs: Batch, query: tf.Tensor, positive: tf.Tensor, drawn: CandidateVectors, loss: SampledLoss
    ) -> Iterator[tf.Tensor]:
        """The weighted sum of the distillation losses, for each width."""
        sample, batch = drawn.candidates, inputs.item.shape[0]
        offset = loss.strength * sample.log_q_positive[:, 0]
        queries, positives, others = [], [], []
        for teacher in self.teachers():
            queries.append(teacher.query_tower(inputs.query) * teacher.scale() / len(self.teachers()))
            positives.append(teacher.candidate_tower(self.features_of(inputs.item[:, 0])))
            others.append(teacher.candidate_tower(self.features_of(sample.item)))
        taught, own, vectors = (tf.stop_gradient(tf.concat(parts, 1)) for parts in (queries, positives, others))
        goal = Side(tf.ensure_shape(taught, [batch, None]), tf.reduce_sum(taught * own, axis=1) - offset, vectors)
        candidates = self._in_blocks(inputs, drawn, loss, batch)
        # Histories come in any number of rows, so the query has forgotten how many it has.
        query = tf.ensure_shape(query, [batch, None]) * self.towers.scale()
        cut = self.towers.candidate_tower.cut
        for width in self.widths:
            asked, item, vectors = (cut(each, width) for each in (query, positive[:, 0], drawn.vectors))
            student = Side(asked, tf.reduce_sum(asked * item, axis=1) - offset, vectors)
            yield distillation(student, goal, inputs.weight, candidates, half=self.half)

    def _example_losses(
        self, inputs: Batch, query: tf.Tensor, positive: tf.Tensor, drawn: CandidateVectors | None
    ) -> tf.Tensor:
        """[B] losses of `query` [B, D] and its `positive` items [B, K, D]."""
        scale = self.towers.scale()
        positive_scores = tf.einsum("bd,bkd->bk", query, positive) * scale
        if self.settings.whole_catalogue:
            return full_softmax(
                query,
                lambda rank: self._whole(rank, query.shape[1]),
                count=self.count,
                scale=scale,
                positive=tf.reduce_sum(self._label_shares(inputs) * positive_scores, axis=1, keepdims=True),
                half=self.half,
                **self.options,
            )
        sampled = self.settings.sampled
        if self.sampler is not None and sampled is not None and drawn is not None:
            scores = self._sampled(self.sampler, sampled, inputs, query, drawn, positive_scores)
        else:
            # All of the batch, because its items may be one list.
            scores = _without_negatives(self.replicas.gather(positive_scores), self.replicas.gather(inputs.present))
        losses = FUNCTIONS[self.settings.name](scores, **self.options, **self._supplied(inputs, query))
        return self.replicas.own(losses) if self.settings.graded else losses

    def _whole(self, rank: tf.Tensor, width: int) -> tf.Tensor:
        """Vectors of items without noise, cut to a width."""
        tower = self.towers.candidate_tower
        return tower.cut(tower(self.features_of(rank)), width)

    def _label_shares(self, inputs: Batch) -> tf.Tensor:
        """The label distribution over each query's positives, [B, K]."""
        label = tf.cast(inputs.present, tf.float32)
        if getattr(self.settings, "label_shares", "equal") == "weight":
            label *= inputs.label
        return label / tf.reduce_sum(label, axis=1, keepdims=True)

    def _sampled(
        self,
        sampler: NegativeSampler,
        loss: SampledLoss,
        inputs: Batch,
        query: tf.Tensor,
        candidates: CandidateVectors,
        positive_scores: tf.Tensor,
    ) -> Scores:
        """Scores the negatives and builds their mask."""
        drawn, vectors = candidates
        batch = tf.shape(inputs.item)[0]
        negative = product(query * self.towers.scale(), vectors, half=self.half, transpose_b=True)
        mask = tf.broadcast_to(drawn.mask[tf.newaxis, :], tf.shape(negative))
        if sampler.includes_batch:
            # The diagonal holds each query's own item.
            own = self.replicas.begin(inputs.item.shape[0])
            mask = tf.linalg.set_diag(mask, tf.zeros([batch], tf.bool), k=own)
        if loss.remove_accidental_hits:
            mask = without_hits(mask, inputs.item, inputs.present, drawn.item)
        if loss.known_positives:
            mask &= ~known(inputs.known, drawn.item, self.count).hits()
        scores = Scores(positive_scores, negative, inputs.present, mask, drawn.log_q_positive, drawn.log_q)
        if loss.hardest_negatives is not None:
            count = min(loss.hardest_negatives, negative.shape[1])
            scores = hardest(scores, count, loss.strength)
        return scores

    def _candidates(self, sampler: NegativeSampler, inputs: Batch, positive: tf.Tensor) -> CandidateVectors:
        items = self.replicas.gather(inputs.item)
        drawn = sampler.draw(items, inputs.seed)
        drawn = drawn._replace(log_q_positive=self.replicas.own(drawn.log_q_positive))
        if sampler.batch_alone:
            return CandidateVectors(drawn, self.replicas.gather(positive[:, 0]))
        others = drawn.item[tf.shape(items)[0] :] if sampler.includes_batch else drawn.item
        vectors, _ = self.towers.candidate_tower.sample(self.features_of(others), inputs.seed + NEGATIVES)
        if not sampler.includes_batch:
            return CandidateVectors(drawn, vectors)
        return CandidateVectors(drawn, tf.concat([self.replicas.gather(positive[:, 0]), vectors], 0))

    def _supplied(self, inputs: Batch, query: tf.Tensor) -> dict[str, Any]:
        """What the loss's function takes beside scores and options; see `Loss.inputs`."""
        supply: dict[str, Callable[[], Any]] = {
            "labels": lambda: self.replicas.gather(inputs.label) / self.settings.largest_label,
            # A cut query as a whole one that ends in zeros.
            "log_z": lambda: (
                self.log_z(tf.pad(query, [[0, 0], [0, self.widths[-1] - query.shape[1]]]))
                if self.log_z is not None
                else None
            ),
            "margin": lambda: self.margin.value if self.margin is not None else None,
            "same_query": lambda: inputs.user[:, tf.newaxis] == self.replicas.gather(inputs.user)[tf.newaxis, :],
            "own_column": lambda: self.replicas.begin(inputs.user.shape[0]),
        }
        return {name: supply[name]() for name in self.settings.inputs}


def _without_negatives(positive: tf.Tensor, present: tf.Tensor) -> Scores:
    """Scores [B, K] for a loss that learns from labels; M is 0."""
    none = tf.zeros([tf.shape(positive)[0], 0])
    return Scores(positive, none, present, tf.cast(none, tf.bool), tf.zeros_like(positive), tf.zeros([0]))
