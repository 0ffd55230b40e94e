"""Zeroes the rows that no training example reads: what was never learnt stays zero and adds nothing to a vector.

With their random start they would be served as if they meant something: the only feature of a new item may be such a
row, and the cosine would blow it up to full length.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from towers.data.blocks import blocks
from towers.data.clocks import clock_rows
from towers.data.events import Events
from towers.data.feature_tables import Array, FeatureTables
from towers.data.item_ranks import counted
from towers.features.encoder import FeatureEncoder
from towers.model.two_tower import TwoTower


def zero_untrained_rows(model: TwoTower, tables: FeatureTables, events: Events) -> None:
    """Zeroes every embedding row that none of `events` reads, in place; call it before the first step.

    A row that multiplies a number of a vector is read where that number, standardised, is not zero.
    """
    read: dict[str, NDArray[np.bool_]] = {}
    variables: dict[str, tf.Variable] = {}
    sources = _read(tables, events)

    def mark(encoder: FeatureEncoder, parts: Iterable[Array]) -> None:
        spec = encoder.spec
        if spec.config.kind == "numeric":
            return
        variables[spec.table] = encoder.table
        marks = read.setdefault(spec.table, np.zeros(spec.rows, np.bool_))
        for rows in parts:
            if spec.linear:
                marks |= (rows != 0).any(axis=0)
            else:
                marks[rows.ravel()] = True

    for side, tower in (("query", model.query_tower), ("candidate", model.candidate_tower)):
        for encoder in tower.encoders:
            mark(encoder, sources[side][encoder.spec.name])
            if encoder.columns is not None:
                table = {**tables.histories, **tables.sequences}[encoder.spec.name]
                items = np.unique(events.past_of(table.types).item)
                for column in encoder.columns.encoders:
                    mark(column, [tables.item_columns[column.spec.table][items]])
    for name, table in variables.items():
        table.assign(tf.where(read[name][:, np.newaxis], table, 0.0))


def _read(tables: FeatureTables, events: Events) -> dict[str, dict[str, Iterable[Array]]]:
    """The rows that examples read, in parts, by side and feature."""
    items = np.flatnonzero(counted(events.item, int(events.item.max(initial=0)) + 1))
    users = np.flatnonzero(np.diff(events.offsets))
    of_items = {**tables.histories, **tables.neighbours, **tables.sequences}
    query: dict[str, Iterable[Array]] = {name: [rows[users]] for name, rows in tables.users.items()}
    query |= {name: _in_blocks(rows) for name, rows in tables.context.items()}
    query |= {
        name: [each.rows[events.past_of(each.types).item if each.types else items]] for name, each in of_items.items()
    }
    query |= {name: _clock(kind, events, tables) for name, kind in tables.clocks.items()}
    candidate: dict[str, Iterable[Array]] = {name: [rows[items]] for name, rows in tables.items.items()}
    candidate |= {name: [rows[users]] for name, rows in tables.audiences.items()}
    candidate |= {name: [rows[items]] for name, rows in tables.companions.items()}
    return {"query": query, "candidate": candidate}


def _in_blocks(rows: Array) -> Iterator[Array]:
    for block in blocks(rows):
        yield rows[block]


def _clock(kind: str, events: Events, tables: FeatureTables) -> Iterator[Array]:
    for block in blocks(events.item):
        seconds = None if events.time is None else events.time[block] // tables.ticks_per_second
        yield clock_rows(kind, seconds, block.stop - block.start, tables.time_zone)
