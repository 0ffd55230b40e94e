"""The peer of the train step: TensorFlow Recommenders' retrieval task over two Keras embeddings, trained by Keras.

In: sizes, an optimizer, how Keras compiles its step. Out: a function that trains some batches.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_recommenders as tfrs
from numpy.typing import NDArray

OPTIMIZERS = {"adam": tf.keras.optimizers.Adam, "adagrad": tf.keras.optimizers.Adagrad}
# As it comes; by XLA; several steps in one call.
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "jit_compile": {"jit_compile": True},
    "steps_per_execution": {"steps_per_execution": 4},
}


class TwoEmbeddings(tfrs.Model):
    """As in TensorFlow Recommenders' tutorial, over integer ids."""

    def __init__(self, users: int, items: int, dimension: int) -> None:
        super().__init__()
        self.user = tf.keras.layers.Embedding(users, dimension)
        self.item = tf.keras.layers.Embedding(items, dimension)
        self.task = tfrs.tasks.Retrieval()

    def compute_loss(self, inputs: tuple[tf.Tensor, tf.Tensor], training: bool = False) -> tf.Tensor:
        """In-batch softmax of the dot products."""
        user, item = inputs
        return self.task(self.user(user), self.item(item), compute_metrics=False)


def stepper(
    users: NDArray[Any], items: NDArray[Any], counts: tuple[int, int, int], optimizer: str, setting: str
) -> tuple[Callable[[], None], int]:
    """A function that trains the next batches and waits for them, and how many they are.

    Args:
        users, items: int64 [S, B], the batches, again and again.
        counts: of users and items, and the width of their vectors.
        optimizer: of `OPTIMIZERS`.
        setting: of `SETTINGS`.
    """
    model = TwoEmbeddings(*counts)
    model.compile(optimizer=OPTIMIZERS[optimizer](0.001), **SETTINGS[setting])
    train = model.make_train_function()
    batches = iter(tf.data.Dataset.from_tensor_slices((users, items)).cache().repeat().prefetch(8))
    return lambda: train(batches)["loss"].numpy(), SETTINGS[setting].get("steps_per_execution", 1)
