"""Describes what became of each column and why, one line each, for `prepare` and `check` to print."""

from collections.abc import Iterator, Sequence

import polars as pl

from pipelines.console import printable
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.derive_features import NO_NAME, NO_VALUE, Choice, choices, of_row_numbers
from pipelines.dataset.manifest import DatasetManifest
from pipelines.dataset.resolve_features import column_of, request_of
from towers.config.features import Feature
from towers.config.recipe import Config

FILES = ("events", "users", "items")
TYPES_SHOWN = 5
LONGEST = 40  # letters of a name by which the others are aligned
ITEMS_ALONE = "left out: task = 'similarity' trains the item tower alone"
# A column tells the item if this share of the items with several events, at least so many, have one value, or so
# many of the values one item, and no value is in most events, nor has each user one. What depends on the moment is far
# from that.
ONE_VALUE, LEAST_ITEMS, COMMON = 0.99, 100, 0.9
EVENTS_LOOKED_AT = 1_000_000
UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


def column_lines(dataset: Dataset, config: Config | None = None) -> list[str]:
    """Describes every column of events, users and items.

    Args:
        dataset: the data set.
        config: the recipe with its features spelt out; None describes what a recipe without features would derive.

    Returns:
        A heading, then an aligned ``file  column  what it became`` for each column.
    """
    rows = [(file, printable(column), printable(told)) for file, column, told in _rows(dataset, config)]
    rows.sort(key=lambda row: FILES.index(row[0]))
    wide = [max((len(row[place]) for row in rows if len(row[place]) <= LONGEST), default=0) for place in (0, 1)]
    heading = "columns:" if config is not None else "columns, and the features of a recipe that names none:"
    return [heading, *(f"  {file:<{wide[0]}}  {column:<{wide[1]}}  {told}" for file, column, told in rows)]


def _rows(dataset: Dataset, config: Config | None) -> Iterator[tuple[str, str, str]]:
    manifest = dataset.manifest
    for role, column in manifest.roles.items():
        yield "events", column, _of_role(role, manifest)
    request = None if config is None else request_of(config)
    similarity = config is not None and config.task == "similarity"
    twice = "the users have a column of this name, which features read; rename one"
    for column in sorted(manifest.event_columns.keys() & manifest.user_columns.keys() - {request}):
        why = of_row_numbers(column, manifest.event_columns[column]) or twice
        yield "events", column, ITEMS_ALONE if similarity else f"left out: {why}"
    for side in ("query", "candidate"):
        spelt = None if config is None else getattr(config.features, side) or {}
        for column, choice in choices(dataset, side).items():
            file = "items" if side == "candidate" else "users" if column in manifest.user_columns else "events"
            if similarity and side == "query":
                yield file, column, ITEMS_ALONE
            elif similarity and config is not None and column == config.similarity.column:
                yield file, column, "the labels of similarity.column"
            elif side == "query" and column == request:
                yield file, column, "the names of requests, of loss.impression_request"
            else:
                lists = _with_column(column, config) if side == "candidate" else []
                told = _of_choice(choice, side, column, spelt, lists)
                read = file == "events" and not told.startswith("left out")
                if read and (how := _tells_the_item(dataset, column)):
                    leave = " ".join(
                        f"--set features.query.{name}=" for name in _readers(column, spelt) or [choice.name]
                    )
                    told += f"; warning: {how}; {leave} leaves it out"
                yield file, column, told


def _tells_the_item(dataset: Dataset, column: str) -> str | None:
    """How a column tells the item, and what to do about it; None if it does not."""
    context = dataset.context("train")
    assert context is not None
    values = context.select(column).head(EVENTS_LOOKED_AT).collect().to_series()
    if values.dtype.is_nested():  # which cannot be counted
        values = pl.select(pl.when(values.is_not_null()).then(values.hash())).to_series()
    train = dataset.events("train")
    columns = {"item": train.item[: len(values)], "user": train.user[: len(values)], "value": values}
    events = pl.DataFrame(columns).drop_nulls()
    of_item = _has_one(events, "item", "value")
    if not (of_item or _has_one(events, "value", "item")) or _has_one(events, "user", "value"):
        return None
    if int(events["value"].value_counts()["count"].max()) >= COMMON * len(events):  # type: ignore[arg-type]
        return None
    gives = "so that it gives the answer away in training"
    if of_item:
        return f"each item has one value of it, {gives}: move it to the items file"
    return f"each value of it belongs to one item, {gives}"


def _has_one(events: pl.DataFrame, of: str, what: str) -> bool:
    found = events.group_by(of).agg(pl.len(), pl.col(what).n_unique()).filter(pl.col("len") > 1)[what]
    return len(found) >= LEAST_ITEMS and (found == 1).sum() >= ONE_VALUE * len(found)


def _of_role(role: str, manifest: DatasetManifest) -> str:
    match role:
        case "time":
            unit = UNITS.get(manifest.time_unit or "")
            return f"time, in {unit}" if unit else f"time, not kept: split {manifest.split.kind!r} has no order"
        case "type":
            if not manifest.event_types:
                return "type of the event: only data.event_types reads it"
            rest = len(manifest.event_types) - TYPES_SHOWN
            more = f" and {rest} more" if rest > 0 else ""
            types = ", ".join(map(visible, manifest.event_types[:TYPES_SHOWN]))
            return f"type of the event: {types}{more}{_of_pairs(manifest)}"
        case "weight":
            return "weight of the event"
        case _:
            return f"{role} ids"


def visible(name: str) -> str:
    """A type for a message, in quotes where it would not show what it holds: blanks around it, control characters."""
    return name if name == name.strip() and name == printable(name) else repr(name)


def _of_pairs(manifest: DatasetManifest) -> str:
    """What became of a click and a purchase of the same item."""
    rule = manifest.config.duplicates
    if rule == "keep" or len(manifest.event_types) == 1:
        return ""
    return f"; data.duplicates = {rule!r} kept one event of each user and item, whatever its type"


def _with_column(column: str, config: Config | None) -> list[str]:
    """The query features whose items come with a column."""
    query = {} if config is None else config.features.query or {}
    return [name for name, each in query.items() if column in getattr(each, "item_features", ())]


def _readers(column: str, features: dict[str, Feature] | None) -> dict[str, str]:
    """The features of a recipe that read a column, with their kinds."""
    return {
        name: each.kind for name, each in (features or {}).items() if each.reads and column_of(name, each) == column
    }


def _of_choice(
    choice: Choice, side: str, column: str, features: dict[str, Feature] | None, lists: Sequence[str]
) -> str:
    derived = f"{choice.kind}: {choice.reason}"
    if features is not None:
        kinds = _readers(column, features)
        if kinds and kinds != {choice.name: choice.kind}:
            return "; ".join(f"{kind}: feature {name!r} of the recipe" for name, kind in kinds.items())
        if not kinds and lists:
            return f"{derived}; only of the items of {', '.join(map(repr, lists))}"
        if not kinds and choice.kind is not None:
            return f"left out by the recipe (else {derived})"
    if choice.kind is None and choice.reason not in (NO_NAME, NO_VALUE):
        return f"left out: {choice.reason}; --set features.{side}.{choice.name}.kind=hashed includes it"
    return f"left out: {choice.reason}" if choice.kind is None else derived
