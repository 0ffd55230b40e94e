"""log Z of NCE: how far a model's scores are from log-probabilities.

In: the recipe's word for it. Out: a number, a trained scalar, or one value for each query.
"""

import math
from typing import Any

import tensorflow as tf


class LogZ(tf.Module):
    """log Z: fixed (Mnih & Teh 2012 fix it to 0), one trained scalar, or linear in the query's vector.

    Args:
        setting: the recipe's.
        count: N. What is trained starts at log N, the log Z of scores that are all 0; those of new towers nearly are.
    """

    def __init__(self, setting: str | float, count: int) -> None:
        super().__init__(name="log_z")
        self.setting = setting
        start = math.log(count)
        self.value = tf.Variable(start, name="log_z") if setting == "learned" else None
        self.head: Any = None
        if setting == "per_query":
            bias = tf.keras.initializers.Constant(start)
            self.head = tf.keras.layers.Dense(1, kernel_initializer="zeros", bias_initializer=bias, name="log_z")

    def __call__(self, query: tf.Tensor) -> Any:
        """Scalar, or [B] for `query` [B, D]."""
        if self.value is not None:
            return self.value.read_value()
        return self.setting if self.head is None else self.head(query)[:, 0]
