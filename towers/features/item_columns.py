"""Side features of the steps of a history: the vector of an item includes those of its columns.

``e_t = e_item + sum_c f_c(item)``, f_c the encoder of column c, before any pooling or attention: a sum, as BERT adds up
its kinds of input (Devlin et al., NAACL 2019). Liu et al., Non-invasive self-attention, AAAI 2021, and Xie et al.,
Decoupled side information fusion, SIGIR 2022, compare it with later ways to join them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from towers.data.bags import MISSING
from towers.data.events import Int32s
from towers.features.encoder import FeatureEncoder, FeatureSpec


class ItemColumns(tf.Module):
    """The columns of the items in lists, found by an item's table row: a request sends ids alone.

    Args:
        encoders: one per column, with a table of its own or that of the candidate tower's feature of the column.
        rows: of the items' table.
    """

    def __init__(self, encoders: Sequence[FeatureEncoder], rows: int) -> None:
        super().__init__()
        self.encoders = list(encoders)
        # Saved with the weights, for the exported tower.
        self.values = [
            tf.Variable(tf.zeros([rows, *_shape(each.spec)], _dtype(each.spec)), trainable=False)
            for each in self.encoders
        ]

    def connect(self, values: Sequence[NDArray[Any]], rows: Int32s) -> None:
        """Sets what the items' columns hold, before the first step and again before export.

        Args:
            values: of each column, the result of `FeatureEncoder.lookup` for every item: [N, ...].
            rows: [N] table row of every item.
        """
        for variable, looked_up in zip(self.values, values, strict=True):
            by_row = np.zeros(variable.shape, variable.dtype.as_numpy_dtype)
            by_row[rows] = looked_up
            by_row[MISSING] = 0  # of all items without a row
            variable.assign(by_row)

    def embed(self, rows: tf.Tensor) -> tf.Tensor:
        """The sum of the columns' vectors of the items at table rows, in the shape of `rows` plus one axis."""
        flat = tf.reshape(rows, [-1])
        pairs = zip(self.encoders, self.values, strict=True)
        total = tf.add_n([encoder.embed(tf.gather(values, flat)) for encoder, values in pairs])
        return tf.reshape(total, tf.concat([tf.shape(rows), tf.shape(total)[1:]], 0))


def _shape(spec: FeatureSpec) -> list[int]:
    """The shape of what `lookup` makes of one value of a column."""
    if spec.linear:
        return [spec.rows]
    return [spec.config.max_length] if spec.config.kind in ("multi", "text") else []


def _dtype(spec: FeatureSpec) -> tf.DType:
    # Rows as in batches: TensorFlow has no int32 arithmetic on a GPU.
    return tf.float32 if spec.linear else tf.int64
