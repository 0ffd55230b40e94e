"""Whole numbers of a CSV file stay whole from the file to answers, live items and folded bundles."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pipelines.bundles import export, fold
from pipelines.ingest import prepare
from pipelines.training import train
from serving.bundle.encoder import Encoder
from serving.bundle.reader import Bundle
from serving.catalogue.sqlite_journal import SqliteJournal
from serving.catalogue.updates import CatalogueUpdates
from serving.errors import RequestError
from serving.recall.recaller import Recaller
from serving.search.exact import ExactIndex
from towers.config.recipe import parse_config
from towers.config.sections import DataConfig

FIRST_SKU = 9007199254741193  # beyond 2**53, where a float holds only even numbers
ITEMS = 12


def year(item: int) -> int | None:
    return None if item == 3 else 1990 + item


def shown(recaller: Recaller, item: str) -> str:
    """The item's columns as JSON, where equal numbers of two types differ."""
    items = recaller.catalogue.snapshot()
    rows = np.array(items.rows_of([item]))
    return json.dumps({column: items.values(column, rows)[0] for column in ("year", "sku", "price")})


def test_a_year_and_a_long_number_of_a_csv_file_are_served_taken_live_and_folded_as_whole_numbers(
    tmp_path: Path,
) -> None:
    lines = [f"i{n},{'' if year(n) is None else year(n)},{FIRST_SKU + n},{n / 2}\n" for n in range(ITEMS)]
    (tmp_path / "items.csv").write_text("item_id,year,sku,price\n" + "".join(lines))
    events = [f"u{u},i{(u + n) % ITEMS},{1_600_000_000 + 60 * (10 * n + u)}\n" for u in range(9) for n in range(7)]
    (tmp_path / "events.csv").write_text("user_id,item_id,timestamp\n" + "".join(events))
    prepare.run(DataConfig(), tmp_path / "events.csv", tmp_path / "dataset", items=tmp_path / "items.csv")
    features = {
        "query": {"user_id": {"kind": "id"}},
        "candidate": {"item_id": {"kind": "id"}, "year": {"kind": "numeric"}},
    }
    sections = {"features": features, "model": {"dimension": 4}, "train": {"epochs": 1, "batch_size": 16}}
    train.run(parse_config(sections), tmp_path / "dataset", tmp_path / "run")
    export.run(tmp_path / "run", tmp_path / "bundle")
    bundle = Bundle.open(tmp_path / "bundle")
    assert np.isfinite(bundle.item_vectors).all(), "the missing year is a missing number, also as a whole one"
    assert bundle.item_attributes.schema == {
        "item_id": pl.String, "year": pl.Int64, "sku": pl.Int64, "price": pl.Float64
    }  # fmt: skip
    live = CatalogueUpdates(SqliteJournal.open(tmp_path / "state"), Encoder.of_items)
    recaller = Recaller(bundle, ExactIndex(bundle.item_vectors), Encoder.of_queries(bundle), live.users)
    live.attach(recaller.catalogue)
    assert shown(recaller, "i4") == f'{{"year": 1994, "sku": {FIRST_SKU + 4}, "price": 2.0}}'
    assert shown(recaller, "i3") == f'{{"year": null, "sku": {FIRST_SKU + 3}, "price": 1.5}}'
    put = {"year": 1990, "sku": FIRST_SKU + 99, "price": 3}
    live.put(recaller.catalogue, [("new", {"year": 1990.0}, put)])
    told = f'{{"year": 1990, "sku": {FIRST_SKU + 99}, "price": 3.0}}'
    assert shown(recaller, "new") == told
    with pytest.raises(RequestError, match=r"attributes\.year: must be a whole number from -.*, got 1990\.5"):
        live.put(recaller.catalogue, [("new", {}, {"year": 1990.5})])
    fold.run(tmp_path / "bundle", tmp_path / "state", tmp_path / "folded")
    folded = Bundle.open(tmp_path / "folded")
    assert shown(Recaller(folded, ExactIndex(folded.item_vectors)), "new") == told
