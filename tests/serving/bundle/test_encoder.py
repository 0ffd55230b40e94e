"""A tower of an own bundle is refused when it is opened, not when two requests meet in one call."""

from pathlib import Path

import pytest
import tensorflow as tf

from serving.bundle.encoder import Encoder
from serving.bundle.manifest import FeatureSpec
from serving.errors import BundleError

AGE = FeatureSpec(name="age", kind="numeric", dtype="float32")
TAGS = FeatureSpec(name="tags", kind="categorical", dtype="string", length=3)


def save(path: Path, age: list[int | None], tags: list[int | None], output: str) -> Path:
    """A tower that takes inputs of these shapes and gives [B, 2]."""

    def tower(age: tf.Tensor, tags: tf.Tensor) -> dict[str, tf.Tensor]:
        told = tf.reshape(tf.where(tf.math.is_nan(age), 0.0, age), [-1])
        count = tf.reduce_sum(tf.cast(tags != "", tf.float32), -1)
        return {output: tf.stack([told, tf.zeros_like(told) + tf.reshape(count, [-1])], 1)}

    module = tf.Module()
    signature = tf.function(tower, autograph=False).get_concrete_function(
        age=tf.TensorSpec(age, tf.float32, "age"), tags=tf.TensorSpec(tags, tf.string, "tags")
    )
    tf.saved_model.save(module, str(path), signatures={"serving_default": signature})
    return path


@pytest.mark.parametrize("tags", [[None, None], [None, 3]])
def test_a_tower_of_batches_of_any_size_encodes_them(tmp_path: Path, tags: list[int | None]) -> None:
    encoder = Encoder(save(tmp_path / "tower", [None], tags, "embeddings"), (AGE, TAGS), 2)
    encoder.warm_up()
    vectors = encoder.encode([{"age": 3.0, "tags": ["a"]}, {}, {"age": -1.0, "tags": ["a", "b"]}])
    assert vectors.tolist() == [[3, 1], [0, 0], [-1, 2]]


SCALARS, LISTS = r"a batch of any size: \[None\]", r"a batch of lists, of any size: \[None, None\]"


@pytest.mark.parametrize(
    ("age", "tags", "output", "reason"),
    [
        ([None, 1], [None, None], "embeddings", rf"its input age must be {SCALARS}, is \[None, 1\]"),
        ([1], [None, None], "embeddings", rf"its input age must be {SCALARS}, is \[1\]"),
        ([None], [None], "embeddings", rf"its input tags must be {LISTS}, is \[None\]"),
        ([None], [1, None], "embeddings", rf"its input tags must be {LISTS}, is \[1, None\]"),
        ([None], [None, None], "unit_normalization", r"has no output 'embeddings', but unit_normalization"),
    ],
)
def test_a_tower_that_cannot_serve_a_batch_is_refused(
    tmp_path: Path, age: list[int | None], tags: list[int | None], output: str, reason: str
) -> None:
    path = save(tmp_path / "tower", age, tags, output)
    with pytest.raises(BundleError, match=rf"tower: {reason}$"):
        Encoder(path, (AGE, TAGS), 2)
