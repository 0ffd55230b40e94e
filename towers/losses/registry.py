"""Which function a loss's name stands for: adding a loss is one settings class, one function and one line here.

In: a settings section. Out: its function, and the options that the section sets on it.
"""

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from towers.losses.pairs import circle, graded_hinge, pair, triplet
from towers.losses.section import Loss
from towers.losses.softmax import am_softmax, distance_softmax, sampled_softmax
from towers.losses.two_terms import bce, bsl, ccl, nce, neg

LossFunction = Callable[..., tf.Tensor]

# Each is called as its loss is. `full_softmax` is not among them: it takes vectors, not scores.
EVERY = (sampled_softmax, nce, neg, bce, am_softmax, distance_softmax, triplet, pair, circle, graded_hinge, ccl, bsl)
FUNCTIONS: dict[str, LossFunction] = {function.__name__: function for function in EVERY}


def arguments(loss: Loss) -> dict[str, Any]:
    """The keyword arguments that a section sets on its function.

    Left out is what the model does around the loss (masks, hits, bottleneck) and what it supplies: `labels`,
    `same_query`, `log_z`, and a `margin` that is adaptive.
    """
    options = set(inspect.signature(FUNCTIONS[loss.name]).parameters) - {"log_z"}  # type: ignore[attr-defined]
    return {key: value for key, value in loss if key in options and (key, value) != ("margin", "adaptive")}
