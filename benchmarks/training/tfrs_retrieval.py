"""The peer of the train step: TensorFlow Recommenders' retrieval task over two Keras embeddings, trained by Keras.

In: sizes, batches in memory, an optimizer, a setting. Out: a function that trains the next batches.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_recommenders as tfrs
from numpy.typing import NDArray


class Setting(NamedTuple):
    """How the peer trains.

    Attributes:
        jit_compile: the whole call by XLA.
        steps: batches of one call.
        legacy: Keras's older optimizers, whose sparse updates are single fused kernels where TensorFlow has one.
        dtype: Keras's policy for the embeddings, and so of the scores.
    """

    jit_compile: bool = False
    steps: int = 1
    legacy: bool = False
    dtype: str = "float32"


SETTINGS = {
    "default": Setting(),
    "jit_compile": Setting(jit_compile=True),
    "4 steps a call": Setting(steps=4),
    "jit_compile, 4 steps a call": Setting(jit_compile=True, steps=4),
    "legacy optimizer": Setting(legacy=True),
    "legacy optimizer, 4 steps a call": Setting(legacy=True, steps=4),
    "bfloat16": Setting(dtype="mixed_bfloat16"),
    "bfloat16, jit_compile, 4 steps a call": Setting(jit_compile=True, steps=4, dtype="mixed_bfloat16"),
    "bfloat16, legacy optimizer, 4 steps a call": Setting(legacy=True, steps=4, dtype="mixed_bfloat16"),
}


class TwoEmbeddings(tfrs.Model):
    """As in TensorFlow Recommenders' tutorial, over integer ids."""

    def __init__(self, users: int, items: int, dimension: int, dtype: str) -> None:
        super().__init__()
        self.user = tf.keras.layers.Embedding(users, dimension, dtype=dtype)
        self.item = tf.keras.layers.Embedding(items, dimension, dtype=dtype)
        self.task = tfrs.tasks.Retrieval()

    def compute_loss(self, inputs: tuple[tf.Tensor, tf.Tensor], training: bool = False) -> tf.Tensor:
        """In-batch softmax of the dot products."""
        user, item = inputs
        return self.task(self.user(user), self.item(item), compute_metrics=False)


def stepper(
    users: NDArray[Any], items: NDArray[Any], counts: tuple[int, int, int], optimizer: str, setting: Setting
) -> Callable[[], None]:
    """A function that trains the next `setting.steps` batches and waits for them.

    Args:
        users, items: int64 [S, B], each batch once.
        counts: of users and items, and the width of their vectors.
        optimizer: "adam" or "adagrad".
        setting: how it trains.
    """
    model = TwoEmbeddings(*counts, setting.dtype)
    module = tf.keras.optimizers.legacy if setting.legacy else tf.keras.optimizers
    model.compile(optimizer={"adam": module.Adam, "adagrad": module.Adagrad}[optimizer](0.001))
    model.compute_loss((users[0], items[0]))  # creates the tables, before a graph is traced

    @tf.function(jit_compile=setting.jit_compile)
    def train(users: tf.Tensor, items: tf.Tensor) -> tf.Tensor:
        losses = [model.train_step((users[step], items[step]))["loss"] for step in range(setting.steps)]
        return tf.stack(losses)

    calls: Iterator[tuple[tf.Tensor, tf.Tensor]] = iter(
        [
            (tf.constant(users[first : first + setting.steps]), tf.constant(items[first : first + setting.steps]))
            for first in range(0, len(users) - setting.steps + 1, setting.steps)
        ]
    )
    return lambda: train(*next(calls)).numpy()
