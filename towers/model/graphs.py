"""Connects encoders to what lies outside their batches: graphs of the training events, columns of the items."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from towers.config.features import COMPANIONS
from towers.data.bags import MISSING
from towers.data.events import Events, Int32s
from towers.data.feature_tables import FeatureTables
from towers.features.cooccurrence import Companions, companions
from towers.features.neighbour_graph import Neighbours
from towers.features.neighbours import CooccurrenceEncoder, GraphEncoder
from towers.model.two_tower import TwoTower


def connect_graphs(model: TwoTower, tables: FeatureTables, parts: Sequence[Events]) -> None:
    """Connects every encoder that pools a graph or reads items' columns, before the first step and before export.

    Args:
        model: the towers.
        tables: looked-up features of the same towers.
        parts: the positive training events, split by split.

    Raises:
        ConfigError: the graph is too large to be pooled whole in each step.
    """
    for reader in model.query_tower.encoders:
        if reader.columns is not None:
            rows = {**tables.histories, **tables.sequences}[reader.spec.name].rows
            reader.columns.connect([tables.item_columns[each.spec.table] for each in reader.columns.encoders], rows)
    queries = [each for each in model.query_tower.encoders if isinstance(each, GraphEncoder)]
    candidates = [
        each for each in model.candidate_tower.encoders if isinstance(each, GraphEncoder | CooccurrenceEncoder)
    ]
    if not queries and not candidates:
        return
    user, item = np.concatenate([part.user for part in parts]), np.concatenate([part.item for part in parts])
    # By user, as in training: of too many neighbours the last ones count.
    order = np.argsort(user, kind="stable")
    user, item = user[order], item[order]
    counted: dict[tuple[str, int | Literal["list"], int], Companions] = {}

    def near(table: str, rows: Int32s, window: int | Literal["list"], most: int, key: str) -> Companions:
        # Features of one table have the same rows, so counts for one of them hold for all.
        place = table, window, most
        if place not in counted:
            counted[place] = companions(user, item, rows != MISSING, window, most, key)
        return counted[place]

    for encoder in queries:
        spec, config = encoder.spec, encoder.config
        rows, beside = tables.neighbours[spec.name].rows, None
        if config.cooccurrence:
            key = f"features.query.{spec.name}.cooccurrence_window"
            beside = near(spec.table, rows, config.cooccurrence_window, COMPANIONS, key).of_rows(rows, spec.rows)
        _connect(encoder, user, rows[item], len(parts[0].offsets) - 1, beside)
    for encoder in candidates:
        name = encoder.spec.name
        if isinstance(encoder, CooccurrenceEncoder):
            rows, settings = tables.companions[name], encoder.config
            key = f"features.candidate.{name}.window"
            encoder.connect(near(encoder.spec.table, rows, settings.window, settings.max_length, key), rows)
        else:
            times = [part.time for part in parts if part.time is not None]
            # By time, if there is one: of too many users of an item the latest count.
            late = np.argsort(np.concatenate(times)[order], kind="stable") if len(times) == len(parts) else slice(None)
            _connect(encoder, item[late], tables.audiences[name][user[late]], len(tables.items[name]))


def _connect(encoder: GraphEncoder, node: Int32s, row: Int32s, count: int, beside: Companions | None = None) -> None:
    spec, config = encoder.spec, encoder.config
    encoder.connect(
        Neighbours(node, row, count, spec.rows, config.max_length, config.recency, beside, config.cooccurrence)
    )
