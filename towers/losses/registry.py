"""Maps a loss's name to its function: a new loss is one settings class, one function and one line here."""

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from towers.config.loss_section import Loss
from towers.losses.full_softmax import full_softmax
from towers.losses.pairwise import circle, graded_hinge, pair, triplet
from towers.losses.softmax import am_softmax, distance_softmax, sampled_softmax
from towers.losses.two_terms import bce, bsl, ccl, gbce, nce, neg

LossFunction = Callable[..., tf.Tensor]

# Each function has its loss's name. `full_softmax` is missing because it takes vectors, not scores.
EVERY = (
    sampled_softmax,
    nce,
    neg,
    gbce,
    bce,
    am_softmax,
    distance_softmax,
    triplet,
    pair,
    circle,
    graded_hinge,
    ccl,
    bsl,
)
FUNCTIONS: dict[str, LossFunction] = {function.__name__: function for function in EVERY}


def arguments(loss: Loss) -> dict[str, Any]:
    """The keyword arguments that a section sets for its function.

    Leaves out what the model does around the loss (masks, hits, bottleneck) and what it supplies, `Loss.inputs`.
    """
    function = full_softmax if loss.whole_catalogue else FUNCTIONS[loss.name]  # type: ignore[attr-defined]
    options = inspect.signature(function).parameters.keys() - set(loss.inputs)
    return {key: value for key, value in loss if key in options}
