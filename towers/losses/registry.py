"""Which function a loss's name stands for: adding a loss is one settings class, one function and one line here.

In: a settings section. Out: its function, and the options that the section sets on it.
"""

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from towers.losses.contrastive import bsl, ccl
from towers.losses.graded import graded_hinge
from towers.losses.margin import am_softmax, distance_softmax
from towers.losses.noise import nce, neg
from towers.losses.pairs import circle, pair
from towers.losses.pointwise import bce
from towers.losses.section import Loss
from towers.losses.softmax import sampled_softmax
from towers.losses.triplet import triplet

LossFunction = Callable[..., tf.Tensor]

# `full_softmax` is not among them: it takes vectors, not scores.
FUNCTIONS: dict[str, LossFunction] = {
    "sampled_softmax": sampled_softmax,
    "nce": nce,
    "neg": neg,
    "bce": bce,
    "am_softmax": am_softmax,
    "distance_softmax": distance_softmax,
    "triplet": triplet,
    "pair": pair,
    "circle": circle,
    "graded_hinge": graded_hinge,
    "ccl": ccl,
    "bsl": bsl,
}


def arguments(loss: Loss) -> dict[str, Any]:
    """The keyword arguments that a section sets on its function.

    Left out is what the model does around the loss (masks, hits, bottleneck) and what it supplies: `labels`,
    `same_query`, `log_z`, and a `margin` that is adaptive.
    """
    options = set(inspect.signature(FUNCTIONS[loss.name]).parameters) - {"log_z"}  # type: ignore[attr-defined]
    return {key: value for key, value in loss if key in options and (key, value) != ("margin", "adaptive")}
