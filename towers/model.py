"""The model, top to bottom: features to a vector for each tower, two vectors to a logit.

In: feature specs and `ModelConfig`. Out: `TwoTower`, whose towers give `[B, D]` and whose `compute_loss` trains them.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf
import tensorflow_recommenders as tfrs

from towers.config import LossConfig, ModelConfig
from towers.features import FeatureEncoder, FeatureSpec, new_table
from towers.losses.negatives import in_batch
from towers.losses.softmax import sampled_softmax

Encoded = Mapping[str, tf.Tensor]

# A vector shorter than this is not blown up to full length: it says almost nothing, and its gradient would explode.
SHORTEST = 0.01


class Batch(NamedTuple):
    """One training batch.

    Attributes:
        query, candidate: looked-up features by name, `[B]`, `[B, L]` or `[B, 2]`.
        item: [B] item numbers of the positives.
        log_expected_counts: [B] log Q of those items under the sampler.
        weight: [B] example weights.
        seed: [2] int32, of this step.
    """

    query: Encoded
    candidate: Encoded
    item: tf.Tensor
    log_expected_counts: tf.Tensor
    weight: tf.Tensor
    seed: tf.Tensor


class Tower(tf.Module):
    """Looked-up features of one side to vectors `[B, D]`, of length one where the similarity is the cosine."""

    def __init__(
        self, encoders: Sequence[FeatureEncoder], config: ModelConfig, layers: Sequence[int], name: str
    ) -> None:
        super().__init__(name=name)
        self.encoders = list(encoders)
        self.normalise = config.similarity == "cosine"
        self.concat = config.combine == "concat"
        widths = [*layers, config.dimension] if self.concat else []
        self.hidden = [
            tf.keras.layers.Dense(width, activation="relu" if depth < len(widths) - 1 else None)
            for depth, width in enumerate(widths)
        ]

    def __call__(self, encoded: Encoded, seed: tf.Tensor | None = None) -> tf.Tensor:
        """Vectors `[B, D]`.

        Args:
            encoded: looked-up features by name.
            seed: [2], of the masks; None outside training.
        """
        vectors = []
        for encoder in self.encoders:
            rows = encoded[encoder.spec.name]
            vectors.append(encoder.embed(rows if seed is None else encoder.mask(rows, seed)))
        hidden = tf.concat(vectors, axis=1) if self.concat else tf.add_n(vectors)
        for layer in self.hidden:
            hidden = layer(hidden)
        return tf.math.l2_normalize(hidden, axis=1, epsilon=SHORTEST**2) if self.normalise else hidden

    def informed(self, encoded: Encoded) -> tf.Tensor:
        """Which examples have at least one feature that training learnt something of: bool [B]; no `Bag` here."""
        known = [encoder.informs(encoded[encoder.spec.name]) for encoder in self.encoders]
        return tf.reduce_any(tf.stack(known), axis=0)

    def lookup(self, raw: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Raw features by name to looked-up ones."""
        return {encoder.spec.name: encoder.lookup(raw[encoder.spec.name]) for encoder in self.encoders}


class TwoTower(tfrs.Model):
    """A query tower, a candidate tower, and the loss that pulls a query to its item.

    Args:
        query_specs, candidate_specs: the features of each side.
        config: dimension, similarity, temperature, combination.
        loss: the training objective.
        seed: of every initial weight.
    """

    def __init__(
        self,
        query_specs: Sequence[FeatureSpec],
        candidate_specs: Sequence[FeatureSpec],
        config: ModelConfig,
        loss: LossConfig,
        seed: int,
    ) -> None:
        super().__init__()
        tf.keras.utils.set_random_seed(seed)
        self.settings = config
        self.loss_settings = loss
        tables: dict[str, tf.Variable] = {}
        for spec in [*candidate_specs, *query_specs]:
            if spec.table not in tables:
                tables[spec.table] = new_table(spec, config.dimension, seed)
        self.query_tower = Tower(
            [FeatureEncoder(spec, tables[spec.table]) for spec in query_specs],
            config,
            config.query_layers,
            "query_tower",
        )
        self.candidate_tower = Tower(
            [FeatureEncoder(spec, tables[spec.table]) for spec in candidate_specs],
            config,
            config.candidate_layers,
            "candidate_tower",
        )
        # The logarithm keeps a trained temperature positive.
        self.log_temperature = tf.Variable(
            tf.math.log(config.temperature), trainable=config.temperature_trainable, name="log_temperature"
        )

    def compute_loss(self, inputs: Batch, training: bool = True) -> tf.Tensor:
        """The weighted mean loss of one batch, a scalar."""
        query_embeddings = self.query_tower(inputs.query, seed=inputs.seed if training else None)
        candidate_embeddings = self.candidate_tower(inputs.candidate, seed=inputs.seed + 1 if training else None)
        logits = tf.matmul(query_embeddings, candidate_embeddings, transpose_b=True) / tf.exp(self.log_temperature)
        negatives = in_batch(
            logits,
            item=inputs.item,
            log_expected_counts=inputs.log_expected_counts,
            correction=self.loss_settings.correction,
            remove_accidental_hits=self.loss_settings.remove_accidental_hits,
        )
        losses = sampled_softmax(negatives.positive_logits, negatives.negative_logits, negatives.mask)
        return tf.reduce_sum(losses * inputs.weight) / tf.maximum(tf.reduce_sum(inputs.weight), 1e-9)
