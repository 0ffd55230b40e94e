"""Reads all events of a source in one pass as compact arrays: ids as codes, times as integers.

A value takes 4 to 8 bytes, and each id is stored once.
"""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from pipelines.console import progress
from pipelines.dataset.arrays import SPLITS
from pipelines.errors import DataError
from pipelines.ingest.columns.event_columns import ContextColumns
from pipelines.ingest.columns.event_table import Codes, EventTable
from pipelines.ingest.columns.event_types import EventTypes
from pipelines.ingest.columns.ids import IdColumn, IdForms, refuse_strangers
from pipelines.ingest.columns.numbers import numbers
from pipelines.ingest.columns.one_line import OneLine
from pipelines.ingest.columns.spool import Spool
from pipelines.ingest.columns.times import TimeColumn
from pipelines.ingest.formats.column_names import NAME_WEIGHTS, Roles, event_roles
from pipelines.ingest.formats.rejects import ROW, Rejects, short_name
from pipelines.ingest.formats.source import ORDERED, Source
from towers.config.sections import DataConfig
from towers.data.events import Int32s

PHASE = "read events"
TINY = float(np.finfo(np.float32).tiny)  # the least positive float32 of full precision


def read_events(
    source: Source,
    config: DataConfig,
    items: pl.Series | None,
    rejects: Rejects,
    forms: IdForms,
    folder: Path | None = None,
    remedy: str = "",
    *,
    every_type: bool = True,
) -> EventTable:
    """Reads all events once.

    Args:
        source: the opened tables.
        config: the mapping, and which types and weights to keep.
        items: the ids of the items file, or None; an event with any other item is a bad row.
        rejects: receives bad rows.
        forms: how the data set's files write ids, by ``user`` and ``item``.
        folder: gets the columns while they are read, in nameless files; None takes that of temporary files.
        remedy: what to do about a missing column; see `event_roles`.
        every_type: refuse a type of ``data.event_types`` that no event has.

    Raises:
        DataError: bad rows that are not skipped, a missing column, ids of another form than in another file, a type
            that no event has, or no event left.
    """
    roles = [event_roles(table.path, table.columns, config.columns, remedy) for _, table in source.events]
    reader = _Reader(source, roles, config, Codes(items), rejects, forms, folder)
    rows = [table.rows for _, table in source.events]
    total = None if None in rows else sum(row for row in rows if row)
    with progress(PHASE, total=total, unit="rows") as advance:
        for number, (_, table) in enumerate(source.events):
            reader.open(number)
            for batch in rejects.counted(table.path, table.read(rejects)):
                reader.take(batch)
                advance(batch.height)
    events = reader.finish()
    if every_type:
        reader.types.refuse_absent(events.paths[0])
    return events


class _Reader:
    def __init__(
        self,
        source: Source,
        roles: list[Roles],
        config: DataConfig,
        items: Codes,
        rejects: Rejects,
        forms: IdForms,
        folder: Path | None,
    ) -> None:
        self.source, self.all_roles, self.config = source, roles, config
        self.rejects, self.forms = rejects, forms
        self.users, self.items, self.types = Codes(), items, EventTypes(config.event_types)
        self.times = TimeColumn(config.time_unit, config.time_zone, rejects)
        self.parts: defaultdict[str, Spool] = defaultdict(lambda: Spool(folder))
        self.context = ContextColumns(source.events[0][1], rejects)
        self.dropped: dict[str, int] = {}
        self.typed = any(each.type is not None for each in roles)
        self.ids: list[IdColumn] = []
        self.lines = OneLine(rejects) if source.format == "sequences" else None
        self.roles: Roles | None = None
        self.number = 0

    def open(self, number: int) -> None:
        """Goes on to the next file, whose rows `take` gets."""
        self.number = number
        config, roles, (_, table) = self.config, self.all_roles[number], self.source.events[number]
        if config.event_types and roles.type is None:
            raise DataError(
                f"{table.path}: data.event_types is set, but no column of types is found (data.columns.type)"
            )
        if config.min_weight is not None and roles.weight is None:
            raise DataError(
                f"{table.path}: data.min_weight is set, but no weight column is found (data.columns.weight)"
            )
        if self.lines is not None and roles.time is not None:
            raise DataError(
                f"{table.path}: {roles.time!r} would be the time of its events, but the order of a line is; rename it"
            )
        if self.roles is not None and (other := self.roles.shape ^ roles.shape):
            first, names = short_name(self.source.events[0][1].path), ", ".join(sorted(other))
            raise DataError(f"{table.path}: other columns than in {first}: only one of them has {names}")
        self.roles = self.roles or roles
        if self.roles.type is None:  # a file without types may come first
            self.roles = replace(self.roles, type=roles.type)
        columns = {"user": roles.user, "item": roles.item}
        self.ids = [IdColumn(table.path, name, self.rejects, self.forms[side]) for side, name in columns.items()]

    def take(self, frame: pl.DataFrame) -> None:
        roles, (split, table) = self.all_roles[self.number], self.source.events[self.number]
        path = table.path
        if self.lines is not None:
            frame = self.lines.check(frame, path, roles.user, split)
        if (wanted := self.types.wanted(frame, path, roles.type)) is not None:
            frame = self._drop(frame, wanted, "event_types")
        for column in self.ids:
            frame = column.clean(frame)
        if roles.time is not None:
            frame = self.times.parse(frame, path, roles.time, roles.context)
        if roles.weight is not None:
            frame = self._weights(frame, path, roles.weight)
        if roles.context:
            frame = self.context.check(frame, table, roles.context)
        item = self.items.encode(frame[roles.item])
        if self.items.known:
            frame, item = self._known_items(frame, item, path, roles.item)
        self.parts["item"].append(item)
        self.parts["user"].append(self.users.encode(frame[roles.user]))
        self.parts["row"].append(frame[ROW].cast(pl.UInt32).to_numpy())
        if len(self.source.events) > 1:
            self.parts["file"].append(np.full(len(item), self.number, np.uint16))
        if roles.time is not None:
            self.parts["time"].append(frame[roles.time].to_numpy())
        if roles.weight is not None:
            self.parts["weight"].append(frame[roles.weight].to_numpy())
        if self.typed:
            self.parts["type"].append(self.types.codes(frame, roles.type))
        if split is not None:
            self.parts["split"].append(np.full(len(item), SPLITS.index(split), np.uint8))
        if roles.context:
            self.context.append(frame.select(roles.context))

    def finish(self) -> EventTable:
        strange = np.arange(self.items.known, len(self.items.strings()), dtype=np.int32)
        if self.items.known and len(strange):  # bad rows, which were skipped
            self._refuse_strangers(np.concatenate([*map(np.unique, self.parts["item"]), strange]))
        if not len(self.parts["user"]):
            raise self._nothing()
        time = self.times.finish(self.parts.pop("time")) if "time" in self.parts else None
        unit = self.times.unit
        assert self.roles is not None
        user, item, row = (self._joined(name) for name in ("user", "item", "row"))
        types, numbers_of_types = self.types.numbered(self._joined("type"))
        if time is None and (self.source.format in ORDERED or self.config.ordered):
            time, unit = np.arange(len(user), dtype=np.int64), "order"
        events = EventTable(
            user=user,
            item=item,
            row=row,
            file=self._joined("file"),
            time=time,
            time_unit=unit,
            weight=self._joined("weight"),
            type=numbers_of_types,
            split=self._joined("split"),
            context=self.context.joined(),
            context_kinds={},
            user_ids=self.users.strings(),
            item_ids=self.items.strings()[: self.items.known or None],
            types=types,
            roles=self.roles,
            dates=self.times.dates,
            paths=[table.path for _, table in self.source.events],
            dropped=self.dropped,
        )
        self.context.resolve_kinds(events)
        if not len(events):
            raise self._nothing()
        return events

    def _nothing(self) -> DataError:
        paths = [table.path for _, table in self.source.events]
        where = ", ".join(map(str, paths))
        if not any(self.rejects.rows[path] for path in paths):
            return DataError(f"{where}: there are no rows")
        rules = self.config.model_dump(mode="json", include=set(self.dropped))
        counts = {name: count for name, count in self.dropped.items() if count}
        dropped = "".join(f"; data.{name} = {rules[name]} dropped {count:,}" for name, count in counts.items())
        return DataError(f"{where}: no event left to use{dropped}{self.types.told()}{self.rejects.left_out(*paths)}")

    def _joined(self, name: str) -> Any:
        return self.parts.pop(name).joined() if name in self.parts else None

    def _weights(self, frame: pl.DataFrame, path: Path, column: str) -> pl.DataFrame:
        value = pl.col(column)
        dtype = frame.schema[column]
        if not (dtype.is_numeric() or dtype == pl.String or dtype == pl.Null):
            raise DataError(f"{path}, column {column!r}: wrong type: a weight is a number, got {dtype}")
        remedy = NAME_WEIGHTS if "weight" not in self.parts else ""
        frame = self.rejects.split_off(frame, value.is_null(), path, column, "no weight", remedy=remedy)
        if dtype != pl.String:
            frame = frame.with_columns(value.cast(pl.Float64))
        frame = numbers(frame, column, path, self.rejects, "NaN or infinite", remedy)
        # Rounded to 0, as float32 or by a processor that knows no smaller ones, it would be an impression.
        tiny = (value > 0) & (value < TINY)
        frame = frame.with_columns(pl.when(tiny).then(TINY).otherwise(value).cast(pl.Float32).alias(column))
        if self.config.min_weight is not None:
            frame = self._drop(frame, value >= self.config.min_weight, "min_weight")
        return frame

    def _drop(self, frame: pl.DataFrame, keep: pl.Expr, rule: str) -> pl.DataFrame:
        kept = frame.filter(keep)
        self.dropped[rule] = self.dropped.get(rule, 0) + frame.height - kept.height
        return kept

    def _known_items(self, frame: pl.DataFrame, item: Int32s, path: Path, column: str) -> tuple[pl.DataFrame, Int32s]:
        unknown = item >= self.items.known
        if not unknown.any():
            return frame, item
        if not self.rejects.skip:
            self._refuse_strangers(np.concatenate([*map(np.unique, self.parts["item"]), item]))
        reason = "an item that the items file does not have"
        return self.rejects.split_off(frame, pl.lit(pl.Series(unknown)), path, column, reason), item[~unknown]

    def _refuse_strangers(self, item: Int32s) -> None:
        """Refuses an items file that is not of these events; `item` holds codes of theirs."""
        if self.source.items is not None:
            ids, events = self.items.strings(), self.source.events[0][1].path
            listed, used = ids[: self.items.known], ids.gather(np.unique(item))
            refuse_strangers("item", listed, self.source.items.path, used, events)
