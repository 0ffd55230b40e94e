"""Rows that no training example reads start at zero, and so stay there: what was never learnt adds nothing to a vector.

In: a fresh model, the looked-up tables, the training events. Out: the model's embedding tables with those rows at zero.
Left at their random start they would be served as if they meant something: the only feature of a new item may be such a
row, and the cosine would blow it up to full length.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from towers.blocks import blocks
from towers.catalogue import counted
from towers.events import Events, Int64s
from towers.model import TwoTower
from towers.tables import Array, HistoryTable, Tables, clock_rows


def silence_untrained(model: TwoTower, tables: Tables, events: Events) -> None:
    """Sets every embedding row that none of `events` reads to zero, in place; call it before the first step."""
    read: dict[str, NDArray[np.bool_]] = {}
    variables: dict[str, tf.Variable] = {}
    sources = {"query": _query_rows(tables, events), "candidate": _candidate_rows(tables, events)}
    for side, tower in (("query", model.query_tower), ("candidate", model.candidate_tower)):
        for encoder in tower.encoders:
            spec = encoder.spec
            if spec.config.kind != "numeric":
                variables[spec.table] = encoder.table
                marks = read.setdefault(spec.table, np.zeros(spec.rows, np.bool_))
                for rows in sources[side][spec.name]:
                    marks[rows.ravel()] = True
    for name, table in variables.items():
        table.assign(tf.where(read[name][:, np.newaxis], table, 0.0))


def _candidate_rows(tables: Tables, events: Events) -> dict[str, Iterable[Array]]:
    items, users = _items(events), _users(events)
    read: dict[str, Iterable[Array]] = {name: [rows[items]] for name, rows in tables.items.items()}
    read |= {name: [rows[users]] for name, rows in tables.audiences.items()}
    return read | {name: [rows[items]] for name, rows in tables.companions.items()}


def _query_rows(tables: Tables, events: Events) -> dict[str, Iterable[Array]]:
    items, users = _items(events), _users(events)
    return (
        {name: [rows[users]] for name, rows in tables.users.items()}
        | {name: (rows[block] for block in blocks(rows)) for name, rows in tables.context.items()}
        | {name: [each.rows[items]] for name, each in _of_items(tables).items()}
        | {name: _clock(kind, events, tables.ticks_per_second) for name, kind in tables.clocks.items()}
    )


def _items(events: Events) -> Int64s:
    return np.flatnonzero(counted(events.item, int(events.item.max(initial=0)) + 1))


def _users(events: Events) -> Int64s:
    return np.flatnonzero(np.diff(events.offsets))


def _clock(kind: str, events: Events, ticks_per_second: int) -> Iterator[Array]:
    for block in blocks(events.item):
        seconds = None if events.time is None else events.time[block] // ticks_per_second
        yield clock_rows(kind, seconds, block.stop - block.start)


def _of_items(tables: Tables) -> dict[str, HistoryTable]:
    return {**tables.histories, **tables.neighbours, **tables.sequences}
