"""Every loss in every one of its ways, and a batch of scores to try it on.

In: nothing. Out: `CASES` (name of the loss, options), `world`, what they are called on, and `evaluate`.
"""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tests.support.loss_references import Query
from towers.losses.registry import FUNCTIONS
from towers.losses.scores import Scores

CATALOGUE = 8  # N: a query of `world` has fewer negatives, as many as N - 1, or more
COSINES = ("am_softmax", "distance_softmax", "triplet", "pair", "circle", "graded_hinge", "ccl")
CIRCLE: dict[str, Any] = {
    "scale": 8.0,
    "margin": 0.25,
    "positive_optimum": None,
    "negative_optimum": None,
    "positive_delta": None,
    "negative_delta": None,
}
BSL: dict[str, Any] = {"positive_group": "own", "negative_scale": 1.0, "correction": 0.0, "label_smoothing": 0.0}
SOFTMAX: dict[str, Any] = {"correction": 1.0, "positive": "included", "label_smoothing": 0.0}
MARGIN: dict[str, Any] = {"scale": 8.0, "margin": 0.2, "correction": 0.0, "label_smoothing": 0.0}
TRIPLET: dict[str, Any] = {"on": "similarity", "mining": "all", "smooth": False, "scale": 8.0, "margin": 0.3}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("sampled_softmax", SOFTMAX),
    ("sampled_softmax", SOFTMAX | {"correction": 0.3}),
    ("sampled_softmax", SOFTMAX | {"correction": 0.0, "label_smoothing": 0.1}),
    ("sampled_softmax", SOFTMAX | {"positive": "excluded"}),
    ("sampled_softmax", SOFTMAX | {"positive": "excluded", "correction": 0.5, "label_smoothing": 0.1}),
    ("nce", {"label_smoothing": 0.0}),
    ("nce", {"label_smoothing": 0.1}),
    ("neg", {"label_smoothing": 0.0}),
    ("neg", {"label_smoothing": 0.1}),
    ("gbce", {"calibration": 0.0}),
    ("gbce", {"calibration": 0.75}),
    ("gbce", {"calibration": 1.0}),
    ("bce", {"label_smoothing": 0.0}),
    ("bce", {"label_smoothing": 0.1}),
    ("am_softmax", MARGIN),
    ("am_softmax", MARGIN | {"correction": 0.7, "label_smoothing": 0.1}),
    ("distance_softmax", MARGIN),
    ("distance_softmax", MARGIN | {"correction": 0.7, "label_smoothing": 0.1}),
    *[
        ("triplet", TRIPLET | {"on": on, "mining": mining})
        for on in ("similarity", "euclidean", "sqrt_1_minus_cos")
        for mining in ("all", "semi_hard", "hardest")
    ],
    *[("triplet", TRIPLET | {"smooth": True, "mining": mining}) for mining in ("all", "semi_hard", "hardest")],
    ("pair", {"scale": 8.0, "margin": 0.1, "correction": 0.0}),
    ("pair", {"scale": 8.0, "margin": 0.0, "correction": 0.7}),
    ("circle", CIRCLE),
    ("circle", CIRCLE | {"positive_delta": 0.0, "negative_delta": 0.0}),
    ("circle", CIRCLE | {"positive_optimum": 0.6, "negative_optimum": 0.1, "positive_delta": 0.5}),
    ("graded_hinge", {"margin": 0.2, "pairs": "list"}),
    ("graded_hinge", {"margin": 0.2, "pairs": "batch"}),
    ("ccl", {"margin": 0.1, "negative_weight": 3.0}),
    ("bsl", BSL),
    ("bsl", BSL | {"negative_scale": 0.7, "correction": 0.5, "label_smoothing": 0.1}),
    ("bsl", BSL | {"positive_group": "batch"}),
    ("bsl", BSL | {"positive_group": "batch", "negative_scale": 0.7, "correction": 0.5, "label_smoothing": 0.1}),
]


def label_of(case: tuple[str, dict[str, Any]]) -> str:
    name, options = case
    return "-".join([name, *(f"{key}={value}" for key, value in options.items())])


class World(NamedTuple):
    """A batch in float64: what a loss is called on, and what it may need beside the scores."""

    positive: NDArray[Any]
    negative: NDArray[Any]
    present: NDArray[np.bool_]
    mask: NDArray[np.bool_]
    log_q_positive: NDArray[Any]
    log_q_negative: NDArray[Any]
    labels: NDArray[Any]
    log_z: NDArray[Any]
    same: NDArray[np.bool_]

    def scores(self, dtype: tf.DType = tf.float32) -> Scores:
        return Scores(
            tf.constant(self.positive, dtype),
            tf.constant(self.negative, dtype),
            tf.constant(self.present),
            tf.constant(self.mask),
            tf.constant(self.log_q_positive, tf.float32),
            tf.constant(self.log_q_negative, tf.float32),
        )

    def taken(self, rows: NDArray[np.int64]) -> "World":
        """The queries in another order. Columns stay, so the diagonal of `same` has to be clear."""
        shared = self.log_q_negative if self.log_q_negative.ndim == 1 else self.log_q_negative[rows]
        return World(*(part[rows] for part in self))._replace(log_q_negative=shared)

    def queries(self) -> list[Query]:
        """The entries that count, query by query."""
        batch, columns = self.negative.shape
        log_q = np.broadcast_to(self.log_q_negative, self.negative.shape)
        return [
            Query(
                positives=[*self.positive[b][self.present[b]]],
                log_q_positives=[*self.log_q_positive[b][self.present[b]]],
                negatives=[*self.negative[b][self.mask[b]]],
                log_q_negatives=[*log_q[b][self.mask[b]]],
                columns=columns,
                labels=[*self.labels[b][self.present[b]]],
                log_z=self.log_z[b],
                catalogue=CATALOGUE,
                same=[(self.negative[b, j], log_q[b, j]) for j in range(columns) if self.same[b, j] and j != b],
            )
            for b in range(batch)
        ]


def world(name: str, shared_log_q: bool = True, seed: int = 0) -> World:
    """Six queries, up to three positives, nine candidates; the last query has no negative left."""
    batch, most, columns = 6, 3, 9
    rng = np.random.default_rng([seed, len(name)])
    cosines = name in COSINES
    present = rng.random((batch, most)) < 0.6
    present[:, 0] = True
    mask = rng.random((batch, columns)) < 0.7
    mask[-1] = False
    own = np.eye(batch, columns, dtype=bool)
    return World(
        positive=rng.uniform(-1, 1, (batch, most)) if cosines else rng.normal(0, 2, (batch, most)),
        negative=rng.uniform(-1, 1, (batch, columns)) if cosines else rng.normal(0, 2, (batch, columns)),
        present=present,
        mask=mask & ~own,
        # Below log M, so that each q = Q / M stays below 1.
        log_q_positive=rng.uniform(-12, 1, (batch, most)),
        log_q_negative=rng.uniform(-12, 1, columns if shared_log_q else (batch, columns)),
        labels=rng.random((batch, most)) if name == "bce" else rng.integers(0, 4, (batch, most)).astype(float),
        log_z=rng.normal(0, 1, batch),
        same=(rng.random((batch, columns)) < 0.25) | own,
    )


def supplied(name: str, options: dict[str, Any], given: World) -> dict[str, Any]:
    """What the model gives beside the settings."""
    if name == "nce":
        return {"log_z": tf.constant(given.log_z, tf.float32)}
    if name == "gbce":
        return {"catalogue": CATALOGUE}
    if name in ("bce", "graded_hinge"):
        return {"labels": tf.constant(given.labels, tf.float32)}
    if name == "bsl" and options["positive_group"] == "batch":
        return {"same_query": tf.constant(given.same)}
    return {}


def evaluate(
    name: str, options: dict[str, Any], scores: Scores, more: dict[str, Any]
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Losses [B], and the gradient of their sum to the positives' and the candidates' scores."""
    with tf.GradientTape() as tape:
        tape.watch([scores.positive, scores.negative])
        losses = FUNCTIONS[name](scores, **options, **more)
    to_positive, to_negative = tape.gradient(
        losses, [scores.positive, scores.negative], unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    return losses, to_positive, to_negative
