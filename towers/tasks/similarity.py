"""`task = "similarity"`: trains items to lie near their class's centre, or near similar items.

The anchor is an item. Its candidates are the trained centres of all classes, or the other items of the batch. Nothing
is sampled, so there is no log Q. `NeighbourValidation` chooses the epoch by the neighbours of held-out items.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_recommenders as tfrs
from numpy.typing import NDArray

from towers.config.recipe import Config
from towers.data.events import Int64s
from towers.data.item_ranks import ItemFeatures
from towers.data.item_relations import Marks, Places, Relation
from towers.data.similarity_examples import ClassBatch, RelatedBatch
from towers.evaluation.encode import embed_all
from towers.evaluation.metrics import Measured
from towers.evaluation.top_k import top_k
from towers.losses.registry import FUNCTIONS, arguments
from towers.losses.scores import Scores, hardest, known, product, sqrt_1_minus_cos
from towers.losses.softmax import adaptive_margin
from towers.model.two_tower import Encoded, TwoTower
from towers.ops.replicas import ALONE, Replicas

# Length of an untrained centre, like that of an untrained embedding row: short, so its direction is learnt quickly.
FIRST_LENGTH = 0.1
CENTRE_SEED = 0x63656E74


class Similarity(tfrs.Model):
    """Trains the item tower to tell classes, or similar items, from the rest.

    Args:
        towers: only the candidate tower is trained.
        config: the whole recipe.
        items: features of every training item.
        classes: C, the number of trained centres; 0 if the candidates are items.
        replicas: the workers that share each batch.
    """

    def __init__(
        self, towers: TwoTower, config: Config, items: ItemFeatures, classes: int, replicas: Replicas = ALONE
    ) -> None:
        super().__init__()
        self.towers, self.settings, self.replicas = towers, config.loss, replicas
        # A function is not tracked: item features are data and stay out of checkpoints.
        self.features_of: Callable[[tf.Tensor], Any] = items.__call__
        self.normalise = config.model.similarity == "cosine"
        self.half = config.train.precision == "bfloat16"
        self.widths = [*config.loss.matryoshka, config.model.dimension]
        loss = config.loss.over_centres()
        self.function, self.options = FUNCTIONS[loss.name], arguments(loss)  # type: ignore[attr-defined]
        self.margin = adaptive_margin(loss)
        self.centres: Any = None
        if classes:
            width = config.model.dimension
            start = tf.random.stateless_normal([classes, width], [config.train.seed, CENTRE_SEED])
            self.centres = tf.Variable(start * (FIRST_LENGTH / width**0.5), name="centres")

    def create_weights(self, inputs: ClassBatch | RelatedBatch) -> None:
        """Creates the weights of the item tower's hidden layers."""
        self.towers.candidate_tower(self.features_of(inputs.item))

    def compute_loss(self, inputs: ClassBatch | RelatedBatch, training: bool = True) -> tf.Tensor:
        """The mean loss over a batch's items that have a positive, a scalar; of several workers this one's part."""
        seed = self.replicas.seed(inputs.seed)
        vectors, cost = self.towers.candidate_tower.sample(self.features_of(inputs.item), seed)
        scored = [self._scores(inputs, vectors, width) for width in self.widths]
        margin = {} if self.margin is None else {"margin": self.margin.value}
        each = [self.function(scores, **self.options, **margin) for scores in scored]
        losses = each[0] if len(each) == 1 else tf.add_n(each) / len(each)
        if self.settings.bottleneck:
            losses += self.settings.bottleneck * cost
        counts = tf.cast(tf.reduce_any(scored[0].positive_mask, axis=1), tf.float32)
        [examples] = self.replicas.sum([tf.reduce_sum(counts)])
        return tf.reduce_sum(losses * counts) / tf.maximum(examples, 1.0)

    def after_epoch(self, epoch: int, batches: Iterable[ClassBatch]) -> dict[str, float]:
        """Updates what changes between epochs; returns values for the log.

        Args:
            epoch: number of epochs trained.
            batches: items to measure distances on.
        """
        return self.margin.update(epoch, map(self._distances, batches)) if self.margin is not None else {}

    def directions(self) -> tf.Tensor:
        """The class centres [C, D], of length one if the similarity is the cosine."""
        centres = tf.convert_to_tensor(self.centres)
        return tf.math.l2_normalize(centres, axis=1) if self.normalise else centres

    def _scores(self, inputs: ClassBatch | RelatedBatch, vectors: tf.Tensor, width: int) -> Scores:
        """The scores of vectors [B, D] cut to a width."""
        vectors = self.towers.candidate_tower.cut(vectors, width)
        scores = (
            self._to_centres(inputs, vectors) if isinstance(inputs, ClassBatch) else self._to_items(inputs, vectors)
        )
        count = getattr(self.settings, "hardest_negatives", None)
        return scores if count is None else hardest(scores, min(count, scores.negative.shape[1]), 0.0)

    def _to_centres(self, inputs: ClassBatch, vectors: tf.Tensor) -> Scores:
        """An item's own classes are its positives, all others its negatives."""
        directions = self.towers.candidate_tower.cut(self.directions(), vectors.shape[1]) * self.towers.scale()
        scores = product(vectors, directions, half=self.half, transpose_b=True)
        present = inputs.classes >= 0
        positive = tf.gather(scores, tf.maximum(inputs.classes, 0), batch_dims=1)
        count = self.centres.shape[0]
        own = known(inputs.classes, tf.range(count, dtype=tf.int64), count).hits()
        return _scores(positive, scores, present, ~own)

    def _to_items(self, inputs: RelatedBatch, vectors: tf.Tensor) -> Scores:
        every = self.replicas.gather(vectors)
        scores = product(vectors * self.towers.scale(), every, half=self.half, transpose_b=True)
        return _scores(scores, scores, inputs.positive, inputs.negative)

    def _distances(self, inputs: ClassBatch) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Samples are items: their classes, and the distance of each item to that class's centre."""
        vectors = self.towers.candidate_tower(self.features_of(inputs.item))
        present = inputs.classes.numpy() >= 0
        cosine = tf.matmul(vectors, self.directions(), transpose_b=True)
        cosine = tf.gather(cosine, tf.maximum(inputs.classes, 0), batch_dims=1)
        gather = self.replicas.gather_array
        return gather(inputs.classes.numpy()[present]), gather(sqrt_1_minus_cos(cosine).numpy()[present])


def _scores(positive: tf.Tensor, negative: tf.Tensor, positive_mask: tf.Tensor, negative_mask: tf.Tensor) -> Scores:
    return Scores(positive, negative, positive_mask, negative_mask, tf.zeros_like(positive), tf.zeros_like(negative))


@dataclass(frozen=True)
class NeighbourValidation:
    """Held-out items, each a query among all other candidates.

    Attributes:
        candidate: looked-up features of the candidates, by name.
        query: [Q] indices of the held-out items among the candidates.
        relation: which candidates are alike.
        likes: [Q] number of candidates that each one is like; at least one.
        metric: ``precision@k``, hits / k, or ``recall@k``, hits / likes.
    """

    candidate: Encoded
    query: Int64s
    relation: Relation
    likes: Int64s
    metric: str

    def measure(self, model: TwoTower) -> Measured:
        """Mean of the metric over the held-out items; it chooses the epoch."""
        name, _, depth = self.metric.partition("@")
        k = int(depth)
        vectors = embed_all(model.candidate_tower.serve, self.candidate)
        own = np.arange(len(self.query) + 1)
        lists = top_k(vectors[self.query], vectors, k, own, self.query.astype(np.int32))
        hits = found(self.relation, self.query, lists).sum(axis=1)
        value = float(np.mean(hits / (k if name == "precision" else self.likes)))
        return Measured(value, value)


def found(relation: Relation, query: Int64s, lists: Places) -> Marks:
    """Which entries of `lists` [Q, k] are like their query [Q]; an entry of -1 is no item."""
    rows = np.repeat(query, lists.shape[1])
    marks = relation.alike(rows, np.maximum(lists, 0).ravel()).reshape(lists.shape)
    return marks & (lists >= 0)
