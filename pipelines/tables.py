"""A data set's raw columns through the towers' look-ups, once: what training and export gather from.

In: a `Dataset` and a `TwoTower`. Out: `towers.tables.Tables`.
"""

from typing import Any

import numpy as np
import polars as pl
import tensorflow as tf
from numpy.typing import NDArray

from pipelines.dataset import Dataset
from pipelines.features import column_of
from pipelines.vocabulary import as_strings
from towers.features import FeatureEncoder
from towers.model import TwoTower
from towers.tables import HistoryTable, Tables

ROWS = 100_000  # looked up at once
TICKS_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def build_tables(model: TwoTower, dataset: Dataset, context: pl.DataFrame | None) -> Tables:
    """Looks up every user, every item and the context of every training event (`context`, in the events' order)."""
    manifest = dataset.manifest
    users: dict[str, Any] = {}
    contexts: dict[str, Any] = {}
    missing: dict[str, Any] = {}
    clocks: dict[str, str] = {}
    histories: dict[str, HistoryTable] = {}
    for encoder in model.query_tower.encoders:
        name, feature = encoder.spec.name, encoder.spec.config
        column = column_of(name, feature)
        if feature.kind == "history":
            histories[name] = HistoryTable(item_rows(encoder, dataset.items["item_id"]), feature.max_length)
        elif feature.kind in ("hour", "weekday"):
            clocks[name] = feature.kind
        elif feature.kind == "id":
            users[name] = looked_up(encoder, dataset.users["user_id"])
        elif column in manifest.user_columns:
            users[name] = looked_up(encoder, dataset.users[column])
        else:
            contexts[name] = looked_up(encoder, context[column]) if context is not None else np.empty(0)
            empty = pl.Series([None], dtype=dataset.context("train")[column].dtype)  # type: ignore[index]
            missing[name] = looked_up(encoder, empty)[0]
    items = {
        encoder.spec.name: looked_up(encoder, _item_column(encoder, dataset))
        for encoder in model.candidate_tower.encoders
    }
    ticks = TICKS_PER_SECOND.get(manifest.time_unit or "s", 1)
    return Tables(users, items, contexts, clocks, histories, missing, ticks)


def _item_column(encoder: FeatureEncoder, dataset: Dataset) -> pl.Series:
    feature = encoder.spec.config
    return dataset.items["item_id" if feature.kind == "id" else column_of(encoder.spec.name, feature)]


def item_rows(encoder: FeatureEncoder, item_ids: pl.Series) -> NDArray[np.int32]:
    """The history table's row of every item, int32 [N]."""
    return looked_up(encoder, item_ids, as_list=True)[:, 0]


def looked_up(encoder: FeatureEncoder, column: pl.Series, *, as_list: bool = False) -> NDArray[Any]:
    """One whole column through one encoder's look-up, in blocks."""
    lookup = tf.function(encoder.lookup, autograph=False).get_concrete_function(encoder.spec.signature())
    blocks = []
    for begin in range(0, max(1, len(column)), ROWS):
        raw = raw_values(encoder, column.slice(begin, ROWS))
        blocks.append(lookup(tf.constant(raw[:, None] if as_list else raw)).numpy())
    return np.concatenate(blocks)


def raw_values(encoder: FeatureEncoder, column: pl.Series) -> NDArray[Any]:
    """A column as the raw input of its feature: missing is NaN or "", lists are padded with ""."""
    spec = encoder.spec
    if spec.config.kind == "numeric":
        return column.cast(pl.Float32).fill_null(float("nan")).to_numpy()
    if column.dtype != pl.List:
        return as_strings(column).fill_null("").to_numpy().astype(object)
    if spec.length is None:  # text of a list column
        return column.list.join(" ").fill_null("").to_numpy().astype(object)
    out = np.full((len(column), spec.length), "", dtype=object)
    for row, values in enumerate(column.to_list()):
        kept = [value or "" for value in (values or [])[: spec.length]]
        out[row, : len(kept)] = kept
    return out
