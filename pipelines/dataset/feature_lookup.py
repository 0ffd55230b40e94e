"""Runs a data set's raw columns through the towers' look-ups once, for training and export to gather from."""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import tensorflow as tf
from numpy.typing import NDArray

from pipelines.console import Advance, no_bar
from pipelines.dataset.arrays import CONTEXT, ArrayWriter, map_array
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.number_text import as_strings
from pipelines.dataset.popularity import TICKS_PER_S
from pipelines.dataset.resolve_features import column_of
from pipelines.dataset.vocabulary import ROWS, column_blocks
from towers.config.recipe import Config
from towers.data.events import Events
from towers.data.feature_tables import FeatureTables, HistoryTable, SequenceTable
from towers.errors import ConfigError
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
    found = _Found(dataset, context, work)
    for encoder in model.query_tower.encoders:
        found.add_of_query(encoder)
        advance(0.5)
    for encoder in model.candidate_tower.encoders:
        found.add_of_candidate(encoder)
        advance(0.5)
    shared = {encoder.spec.table: encoder.spec.name for encoder in model.candidate_tower.encoders}
    for encoder in model.query_tower.encoders:
        found.add_item_columns(encoder, shared)
    ticks = TICKS_PER_S.get(dataset.manifest.time_unit or "s", 1)
    return FeatureTables(**found.tables, ticks_per_second=ticks, time_zone=dataset.manifest.config.time_zone)


class _Found:
    """The arguments of `FeatureTables`, each a dictionary by feature."""

    def __init__(self, dataset: Dataset, context: pl.LazyFrame | None, work: Path | None) -> None:
        self._data, self._context, self._work = dataset, context, work
        self.tables: defaultdict[str, dict[str, Any]] = defaultdict(dict, users={}, items={})

    def add_of_query(self, encoder: FeatureEncoder) -> None:
        name, feature, manifest = encoder.spec.name, encoder.spec.config, self._data.manifest
        column = column_of(name, feature)
        if feature.kind in ("history", "neighbours", "sequence"):
            rows = ids_as_rows(encoder, self._data.items["item_id"])
        if feature.kind in ("history", "sequence"):
            types = tuple(sorted({manifest.event_types.index(each) for each in feature.events}))
        if feature.kind == "history":
            of_others = feature.window == "others"
            self.tables["histories"][name] = HistoryTable(rows, feature.max_length, types=types, others=of_others)
        elif feature.kind == "neighbours":
            others = feature.window != "earlier"
            self.tables["neighbours"][name] = HistoryTable(rows, feature.max_length, others=others)
        elif feature.kind == "sequence":
            table = SequenceTable(rows, feature.max_length, feature.time_gaps, types=types)
            self.tables["sequences"][name] = table
        elif feature.kind in ("hour", "weekday"):
            self.tables["clocks"][name] = feature.kind
        elif feature.kind == "id":
            self.tables["users"][name] = looked_up(encoder, self._data.users["user_id"])
        elif column in manifest.user_columns:
            self.tables["users"][name] = looked_up(encoder, self._data.users[column])
        else:
            self._add_context(encoder, column)

    def add_of_candidate(self, encoder: FeatureEncoder) -> None:
        name, feature = encoder.spec.name, encoder.spec.config
        if feature.kind == "neighbours":
            self.tables["items"][name] = np.arange(self._data.manifest.items, dtype=np.int32)
            self.tables["audiences"][name] = ids_as_rows(encoder, self._data.users["user_id"])
        elif feature.kind == "cooccurrence":
            self.tables["items"][name] = np.arange(self._data.manifest.items, dtype=np.int32)
            self.tables["companions"][name] = ids_as_rows(encoder, self._data.items["item_id"])
        else:
            column = "item_id" if feature.kind == "id" else column_of(name, feature)
            self.tables["items"][name] = looked_up(encoder, self._data.items[column])

    def add_item_columns(self, encoder: FeatureEncoder, shared: Mapping[str, str]) -> None:
        """Adds the columns that a history reads of its items; `shared` names the candidate's feature of each table."""
        read = [] if encoder.columns is None else encoder.columns.encoders
        for spec, reader in zip(encoder.spec.columns, read, strict=True):
            if spec.table in shared:
                values = self.tables["items"][shared[spec.table]]
            else:
                own = self._data.items[column_of(spec.name, spec.config)]
                values = looked_up(FeatureEncoder(spec, reader.table), own)
            self.tables["item_columns"][spec.table] = values

    def _add_context(self, encoder: FeatureEncoder, column: str) -> None:
        """Adds a column of the events: a row for each, and the one for a missing value."""
        name, table = encoder.spec.name, pl.scan_parquet(self._data.path / "train" / CONTEXT, glob=False)
        empty = pl.Series([None], dtype=table.collect_schema()[column])
        missing = self.tables["missing"][name] = looked_up(encoder, empty)[0]
        if self._context is None or self._work is None:
            return
        file, events = self._work / f"{name}.npy", self._context.select(pl.len()).collect().item()
        with ArrayWriter(file, (events, *missing.shape), missing.dtype) as values:
            for block in column_blocks(self._context, column):
                values.append(looked_up(encoder, block))
        self.tables["context"][name] = map_array(file)


def refuse_empty_histories(config: Config, events: Events, tables: FeatureTables) -> None:
    """Refuses a history of types that only impressions have, or only later splits: it would always be empty."""
    for name, table in {**tables.histories, **tables.sequences}.items():
        if table.types and not len(events.past_of(table.types).item):
            wanted = getattr((config.features.query or {})[name], "events", ())
            raise ConfigError(
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
