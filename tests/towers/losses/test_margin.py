"""The known answer of a margin: points that softmax already classifies right, next to a point of the other class."""

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from tests.support.loss_cases import TRIPLET
from towers.losses.pairwise import triplet
from towers.losses.scores import Scores
from towers.losses.softmax import am_softmax, distance_softmax

# Degrees on the circle. The centres are at 0 and 180; the points at 80 and 100 are nearest to each other.
POINTS, CLASSES, CENTRES = [10.0, 45.0, 80.0, 100.0, 135.0, 170.0], np.array([0, 0, 0, 1, 1, 1]), [0.0, 180.0]
SCALE = 50.0
Loss = Callable[[Scores], tf.Tensor]


def on_circle(degrees: list[float]) -> tf.Tensor:
    angle = np.deg2rad(degrees)
    return tf.constant(np.stack([np.cos(angle), np.sin(angle)], axis=1), tf.float32)


def trained(loss: Loss) -> np.ndarray:
    """The points after 300 steps of gradient descent, of length one: [6, 2]. Nothing here is random."""
    points = tf.Variable(on_circle(POINTS))
    centres = on_circle(CENTRES)
    own = tf.constant(CLASSES)

    @tf.function(autograph=False)
    def step() -> None:
        with tf.GradientTape() as tape:
            cosine = tf.linalg.l2_normalize(points, axis=1) @ tf.transpose(centres)
            scores = Scores(
                tf.gather(cosine, own[:, tf.newaxis], batch_dims=1),
                cosine,
                tf.ones([6, 1], tf.bool),
                own[:, tf.newaxis] != tf.range(2, dtype=tf.int64),
                tf.zeros([6, 1]),
                tf.zeros([2]),
            )
            total = tf.reduce_mean(loss(scores))
        points.assign_sub(0.01 * tape.gradient(total, points))

    for _ in range(300):
        step()
    return tf.linalg.l2_normalize(points, axis=1).numpy()


def classified(points: np.ndarray) -> np.ndarray:
    return (points @ on_circle(CENTRES).numpy().T).argmax(axis=1)


def class_of_nearest(points: np.ndarray) -> np.ndarray:
    cosine = points @ points.T
    np.fill_diagonal(cosine, -2)
    return CLASSES[cosine.argmax(axis=1)]


def softmax(margin: float) -> Loss:
    return lambda scores: am_softmax(scores, scale=SCALE, margin=margin, correction=0.0, label_smoothing=0.0)


def test_plain_softmax_is_content_with_points_next_to_the_other_class() -> None:
    points = trained(softmax(margin=0.0))
    np.testing.assert_array_equal(classified(points), CLASSES)
    np.testing.assert_array_equal(class_of_nearest(points)[2:4], [1, 0])


@pytest.mark.parametrize(
    "loss",
    [
        softmax(margin=1.2),
        lambda scores: distance_softmax(scores, scale=SCALE, margin=0.6, correction=0.0, label_smoothing=0.0),
        lambda scores: triplet(scores, **(TRIPLET | {"margin": 1.2})),
        lambda scores: triplet(scores, **(TRIPLET | {"on": "sqrt_1_minus_cos", "margin": 0.6})),
    ],
    ids=["am_softmax", "distance_softmax", "triplet", "triplet on the distance"],
)
def test_a_margin_gives_every_point_a_neighbour_of_its_own_class(loss: Loss) -> None:
    points = trained(loss)
    np.testing.assert_array_equal(classified(points), CLASSES)
    np.testing.assert_array_equal(class_of_nearest(points), CLASSES)
