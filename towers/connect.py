"""Tells the encoders of neighbours who took what, and those of co-occurrence what is taken together.

In: the towers, their looked-up tables, the events that train. Out: towers whose `neighbours` and `cooccurrence`
features know their graphs.
"""

from collections.abc import Sequence

import numpy as np

from towers.cooccurrence import Companions, companions
from towers.cooccurrence_encoder import CooccurrenceEncoder
from towers.events import Events
from towers.feature_settings import COMPANIONS, WINDOW
from towers.features import MISSING
from towers.graph import Neighbours
from towers.graph_encoder import GraphEncoder
from towers.model import TwoTower
from towers.tables import Tables


def connect_graphs(model: TwoTower, tables: Tables, parts: Sequence[Events]) -> None:
    """Connects every encoder that pools a graph, before the first step and again before export.

    Args:
        model: the towers.
        tables: looked-up features of the same towers.
        parts: the events that train, split by split.

    Raises:
        ConfigError: the graph is too large to be pooled whole in each step.
    """
    for encoder in model.candidate_tower.encoders:
        if isinstance(encoder, CooccurrenceEncoder):
            rows, config = tables.companions[encoder.spec.name], encoder.config
            encoder.connect(companions(parts, rows != MISSING, config.window, config.max_length), rows)
    queries = [encoder for encoder in model.query_tower.encoders if isinstance(encoder, GraphEncoder)]
    candidates = [encoder for encoder in model.candidate_tower.encoders if isinstance(encoder, GraphEncoder)]
    if not queries and not candidates:
        return
    user, item = np.concatenate([part.user for part in parts]), np.concatenate([part.item for part in parts])
    # By user, as training has them: of too many neighbours the last ones count.
    order = np.argsort(user, kind="stable")
    user, item = user[order], item[order]
    users = len(parts[0].offsets) - 1
    for encoder in queries:
        rows = tables.neighbours[encoder.spec.name].rows
        near = None
        if encoder.config.cooccurrence:
            near = companions(parts, rows != MISSING, WINDOW, COMPANIONS).of_rows(rows, encoder.spec.rows)
        _connect(encoder, user, rows[item], users, near)
    for encoder in candidates:
        name = encoder.spec.name
        _connect(encoder, item, tables.audiences[name][user], len(tables.items[name]))


def _connect(
    encoder: GraphEncoder, node: np.ndarray, row: np.ndarray, count: int, near: Companions | None = None
) -> None:
    config, most = encoder.config, encoder.spec.length or 1
    rows, cooccurrence = encoder.spec.rows, config.cooccurrence
    encoder.connect(Neighbours(node, row, count, rows, most, config.recency, near, cooccurrence))
