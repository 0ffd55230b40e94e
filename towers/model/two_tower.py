"""The two towers, top to bottom: features to a vector on each side, two vectors to a score.

`towers.tasks.retrieval` or `towers.tasks.similarity` trains them; `save_tower` exports each as a SavedModel.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf
import tensorflow_recommenders as tfrs

from towers.config.recipe import Config
from towers.features.encoder import FeatureEncoder, FeatureSpec, new_table
from towers.features.item_columns import ItemColumns
from towers.features.neighbours import CooccurrenceEncoder, GraphEncoder
from towers.features.pooling import PoolingEncoder
from towers.features.self_attention import SelfAttention
from towers.ops.stateless_random import dropped, fold, normals

Encoded = Mapping[str, tf.Tensor]

# A shorter vector is not scaled up to full length: it says almost nothing, and its gradient would explode.
SHORTEST = 0.01
# A bottleneck starts with little noise, so that the mean is learnt before it is squeezed.
FIRST_LOG_VARIANCE = -6.0
NOISE = 0  # stream of a step's seed for noise; dropout takes the next
# The type that `train.precision` gives hidden layers; weights stay float32.
HIDDEN_TYPES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}
FURTHEST = 10.0  # a trained temperature stays within this factor of the recipe's


class Tower(tf.Module):
    """Turns looked-up features of one side into vectors `[B, D]`, of length one if the similarity is the cosine.

    Features are summed, or concatenated to x_0, which goes through cross layers ``x_(l+1) = x_0 * (W x_l + b) + x_l``,
    then hidden layers with ReLU and a linear one to D. Source of the cross layers: Wang et al., DCN V2, WWW 2021.

    Args:
        encoders: one per feature.
        config: the whole recipe.
        side: "query" or "candidate", whose layers and dropout apply; dropout comes before normalisation.
    """

    def __init__(self, encoders: Sequence[FeatureEncoder], config: Config, side: str) -> None:
        super().__init__(name=f"{side}_tower")
        self.encoders = list(encoders)
        model = config.model
        layers, self.dropout = (
            (model.query_layers, model.query_dropout)
            if side == "query"
            else (model.candidate_layers, model.candidate_dropout)
        )
        self.normalise = model.similarity == "cosine"
        self.width = self.dimension = model.dimension  # numbers of a vector, and how many of them `serve` keeps
        self.norm_exponent: Any = 1.0 if self.normalise else 0.0
        self.concat = model.combine == "concat"
        self.cross = [tfrs.layers.dcn.Cross(projection_dim=model.cross_projection) for _ in range(model.cross_layers)]
        widths = [*layers, model.dimension] if self.concat else []
        self.hidden = [
            # The last layer gives the vector itself, which bfloat16 would round to 8 bits.
            tf.keras.layers.Dense(width, activation="relu", dtype=HIDDEN_TYPES[config.train.precision])
            if depth < len(widths) - 1
            else tf.keras.layers.Dense(width, dtype="float32")
            for depth, width in enumerate(widths)
        ]
        self.log_variance = (
            tf.keras.layers.Dense(
                model.dimension,
                kernel_initializer="zeros",
                bias_initializer=tf.keras.initializers.Constant(FIRST_LOG_VARIANCE),
            )
            if config.loss.bottleneck
            else None
        )

    def __call__(self, encoded: Encoded, seed: tf.Tensor | None = None) -> tf.Tensor:
        """Vectors `[B, D]`; with an information bottleneck, their means.

        Args:
            encoded: looked-up features by name.
            seed: [2] of masks and dropout; None outside training.
        """
        return self._finished(self._dropped(self._mean(encoded, seed), seed))

    def sample(self, encoded: Encoded, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Vectors `[B, D]` as training sees them, and the cost of each: `[B]`, zero without a bottleneck.

        ``z = mean + sigma * noise``; the cost is ``KL(N(mean, sigma^2) | N(0, 1))``, an upper bound on the information
        that z holds about the features. Source: Alemi et al., Deep variational information bottleneck, ICLR 2017.
        """
        mean = self._mean(encoded, seed)
        if self.log_variance is None:
            return self._finished(self._dropped(mean, seed)), tf.zeros(tf.shape(mean)[:1])
        log_variance = self.log_variance(mean)
        noise = tf.reshape(normals(tf.size(mean), fold(tf.cast(seed, tf.int64), self.name, NOISE)), tf.shape(mean))
        cost = 0.5 * tf.reduce_sum(tf.exp(log_variance) + tf.square(mean) - 1 - log_variance, axis=1)
        return self._finished(self._dropped(mean + tf.exp(0.5 * log_variance) * noise, seed)), cost

    def serve(self, encoded: Encoded, norm_exponent: float | None = None) -> tf.Tensor:
        """Vectors `[B, dimension]` as they are exported and searched: ``v / |v|^x``, x the norm exponent, v cut.

        Args:
            encoded: looked-up features by name.
            norm_exponent: replaces the tower's own x.
        """
        vectors = self._mean(encoded, None)
        if self.dimension < self.width:
            vectors = vectors[:, : self.dimension]
        exponent = self.norm_exponent if norm_exponent is None else norm_exponent
        return vectors * tf.maximum(tf.norm(vectors, axis=1, keepdims=True), SHORTEST) ** -exponent

    def cut(self, vectors: tf.Tensor, width: int) -> tf.Tensor:
        """The first numbers `[..., width]` of finished vectors `[..., D]`, finished like a vector of their own.

        Source: Kusupati et al., Matryoshka representation learning, NeurIPS 2022, arXiv:2205.13147.
        """
        return vectors if width == self.width else self._finished(vectors[..., :width])

    def informed(self, encoded: Encoded) -> tf.Tensor:
        """Which examples have at least one feature that training learnt something about: bool [B]; takes no `Bag`."""
        known = [encoder.informs(encoded[encoder.spec.name]) for encoder in self.encoders]
        return tf.reduce_any(tf.stack(known), axis=0)

    def lookup(self, raw: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Turns raw features by name into looked-up ones."""
        return {encoder.spec.name: encoder.lookup_all(raw) for encoder in self.encoders}

    def _mean(self, encoded: Encoded, seed: tf.Tensor | None) -> tf.Tensor:
        vectors = []
        for encoder in self.encoders:
            rows = encoded[encoder.spec.name]
            vectors.append(encoder.embed(rows, seed))
        hidden = first = tf.concat(vectors, axis=1) if self.concat else tf.add_n(vectors)
        for cross in self.cross:
            hidden = cross(first, hidden)
        for layer in self.hidden:
            hidden = layer(hidden)
        if self.log_variance is not None and not self.log_variance.built:
            self.log_variance.build(hidden.shape)  # in the first pass of either kind, like the other layers
        return hidden

    def _dropped(self, vectors: tf.Tensor, seed: tf.Tensor | None) -> tf.Tensor:
        return dropped(vectors, self.dropout, seed, self.name)

    def _finished(self, vectors: tf.Tensor) -> tf.Tensor:
        return tf.math.l2_normalize(vectors, axis=-1, epsilon=SHORTEST**2) if self.normalise else vectors


class TwoTower(tf.Module):
    """A query tower, a candidate tower, and the temperature of their score.

    Args:
        query_specs, candidate_specs: the features of each side.
        config: dimension, similarity, temperature, combination; the seed of every initial weight.
    """

    def __init__(
        self, query_specs: Sequence[FeatureSpec], candidate_specs: Sequence[FeatureSpec], config: Config
    ) -> None:
        super().__init__(name="two_tower")
        seed = config.train.seed
        tf.keras.utils.set_random_seed(seed)
        self.settings = config.model
        tables: dict[str, tf.Variable] = {}
        specs = [*candidate_specs, *query_specs]
        widths = {spec.table: spec.config.dimension for spec in specs if spec.config.dimension is not None}
        for spec in specs:
            width = widths.get(spec.table, config.model.dimension)
            for each in (spec, *spec.columns):
                if each.table not in tables:
                    tables[each.table] = new_table(each, width, seed, config.model.table_dtype)
        self.query_tower, self.candidate_tower = (
            Tower([_with_columns(spec, tables, config) for spec in specs], config, side)
            for side, specs in (("query", query_specs), ("candidate", candidate_specs))
        )
        # Saved with the weights, because validation may choose it.
        self.candidate_tower.norm_exponent = tf.Variable(
            config.model.first_norm_exponent, trainable=False, name="norm_exponent"
        )
        # Likewise, but only if there is a prior: recipes without one keep the checkpoints that they always had.
        self.prior_weights: tf.Variable | None = None
        if config.model.prior != "off":
            given = config.model.prior
            first = (0.0, 0.0, 0.0) if given == "validation" else (given.now, given.past, given.length)
            self.prior_weights = tf.Variable(first, trainable=False, dtype=tf.float32, name="prior_weights")
        self.temperature = config.temperature or 1.0  # 1 for a loss with its own scale
        self.drift = tf.Variable(0.0, trainable=config.model.temperature_trainable, name="temperature_drift")

    def scale(self) -> tf.Tensor:
        """1 / temperature, which turns a similarity into a score.

        A trained temperature stays between a tenth of the recipe's and ten times the recipe's.
        """
        return tf.exp(-math.log(FURTHEST) * tf.tanh(self.drift)) / self.temperature


def build_encoder(spec: FeatureSpec, table: tf.Variable, config: Config) -> FeatureEncoder:
    """The encoder of one feature."""
    if spec.config.kind == "neighbours":
        return GraphEncoder(spec, spec.config, table)
    if spec.config.kind == "cooccurrence":
        return CooccurrenceEncoder(spec, spec.config, table)
    if spec.config.kind == "sequence":
        return SelfAttention(spec, spec.config, table, config.train.seed)
    if spec.config.kind in ("history", "multi", "text"):
        return PoolingEncoder(spec, table)
    return FeatureEncoder(spec, table)


def _with_columns(spec: FeatureSpec, tables: Mapping[str, tf.Variable], config: Config) -> FeatureEncoder:
    """The encoder of one feature and, of a list of items, of their columns."""
    encoder = build_encoder(spec, tables[spec.table], config)
    if spec.columns:
        # Without vocabularies: training looks the columns up, and a tower only reads what it found.
        columns = (build_encoder(replace(each, vocabulary=""), tables[each.table], config) for each in spec.columns)
        encoder.columns = ItemColumns([*columns], spec.rows)
    return encoder


class RawTower(tf.Module):
    """Turns raw features by name into ``embeddings`` float32 [B, D] and ``informed`` bool [B].

    If training learnt nothing about any of the features, `informed` is False and the vector is meaningless.
    """

    def __init__(self, tower: Tower) -> None:
        super().__init__()
        self.tower = tower
        self.signature = tf.function(self._embed, autograph=False).get_concrete_function(
            **{each.name: each for encoder in tower.encoders for each in encoder.spec.signatures()}
        )

    def _embed(self, **raw: tf.Tensor) -> dict[str, tf.Tensor]:
        rows = self.tower.lookup(raw)
        return {"embeddings": self.tower.serve(rows), "informed": self.tower.informed(rows)}


def save_tower(tower: Tower, directory: Path) -> None:
    """Writes `tower` with its vocabularies as a SavedModel: no absolute paths, only TensorFlow's own ops."""
    trained = tower.encoders
    tower.encoders = [each.served() for each in trained]
    try:
        raw = RawTower(tower)
        tf.saved_model.save(raw, str(directory), signatures={"serving_default": raw.signature})
    finally:
        tower.encoders = trained
