"""Features for a side that the recipe leaves out: ids, history, and every attribute by the type of its column.

In: a `Dataset`. Out: feature sections by name, as a recipe would hold them.
"""

import keyword
import re
from collections.abc import Collection, Mapping
from typing import Any

import polars as pl

from pipelines.dataset import Dataset
from pipelines.ingest.layout import CONTEXT
from towers.config import parse_config
from towers.feature_settings import Feature

DISTINCT_SHARE = 0.5  # a string column with more distinct values than this share of its rows is free text or a key
# Known users' stored vectors, and requests without context, have none: half the examples train without it, too.
CONTEXT_MASK_SHARE = 0.5


def derive_query(dataset: Dataset) -> dict[str, Feature]:
    """User id, history, attributes of the user, context of the event."""
    features: dict[str, Any] = {"user_id": {"kind": "id"}, "history": {"kind": "history"}}
    users = dataset.manifest.user_columns
    _add(features, dataset.users.lazy(), users)
    # A column of both is the user's: a feature reads one column by one name.
    own = {column: kind for column, kind in dataset.manifest.event_columns.items() if column not in users}
    if own:
        _add(features, pl.scan_parquet(dataset.path / "train" / CONTEXT), own, mask_share=CONTEXT_MASK_SHARE)
    return parse_config({"features": {"query": features}}).features.query or {}


def derive_candidate(dataset: Dataset) -> dict[str, Feature]:
    """Item id and attributes of the item."""
    features: dict[str, Any] = {"item_id": {"kind": "id"}}
    _add(features, dataset.items.lazy(), dataset.manifest.item_columns)
    return parse_config({"features": {"candidate": features}}).features.candidate or {}


def input_name(column: str) -> str:
    """A name that a SavedModel takes for an input, close to the column's own."""
    name = re.sub(r"\W", "_", column, flags=re.ASCII)
    return name if name.isidentifier() and not keyword.iskeyword(name) else f"f_{name}"


def _add(features: dict[str, Any], frame: pl.LazyFrame, columns: Mapping[str, str], **settings: float) -> None:
    for column, kind in columns.items():
        feature = _kind(frame.select(column), pl.col(column), kind)
        if feature is not None:
            features[_free_name(input_name(column), features)] = {"kind": feature, "column": column, **settings}


def _kind(frame: pl.LazyFrame, values: pl.Expr, kind: str) -> str | None:
    def found(what: pl.Expr) -> int:
        # A piece at a time: the columns of events are as long as those.
        return int(frame.select(what).collect(engine="streaming").item() or 0)

    rows = found(pl.len())
    if found(values.is_not_null().sum()) == 0:
        return None
    if kind != "string":
        return "numeric" if kind == "number" else "multi"
    if found(values.n_unique()) <= max(2, DISTINCT_SHARE * rows):
        return "categorical"
    if found(values.str.contains(" ", literal=True).sum()) > DISTINCT_SHARE * rows:
        return "text"
    # Distinct values without words are a key: it would only memorise.
    return None


def _free_name(name: str, taken: Collection[str]) -> str:
    number = 2
    free = name
    while free in taken:
        free, number = f"{name}_{number}", number + 1
    return free
