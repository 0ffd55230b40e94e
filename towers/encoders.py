"""Which class embeds which kind of feature.

In: a `FeatureSpec`, its embedding table, the recipe. Out: a `FeatureEncoder`.
"""

import tensorflow as tf

from towers.config import Config
from towers.cooccurrence_encoder import CooccurrenceEncoder
from towers.features import FeatureEncoder, FeatureSpec
from towers.graph_encoder import GraphEncoder
from towers.pooling import PoolingEncoder
from towers.self_attention import SelfAttention


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
