"""What one query is answered from."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from serving.bundle.prior import NO_PRIOR
from serving.recall.query import RecallQuery, Source
from serving.search.index import Floats, Rows

NO_ROWS = np.empty(0, np.int64)
NO_FEATURES: Mapping[str, Any] = MappingProxyType({})


class Plan(NamedTuple):
    """How one query is answered: from a vector, from features to encode, or from neither.

    Attributes:
        query: the query.
        source: what answers it.
        excluded: distinct rows that must not be returned, ascending.
        vector: [D], if it is known already.
        features: the tower's input, if it is not.
        history: length of the history, which weights the prior; `NO_PRIOR` for a query by similarity alone.
    """

    query: RecallQuery
    source: Source
    excluded: Rows
    vector: Floats | None = None
    features: Mapping[str, Any] = NO_FEATURES
    history: int = NO_PRIOR
