"""Tells the encoders of neighbours who took what, and those of co-occurrence what is taken together.

In: the towers, their looked-up tables, the events that train. Out: towers whose `neighbours` and `cooccurrence`
features know their graphs.
"""

from collections.abc import Sequence

import numpy as np

from towers.cooccurrence import Companions, companions
from towers.events import Events, Int32s
from towers.feature_settings import COMPANIONS, WINDOW
from towers.features import MISSING
from towers.graph import Neighbours
from towers.graph_encoder import CooccurrenceEncoder, GraphEncoder
from towers.model import TwoTower
from towers.tables import Tables


def connect_graphs(model: TwoTower, tables: Tables, parts: Sequence[Events]) -> None:
    """Connects every encoder that pools a graph, before the first step and again before export.

    Args:
        model: the towers.
        tables: looked-up features of the same towers.
        parts: the events that train, split by split; those of weight 0 connect nothing.

    Raises:
        ConfigError: the graph is too large to be pooled whole in each step.
    """
    queries = [each for each in model.query_tower.encoders if isinstance(each, GraphEncoder)]
    candidates = [
        each for each in model.candidate_tower.encoders if isinstance(each, GraphEncoder | CooccurrenceEncoder)
    ]
    if not queries and not candidates:
        return
    parts = [part.taken() for part in parts]  # a copy where some have weight 0: not before a graph needs it
    user, item = np.concatenate([part.user for part in parts]), np.concatenate([part.item for part in parts])
    # By user, as training has them: of too many neighbours the last ones count.
    order = np.argsort(user, kind="stable")
    user, item = user[order], item[order]
    counted: dict[tuple[str, int, int], Companions] = {}

    def near(table: str, rows: Int32s, window: int, most: int) -> Companions:
        # Features of one table have the same rows; what is counted for one of them is so for all.
        key = table, window, most
        if key not in counted:
            counted[key] = companions(user, item, rows != MISSING, window, most)
        return counted[key]

    for encoder in queries:
        spec, config = encoder.spec, encoder.config
        rows, beside = tables.neighbours[spec.name].rows, None
        if config.cooccurrence:
            beside = near(spec.table, rows, WINDOW, COMPANIONS).of_rows(rows, spec.rows)
        _connect(encoder, user, rows[item], len(parts[0].offsets) - 1, beside)
    for encoder in candidates:
        name = encoder.spec.name
        if isinstance(encoder, CooccurrenceEncoder):
            rows, settings = tables.companions[name], encoder.config
            encoder.connect(near(encoder.spec.table, rows, settings.window, settings.max_length), rows)
        else:
            _connect(encoder, item, tables.audiences[name][user], len(tables.items[name]))


def _connect(encoder: GraphEncoder, node: Int32s, row: Int32s, count: int, beside: Companions | None = None) -> None:
    spec, config = encoder.spec, encoder.config
    encoder.connect(
        Neighbours(node, row, count, spec.rows, config.max_length, config.recency, beside, config.cooccurrence)
    )
