"""Figures over questions of several data sets at once: means and paired differences, with their intervals.

In: the user of each question and columns of figures. Out: estimates of a bootstrap over users. A question is one user
on one data set. A user may ask several, and a resample takes a user with all of them, the same draws for every column.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.rankers.bootstrap import bootstrap

Column = NDArray[np.float64]
INTERVAL = "95 % percentile bootstrap over users, each with all of their questions; 1,000 resamples, seed 0"


def estimates(users: Sequence[str] | NDArray[Any], columns: Mapping[str, Column]) -> dict[str, Any]:
    """The mean of each column over the questions; a mean is a ratio of sums over users, and so is a replicate.

    Args:
        users: [Q] whose question it is.
        columns: name -> [Q] figures.

    Returns:
        The numbers of ``questions`` and ``users``, and ``{"value", "low", "high"}`` by column.
    """
    _, user = np.unique(np.asarray(users), return_inverse=True)
    counted = np.stack([np.bincount(user, weights=each) for each in (*columns.values(), np.ones(len(user)))], axis=1)
    drawn = bootstrap(counted.astype(np.float64), [*columns, "questions"])
    return {"questions": len(user), "users": len(counted)} | {name: drawn.ratio(name, "questions") for name in columns}
