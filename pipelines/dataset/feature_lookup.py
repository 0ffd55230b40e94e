"""Runs a data set's raw columns through the towers' look-ups once, for training and export to gather from."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import tensorflow as tf
from numpy.typing import NDArray

from pipelines.console import Advance, no_bar
from pipelines.dataset.arrays import CONTEXT, ArrayWriter, map_array
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.popularity import TICKS_PER_S
from pipelines.dataset.resolve_features import column_of
from pipelines.dataset.vocabulary import ROWS, as_strings, column_blocks
from pipelines.errors import DataError
from towers.config.recipe import Config
from towers.data.events import Events
from towers.data.feature_tables import FeatureTables, HistoryTable, SequenceTable
from towers.features.encoder import FeatureEncoder
from towers.model.two_tower import TwoTower


def build_tables(
    model: TwoTower,
    dataset: Dataset,
    context: pl.LazyFrame | None,
    work: Path | None = None,
    advance: Advance = no_bar,
) -> FeatureTables:
    """Looks up all users, all items and the context of all training events.

    Args:
        model: the model whose features are looked up.
        dataset: provides users and items.
        context: rows in the order of the training events; None outside training, or if there are none.
        work: a folder for arrays with one row per event; required with `context`.
        advance: called with half a feature for each one looked up; `learn_features` reports the other half.
    """
    manifest = dataset.manifest
    # The arguments of `FeatureTables`, each a dictionary by feature.
    found: defaultdict[str, dict[str, Any]] = defaultdict(dict, users={}, items={})
    for encoder in model.query_tower.encoders:
        name, feature = encoder.spec.name, encoder.spec.config
        column = column_of(name, feature)
        if feature.kind in ("history", "neighbours", "sequence"):
            rows = ids_as_rows(encoder, dataset.items["item_id"])
        if feature.kind in ("history", "sequence"):
            types = tuple(sorted({manifest.event_types.index(name) for name in feature.events}))
        if feature.kind == "history":
            of_others = feature.window == "others"
            found["histories"][name] = HistoryTable(rows, feature.max_length, types=types, others=of_others)
        elif feature.kind == "neighbours":
            found["neighbours"][name] = HistoryTable(rows, feature.max_length, others=feature.window != "earlier")
        elif feature.kind == "sequence":
            found["sequences"][name] = SequenceTable(rows, feature.max_length, feature.time_gaps, types=types)
        elif feature.kind in ("hour", "weekday"):
            found["clocks"][name] = feature.kind
        elif feature.kind == "id":
            found["users"][name] = looked_up(encoder, dataset.users["user_id"])
        elif column in manifest.user_columns:
            found["users"][name] = looked_up(encoder, dataset.users[column])
        else:
            table = pl.scan_parquet(dataset.path / "train" / CONTEXT, glob=False)
            empty = pl.Series([None], dtype=table.collect_schema()[column])
            missing = looked_up(encoder, empty)[0]
            found["missing"][name] = missing
            if context is not None and work is not None:
                file = work / f"{name}.npy"
                rows = context.select(pl.len()).collect().item()
                with ArrayWriter(file, (rows, *missing.shape), missing.dtype) as values:
                    for block in column_blocks(context, column):
                        values.append(looked_up(encoder, block))
                found["context"][name] = map_array(file)
        advance(0.5)
    for encoder in model.candidate_tower.encoders:
        name, feature = encoder.spec.name, encoder.spec.config
        if feature.kind == "neighbours":
            found["items"][name] = np.arange(manifest.items, dtype=np.int32)
            found["audiences"][name] = ids_as_rows(encoder, dataset.users["user_id"])
        elif feature.kind == "cooccurrence":
            found["items"][name] = np.arange(manifest.items, dtype=np.int32)
            found["companions"][name] = ids_as_rows(encoder, dataset.items["item_id"])
        else:
            column = "item_id" if feature.kind == "id" else column_of(name, feature)
            found["items"][name] = looked_up(encoder, dataset.items[column])
        advance(0.5)
    shared = {encoder.spec.table: encoder.spec.name for encoder in model.candidate_tower.encoders}
    for encoder in model.query_tower.encoders:
        read = [] if encoder.columns is None else encoder.columns.encoders
        for spec, reader in zip(encoder.spec.columns, read, strict=True):
            if spec.table in shared:
                found["item_columns"][spec.table] = found["items"][shared[spec.table]]
            else:
                own = dataset.items[column_of(spec.name, spec.config)]
                found["item_columns"][spec.table] = looked_up(FeatureEncoder(spec, reader.table), own)
    ticks = TICKS_PER_S.get(manifest.time_unit or "s", 1)
    return FeatureTables(**found, ticks_per_second=ticks, time_zone=manifest.config.time_zone)


def refuse_empty_histories(config: Config, events: Events, tables: FeatureTables) -> None:
    """Refuses a history of types that only impressions have, or only later splits: it would always be empty."""
    for name, table in {**tables.histories, **tables.sequences}.items():
        if table.types and not len(events.past_of(table.types).item):
            wanted = getattr((config.features.query or {})[name], "events", ())
            raise DataError(
                f"features.query.{name}.events: no training event with a weight above 0 is of the type "
                f"{' or '.join(map(repr, wanted))}; it would always be empty"
            )


def ids_as_rows(encoder: FeatureEncoder, ids: pl.Series) -> NDArray[np.int32]:
    """Returns each id's row in the table of a feature that takes lists of ids, int32 [N]."""
    return looked_up(encoder, ids, as_list=True)[:, 0]


def looked_up(encoder: FeatureEncoder, column: pl.Series, *, as_list: bool = False) -> NDArray[Any]:
    """Runs a whole column through one encoder's look-up, in blocks."""
    lookup = tf.function(encoder.lookup, autograph=False).get_concrete_function(encoder.spec.signature())
    blocks = []
    for begin in range(0, max(1, len(column)), ROWS):
        raw = raw_values(encoder, column.slice(begin, ROWS))
        blocks.append(lookup(tf.constant(raw[:, None] if as_list else raw)).numpy())
    return np.concatenate(blocks)


def raw_values(encoder: FeatureEncoder, column: pl.Series) -> NDArray[Any]:
    """Converts a column to the raw input of its feature: missing is NaN or "", lists are padded with ""."""
    spec = encoder.spec
    if spec.config.kind == "numeric":
        return column.cast(pl.Float32).fill_null(float("nan")).to_numpy()
    if spec.config.kind == "vector":
        return column.to_numpy()
    if column.dtype != pl.List:
        return as_strings(column).fill_null("").to_numpy().astype(object)
    if spec.length is None:  # text of a list column
        return column.list.join(" ").fill_null("").to_numpy().astype(object)
    out = np.full((len(column), spec.length), "", dtype=object)
    for row, values in enumerate(column.to_list()):
        kept = [value or "" for value in (values or [])[: spec.length]]
        out[row, : len(kept)] = kept
    return out
