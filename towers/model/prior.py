"""The popularity prior: how much recent popularity adds to a model's scores.

    s(u, i) = u . v_i / |v_i|^x + (now + length log(1 + h)) log q_now(i) - past log q_train(i)

with h the length of the query's history. A softmax with correction c learns ``log P(i | u) - (1 - c) log q_train(i)``
of the whole training period, but today's P is wanted: in theory ``past = c`` and ``now = 1``, in units of the
temperature. In practice the length of the item vectors carries popularity too, so all weights are fitted together on
held-out events (`towers.evaluation.prior_fit`). The score stays one dot product, of ``[u, w(h), -past]`` and
``[v_i / |v_i|^x, log q_now, log q_train]``. Related: Zhang et al., PDA, SIGIR 2021.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towers.data.events import Floats
from towers.model.two_tower import TwoTower

Doubles = NDArray[np.float64]

# Added to an item's count over the mean count, so that an item without an event has a finite log share. On
# MovieLens-100k, 0.01 to 1 gave the same recall.
SMOOTHING = 0.1


@dataclass(frozen=True)
class Shares:
    """Log shares of every item: float32 [N] each.

    Attributes:
        now: of the counts that measure what is in fashion.
        past: of the training events.
    """

    now: Floats
    past: Floats


@dataclass(frozen=True)
class Prior:
    """Weights of the prior, in units of the standard deviation of the served scores.

    In this unit they keep their meaning when a model is retrained with another scale. See `deviation`.

    Attributes:
        now: of ``log q_now`` for a query without a history.
        past: of ``log q_train``, subtracted.
        length: added to `now` per unit of ``log(1 + h)``.
    """

    now: float
    past: float
    length: float = 0.0

    def weights(self, histories: NDArray[np.integer[Any]]) -> Floats:
        """The elements of a query's vector that multiply the columns of `Shares`.

        Args:
            histories: [B] lengths of the queries' histories.

        Returns:
            [B, 2]: ``max(0, now + length log(1 + h))`` and ``-past``.
        """
        now = np.maximum(self.now + self.length * np.log1p(histories), 0.0)
        return np.stack([now, np.full(len(now), -self.past)], axis=1).astype(np.float32)


def deviation(queries: Floats, vectors: Floats) -> float:
    """The standard deviation of the scores of queries [Q, D] and items [N, D], from at most 512 and 8,192 of them.

    Ignores zero queries, about which nothing is known. 1 if all scores are equal.
    """
    some = queries[np.any(queries != 0, axis=1)]
    parts = [each[:: max(1, -(-len(each) // most))] for each, most in ((some, 512), (vectors, 8_192))]
    scores = parts[0] @ parts[1].T
    return float(scores.std()) or 1.0 if scores.size else 1.0


def prior_of(model: TwoTower) -> Prior | None:
    """A model's prior; None if its recipe has none."""
    return None if model.prior_weights is None else Prior(*map(float, model.prior_weights.numpy()))


def assign_prior(model: TwoTower, prior: Prior) -> None:
    """Sets the prior of a model whose recipe has one."""
    assert model.prior_weights is not None
    model.prior_weights.assign([prior.now, prior.past, prior.length])


@contextmanager
def choice_of_validation(model: TwoTower) -> Iterator[None]:
    """Inside, validation may choose norm exponent and prior; what raises puts both back.

    The search for the exponent starts from the last one, and an interrupted epoch is validated again: it must not start
    from a choice that its progress does not count.
    """
    variables = [each for each in (model.candidate_tower.norm_exponent, model.prior_weights) if each is not None]
    before = [each.numpy() for each in variables]
    try:
        yield
    except BaseException:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)
        raise


def log_share(counts: NDArray[Any], mean: float | None = None) -> Floats:
    """``log(c / mean + 0.1)`` of counts [N]: 0 for about the mean item, -2.3 for one without an event."""
    mean = float(counts.mean()) if mean is None else mean
    share: Floats = np.log(counts / (mean or 1.0) + SMOOTHING).astype(np.float32)
    return share
