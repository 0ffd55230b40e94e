"""`task = "retrieval"`: trains queries to find their items, in steps: scores, negatives, loss, reduction.

Only this module combines the towers, the sampler, the item features and the loss, so each can be exchanged alone.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_recommenders as tfrs
from numpy.typing import NDArray

from towers.config.loss_section import SampledLoss
from towers.config.recipe import Config
from towers.data.batch import Batch
from towers.data.item_ranks import ItemFeatures
from towers.losses.blockwise_softmax import softmax_losses
from towers.losses.distillation import Side, distillation
from towers.losses.full_softmax import full_softmax
from towers.losses.impressions import own_sum
from towers.losses.registry import FUNCTIONS, arguments
from towers.losses.scores import mean, sqrt_1_minus_cos, without_negatives
from towers.losses.softmax import adaptive_margin
from towers.losses.two_terms import log_z_of
from towers.losses.user_softmax import Teacher, user_softmax
from towers.model.two_tower import TwoTower
from towers.ops.replicas import ALONE, Replicas
from towers.samplers.sampler import NegativeSampler
from towers.tasks.candidates import POSITIVES, CandidateVectors, draw, in_blocks, in_scores, split
from towers.tasks.contrast import Contrast
from towers.tasks.teachers import Teachers


class Retrieval(tfrs.Model):
    """Trains a query to score its items above others.

    Args:
        towers: the towers to train.
        config: the whole recipe.
        items: features of every trained item.
        count: N, the number of trained items.
        sampler: None for a loss without sampled negatives.
        replicas: the workers that share each batch.
        teachers, contrast: what it learns from beside the events.
    """

    def __init__(
        self,
        towers: TwoTower,
        config: Config,
        items: ItemFeatures,
        count: int,
        sampler: NegativeSampler | None = None,
        replicas: Replicas = ALONE,
        teachers: Teachers | None = None,
        contrast: Contrast | None = None,
    ) -> None:
        super().__init__()
        self.towers, self.sampler, self.replicas = towers, sampler, replicas
        # A function is not tracked: item features are data and stay out of checkpoints.
        self.features_of: Callable[[tf.Tensor], Any] = items.__call__
        self.settings, self.teachers, self.contrast = config.loss, teachers, contrast
        self.widths = [*config.loss.matryoshka, config.model.dimension]
        self.count, self.half = count, config.train.precision == "bfloat16"
        self.options, self.margin = arguments(config.loss), adaptive_margin(config.loss)
        self.log_z = log_z_of(config.loss, count)

    def create_weights(self, inputs: Batch) -> None:
        """Creates the weights of hidden layers, log Z's too; a sampler that learns does not count this batch."""
        query = self.towers.query_tower(inputs.query)
        if self.log_z is not None:
            self.log_z(query)
        item = self.features_of(inputs.item[:, 0])
        self.towers.candidate_tower(item)
        if self.teachers is not None:
            self.teachers.create_weights(inputs.query, item)

    def compute_loss(self, inputs: Batch, training: bool = True) -> tf.Tensor:
        """The weighted mean loss of one batch, a scalar; with several workers this one's part of that mean."""
        seed = self.replicas.seed(inputs.seed)
        query, cost = self.towers.query_tower.sample(inputs.query, seed)
        # Histories come in any number of rows, so a query of these alone has forgotten how many it has.
        query = tf.ensure_shape(query, [inputs.item.shape[0], None])
        if self.settings.of_users:
            return self._divided(self._of_users(inputs, query), inputs)
        # Impressions follow the positives, and a companion these.
        near = None if self.contrast is None else self.contrast.draw(inputs, self.replicas)
        companion = [] if near is None else [near.rank[:, tf.newaxis]]
        items = tf.concat([inputs.item, tf.maximum(inputs.shown, 0), *companion], axis=1)
        shape = tf.shape(items)
        features = self.features_of(tf.reshape(items, [-1]))
        if self.settings.bottleneck or not self.settings.whole_catalogue:
            own, item_cost = self.towers.candidate_tower.sample(features, seed + POSITIVES)
        if self.settings.whole_catalogue:
            # Without noise, like the rest of the catalogue: its own noise would set an item apart from its copy there.
            own = self.towers.candidate_tower(features)
        own = tf.reshape(own, tf.concat([shape, tf.shape(own)[1:]], 0))
        if near is not None:
            own, beside = own[:, :-1], own[:, -1]
        drawn = None if self.sampler is None else draw(self.sampler, inputs, own[:, 0], self._encoded, self.replicas)
        totals = [self._total(inputs, query, own, drawn, width) for width in self.widths]
        if self.teachers is not None and drawn is not None and self.settings.sampled is not None:
            totals = self._taught(self.teachers, inputs, query, own[:, 0], drawn, self.settings.sampled, totals)
        if self.contrast is not None and near is not None:
            cut, scale = self.towers.candidate_tower.cut, self.towers.scale()
            pairs = [(cut(own[:, 0], width) * scale, cut(beside, width)) for width in self.widths]
            totals += [self.contrast.loss(near, *pair, self.replicas, half=self.half) for pair in pairs]
        total = totals[0] if len(totals) == 1 else tf.add_n(totals) / len(self.widths)
        if self.settings.bottleneck:
            item_cost = tf.reshape(item_cost, shape)[:, 0]
            total += self.settings.bottleneck * tf.reduce_sum((cost + item_cost) * inputs.weight)
        return self._divided(total, inputs)

    def _divided(self, total: tf.Tensor, inputs: Batch) -> tf.Tensor:
        """A weighted sum of losses, divided by the weight of all workers' examples."""
        [weight] = self.replicas.sum([tf.reduce_sum(inputs.weight)])
        return tf.math.divide_no_nan(total, weight)

    def _of_users(self, inputs: Batch, query: tf.Tensor) -> tf.Tensor:
        """The weighted sum of the losses of users `query` [B, D] over all of their items."""
        features = self.features_of(rank := tf.range(self.count, dtype=tf.int64))
        tower, scale, teacher = self.towers.candidate_tower, self.towers.scale(), None
        vectors, own = tower(features), (inputs.item, inputs.present, inputs.weight)
        if self.teachers is not None:
            asked, found = self.teachers.queries(inputs.query, inputs.user), self.teachers.items(features, rank)
            teacher = Teacher(asked, found, self.teachers.share)
        losses = [
            user_softmax(tower.cut(query, width) * scale, tower.cut(vectors, width), *own, teacher, half=self.half)
            for width in self.widths
        ]
        return tf.add_n(losses) / len(losses)

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
        self, inputs: Batch, query: tf.Tensor, own: tf.Tensor, drawn: CandidateVectors | None, width: int
    ) -> tf.Tensor:
        """The weighted sum of the losses of `query` [B, D] and its `own` items [B, K + n, D], all cut to a width."""
        loss, cut = self.settings.sampled, self.towers.candidate_tower.cut
        query, own = cut(query, width), cut(own, width)
        if drawn is not None:
            drawn = drawn._replace(vectors=cut(drawn.vectors, width))
        if self.sampler is None or drawn is None or loss is None or not loss.sums_only or not query.shape[0]:
            return tf.reduce_sum(self._example_losses(inputs, query, own, drawn) * inputs.weight)
        query *= self.towers.scale()
        logits, shown = split(tf.einsum("bd,bkd->bk", query, own), inputs)
        logits -= loss.strength * drawn.candidates.log_q_positive
        total = own_sum(logits, inputs.present, shown, inputs.shown >= 0, loss.impression_weight)
        candidates = in_blocks(drawn, inputs, loss, self.count, self._own_column(query.shape[0]))
        negatives = softmax_losses(query, total, inputs.weight, candidates, half=self.half)
        return negatives + tf.reduce_sum(inputs.weight * (total - mean(logits, inputs.present)))

    def _own_column(self, batch: int) -> int | None:
        """The first of the candidates that are the items of `batch` queries; None: none are."""
        return self.replicas.begin(batch) if self.sampler is not None and self.sampler.includes_batch else None

    def _taught(
        self,
        teachers: Teachers,
        inputs: Batch,
        query: tf.Tensor,
        item: tf.Tensor,
        drawn: CandidateVectors,
        loss: SampledLoss,
        totals: Sequence[tf.Tensor],
    ) -> list[tf.Tensor]:
        """`totals`, the weighted sum of the losses of each width, with their share of what the teachers say."""
        offset, batch = loss.strength * drawn.candidates.log_q_positive[:, 0], inputs.item.shape[0]
        taught_by = teachers.queries(inputs.query, inputs.user)
        own, found = (teachers.items(self.features_of(r), r) for r in (inputs.item[:, 0], drawn.candidates.item))
        goal = Side(taught_by, tf.reduce_sum(taught_by * own, axis=1) - offset, found)
        candidates = in_blocks(drawn, inputs, loss, self.count, self._own_column(batch))
        scale, cut, taught = self.towers.scale(), self.towers.candidate_tower.cut, []
        for width, total in zip(self.widths, totals, strict=True):
            asked, one, vectors = (cut(each, width) for each in (query, item, drawn.vectors))
            asked *= scale  # after the cut, which may make it a unit vector again
            student = Side(asked, tf.reduce_sum(asked * one, axis=1) - offset, vectors)
            entropy = distillation(student, goal, inputs.weight, candidates, half=self.half)
            taught.append((1 - teachers.share) * total + teachers.share * entropy)
        return taught

    def _example_losses(
        self, inputs: Batch, query: tf.Tensor, own: tf.Tensor, drawn: CandidateVectors | None
    ) -> tf.Tensor:
        """[B] losses of `query` [B, D] and its `own` items [B, K + n, D]."""
        scale = self.towers.scale()
        own_scores = tf.einsum("bd,bkd->bk", query, own) * scale
        if self.settings.whole_catalogue:
            shares = inputs.label_shares(by_weight=getattr(self.settings, "label_shares", "equal") == "weight")
            return full_softmax(
                query,
                lambda rank: self._whole(rank, query.shape[1]),
                count=self.count,
                scale=scale,
                positive=tf.reduce_sum(shares * own_scores, axis=1, keepdims=True),
                half=self.half,
                **self.options,
            )
        sampled = self.settings.sampled
        if self.sampler is not None and sampled is not None and drawn is not None:
            own_column = self._own_column(inputs.item.shape[0])
            query *= scale
            scores = in_scores(drawn, inputs, sampled, self.count, own_column, query, own_scores, half=self.half)
        else:
            # All of the batch, because its items may be one list.
            scores = without_negatives(self.replicas.gather(own_scores), self.replicas.gather(inputs.present))
        losses = FUNCTIONS[self.settings.name](scores, **self.options, **self._supplied(inputs, query))
        return self.replicas.own(losses) if self.settings.graded else losses

    def _whole(self, rank: tf.Tensor, width: int) -> tf.Tensor:
        """Vectors of items without noise, cut to a width."""
        tower = self.towers.candidate_tower
        return tower.cut(tower(self.features_of(rank)), width)

    def _encoded(self, item: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Vectors [n, D] of items [n], with the masks and noise of a seed."""
        return self.towers.candidate_tower.sample(self.features_of(item), seed)[0]

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
            "catalogue": lambda: self.count,
            "margin": lambda: self.margin.value if self.margin is not None else None,
            "same_query": lambda: inputs.user[:, tf.newaxis] == self.replicas.gather(inputs.user)[tf.newaxis, :],
            "own_column": lambda: self.replicas.begin(inputs.user.shape[0]),
        }
        return {name: supply[name]() for name in self.settings.inputs}
