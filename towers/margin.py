"""The adaptive margin: as wide as the classes themselves, estimated anew as training goes.

In: distances of samples to the centres of their classes. Out: m, a variable that is saved with the weights.
"""

from collections.abc import Iterable

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from towers.events import Floats, Int64s
from towers.losses.section import Loss
from towers.losses.settings import DistanceSoftmax

Distances = Iterable[tuple[Int64s, Floats]]


class AdaptiveMargin(tf.Module):
    """Starts at 0; every `every` epochs becomes the mean diameter of the classes, at most `most`.

    The diameter of a class is twice the mean distance of its samples to the centre. As ``d(a,b) <= d(a,c) + d(c,b)``,
    a margin this wide keeps a sample closer to every other of its own class than to those of the next one.
    """

    def __init__(self, every: int, most: float) -> None:
        super().__init__()
        self.every, self.most = every, most
        self.value = tf.Variable(0.0, trainable=False, name="margin")

    def update(self, epoch: int, distances: Distances) -> dict[str, float]:
        """Estimates m after `epoch` epochs, where one is due.

        Args:
            epoch: trained so far.
            distances: blocks of classes [n] and the distance [n] of a sample of each to its centre.

        Returns:
            What the log shows: the margin, and the estimate it was made of.
        """
        if epoch % self.every:
            return {"margin": float(self.value)}
        estimate = mean_diameter(distances)
        self.value.assign(min(estimate, self.most))
        return {"margin": float(self.value), "margin_estimate": estimate, "margin_clamped": float(estimate > self.most)}


def adaptive_margin(loss: Loss) -> AdaptiveMargin | None:
    """The margin that a loss's settings ask to have estimated; None where it is a number, or there is none."""
    if isinstance(loss, DistanceSoftmax) and loss.margin == "adaptive":
        return AdaptiveMargin(loss.margin_every, loss.margin_max)
    return None


def mean_diameter(distances: Distances) -> float:
    """Twice the mean over classes of the mean distance of a class's samples to its centre."""
    total: NDArray[np.float64] = np.zeros(0)
    count: NDArray[np.float64] = np.zeros(0)
    for classes, distance in distances:
        size = max(len(total), int(classes.max(initial=-1)) + 1)
        more = (0, size - len(total))
        total = np.pad(total, more) + np.bincount(classes, distance, size)
        count = np.pad(count, more) + np.bincount(classes, minlength=size).astype(np.float64)
    return float(2 * np.mean(total[count > 0] / count[count > 0])) if (count > 0).any() else 0.0
