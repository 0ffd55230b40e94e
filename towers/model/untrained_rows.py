"""Zeroes the rows that no training example reads: what was never learnt stays zero and adds nothing to a vector.

With their random start they would be served as if they meant something: the only feature of a new item may be such a
row, and the cosine would blow it up to full length.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from towers.config.recipe import Config
from towers.data.blocks import blocks
from towers.data.clocks import clock_rows
from towers.data.events import Events, Int64s
from towers.data.feature_tables import Array, FeatureTables, HistoryTable
from towers.data.history import earlier
from towers.data.impressions import Impressions
from towers.data.item_ranks import counted
from towers.features.encoder import FeatureEncoder
from towers.model.two_tower import TwoTower


def zero_untrained_rows(
    model: TwoTower,
    tables: FeatureTables,
    events: Events,
    positives: int = 1,
    scored: NDArray[np.bool_] | None = None,
) -> None:
    """Zeroes every embedding row that none of `events` reads, in place; call it before the first step.

    A row that multiplies a number of a vector is read where that number, standardised, is not zero.

    Args:
        model: the towers.
        tables: their looked-up features.
        events: the training events.
        positives: number of items that each example is to find.
        scored: as from `scored_items`.
    """
    read: dict[str, NDArray[np.bool_]] = {}
    variables: dict[str, tf.Variable] = {}
    sources = _read(tables, events, positives, scored)

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
                items = _in_histories(table, events, positives)
                for column in encoder.columns.encoders:
                    mark(column, [tables.item_columns[column.spec.table][items]])
    for name, table in variables.items():
        table.assign(tf.where(read[name][:, np.newaxis], table, 0.0))


def scored_items(
    config: Config, events: Events, counts: Int64s | None, impressions: Impressions | None
) -> NDArray[np.bool_] | None:
    """[items] which items of the training events some example may score; None for all of them.

    Args:
        config: the recipe.
        events: the training events.
        counts: [items] how many examples are to find each item; None if every event is an example.
        impressions: of the examples.
    """
    drawn = config.negatives is not None and config.negatives.draws_every_item
    if counts is None or config.loss.whole_catalogue or drawn:
        return None
    scored = counts > 0
    if config.contrast.weight:  # an item that is taken with no other has no companion and is none
        lengths = np.diff(events.offsets)
        scored[events.item[np.repeat(lengths > 1, lengths)]] = True
    if impressions is not None:
        trained = counted(events.item, len(counts)) > 0
        scored[impressions.item] |= trained[impressions.item]
    return scored


def _read(
    tables: FeatureTables, events: Events, positives: int, scored: NDArray[np.bool_] | None
) -> dict[str, dict[str, Iterable[Array]]]:
    """The rows that examples read, in parts, by side and feature."""
    items = _distinct(events.item)
    users = np.flatnonzero(np.diff(events.offsets))
    query: dict[str, Iterable[Array]] = {name: [rows[users]] for name, rows in tables.users.items()}
    query |= {name: _in_blocks(rows) for name, rows in tables.context.items()}
    for name, each in {**tables.histories, **tables.neighbours, **tables.sequences}.items():
        # A node of the graph holds the example's own event, too.
        node = name in tables.neighbours and each.others
        query[name] = [each.rows[items if node else _in_histories(each, events, positives)]]
    query |= {name: _clock(kind, events, tables) for name, kind in tables.clocks.items()}
    items = items if scored is None else np.flatnonzero(scored)
    candidate: dict[str, Iterable[Array]] = {name: [rows[items]] for name, rows in tables.items.items()}
    candidate |= {name: [rows[users]] for name, rows in tables.audiences.items()}
    candidate |= {name: [rows[items]] for name, rows in tables.companions.items()}
    return {"query": query, "candidate": candidate}


def _in_histories(table: HistoryTable, events: Events, positives: int) -> NDArray[np.int64]:
    """The items in the histories of the examples: not what users took last, or what is a target of all examples."""
    past, counts = events.past_of(table.types), np.diff(events.offsets)
    # A list without times is all targets where it is no longer than these.
    users = np.flatnonzero(counts > (positives if events.history_end is None else 0))
    last = events.offsets[users + 1] - 1
    if events.history_end is None or table.others:
        start, end = events.past.offsets[users], events.past.offsets[users + 1]
        # With times, the last event of such a list is a target of each example.
        end = np.where(counts[users] > positives, end, events.past_place(last))
    else:
        start, end = earlier(events, users.astype(np.int32), last)
    change = np.zeros(len(past.item) + 1, np.int8)
    np.add.at(change, past.places(start), 1)
    np.add.at(change, past.places(end), -1)
    return _distinct(past.item[np.cumsum(change[:-1], dtype=np.int8) > 0])


def _distinct(items: NDArray[np.int32]) -> NDArray[np.int64]:
    return np.flatnonzero(counted(items, int(items.max(initial=0)) + 1))


def _in_blocks(rows: Array) -> Iterator[Array]:
    for block in blocks(rows):
        yield rows[block]


def _clock(kind: str, events: Events, tables: FeatureTables) -> Iterator[Array]:
    for block in blocks(events.item):
        seconds = None if events.time is None else events.time[block] // tables.ticks_per_second
        yield clock_rows(kind, seconds, block.stop - block.start, tables.time_zone)
