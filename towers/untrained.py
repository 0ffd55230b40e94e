"""Rows that no training example reads start at zero, and so stay there: what was never learnt adds nothing to a vector.

In: a fresh model, the looked-up tables, the training events. Out: the model's embedding tables with those rows at zero.
Left at their random start they would be served as if they meant something: the only feature of a new item may be such a
row, and the cosine would blow it up to full length.
"""

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from towers.events import Events
from towers.model import TwoTower
from towers.tables import Array, Tables, clock_rows


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
                read.setdefault(spec.table, np.zeros(spec.rows, np.bool_))[sources[side][spec.name].ravel()] = True
    for name, table in variables.items():
        table.assign(tf.where(read[name][:, np.newaxis], table, 0.0))


def _candidate_rows(tables: Tables, events: Events) -> dict[str, Array]:
    items = np.unique(events.item)
    return {name: rows[items] for name, rows in tables.items.items()}


def _query_rows(tables: Tables, events: Events) -> dict[str, Array]:
    items, users = np.unique(events.item), np.unique(events.user)
    ticks = tables.ticks_per_second
    return (
        {name: rows[users] for name, rows in tables.users.items()}
        | dict(tables.context)
        | {name: history.rows[items] for name, history in tables.histories.items()}
        | {
            name: clock_rows(kind, None if events.time is None else events.time // ticks, len(events))
            for name, kind in tables.clocks.items()
        }
    )
