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
from towers.events import Events
from towers.model import TwoTower
from towers.tables import Array, Tables, clock_rows


def silence_untrained(model: TwoTower, tables: Tables, events: Events) -> None:
    """Sets every embedding row that none of `events` reads to zero, in place; call it before the first step."""
    read: dict[str, NDArray[np.bool_]] = {}
    variables: dict[str, tf.Variable] = {}
    sources = _read(tables, events)
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


def _read(tables: Tables, events: Events) -> dict[str, dict[str, Iterable[Array]]]:
    """By side and feature the rows that examples read, in parts."""
    items = np.flatnonzero(counted(events.item, int(events.item.max(initial=0)) + 1))
    users = np.flatnonzero(np.diff(events.offsets))
    of_items = {**tables.histories, **tables.neighbours, **tables.sequences}
    query: dict[str, Iterable[Array]] = {name: [rows[users]] for name, rows in tables.users.items()}
    query |= {name: (rows[block] for block in blocks(rows)) for name, rows in tables.context.items()}
    query |= {name: [each.rows[items]] for name, each in of_items.items()}
    query |= {name: _clock(kind, events, tables.ticks_per_second) for name, kind in tables.clocks.items()}
    candidate: dict[str, Iterable[Array]] = {name: [rows[items]] for name, rows in tables.items.items()}
    candidate |= {name: [rows[users]] for name, rows in tables.audiences.items()}
    candidate |= {name: [rows[items]] for name, rows in tables.companions.items()}
    return {"query": query, "candidate": candidate}


def _clock(kind: str, events: Events, ticks_per_second: int) -> Iterator[Array]:
    for block in blocks(events.item):
        seconds = None if events.time is None else events.time[block] // ticks_per_second
        yield clock_rows(kind, seconds, block.stop - block.start)
