"""Popular items of a segment of users: counted as a loop counts them, and answered where nothing else is known."""

from collections import Counter
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.bundles import fold
from pipelines.bundles.prior import popular_segments
from pipelines.errors import DataError
from serving.bundle.reader import Bundle
from serving.catalogue.catalogue import Wanted
from serving.catalogue.journal import UserEvent
from serving.catalogue.overlay import Change
from serving.catalogue.sqlite_journal import SqliteJournal
from serving.errors import BundleError
from serving.recall.query import RecallQuery
from serving.recall.recaller import Recaller
from serving.search.exact import ExactIndex
from tests.support.worlds.serving import ITEMS, write_world


def dataset(values: list[str | None]) -> Any:
    return SimpleNamespace(
        manifest=SimpleNamespace(user_columns={"country": "string", "age": "number"}),
        users=pl.DataFrame({"country": pl.Series(values, dtype=pl.String)}),
    )


@given(st.lists(st.tuples(st.sampled_from(["no", "se", None]), st.lists(st.integers(-1, 6), max_size=6)), max_size=8))
def test_segments_count_the_events_of_their_users(users: list[tuple[str | None, list[int]]]) -> None:
    offsets = np.cumsum([0, *(len(items) for _, items in users)])
    items = np.array([item for _, taken in users for item in taken], np.int32)
    counts: dict[str, Counter[int]] = {}
    for value, taken in users:
        for item in taken:
            if value is not None and item >= 0:
                counts.setdefault(value, Counter())[item] += 1
    expected = {
        value: sorted(count.items(), key=lambda pair: (-pair[1], pair[0])) for value, count in sorted(counts.items())
    }
    got = popular_segments(dataset([value for value, _ in users]), "country", offsets, items)
    assert {
        row["segment"]: list(zip(row["rows"], row["counts"], strict=True)) for row in got.iter_rows(named=True)
    } == expected


@pytest.mark.parametrize("column", ["age", "town"])
def test_only_a_string_column_makes_segments(column: str) -> None:
    with pytest.raises(DataError, match=rf"--popular-by {column}: not a string column of the users; there are country"):
        popular_segments(dataset([]), column, np.zeros(1, np.int64), np.empty(0, np.int32))


def segmented(path: Path, rows: list[int]) -> Recaller:
    frame = pl.DataFrame({"segment": ["no"], "rows": [rows], "counts": [list(range(len(rows), 0, -1))]})
    write_world(path, segmented_by="country", popular_segments=frame)
    bundle = Bundle.open(path)
    return Recaller(bundle, ExactIndex(bundle.item_vectors))


def test_a_strangers_segment_comes_first(tmp_path: Path) -> None:
    recaller = segmented(tmp_path / "bundle", [40, 3, 17])
    found = recaller.recall(RecallQuery(segment="no", k=5))
    assert (found.source, found.ids) == ("popular", ["i40", "i3", "i17", "i0", "i1"])
    assert found.scores.tolist() == [3, 2, 1, 0, 0]
    narrow = recaller.recall(RecallQuery(segment="no", k=2, exclude=["i40"], wanted=Wanted(allow=("i17", "i40", "i9"))))
    assert narrow.ids == ["i17", "i9"]
    assert recaller.recall(RecallQuery(segment="dk", k=1)).ids == ["i0"], "an unknown segment is all users"
    assert recaller.recall(RecallQuery(segment="no", user_id="u5", k=1)).source == "user"
    recaller.catalogue.live.apply([Change("i40", None), Change("i3", np.ones(8, np.float32))])
    assert recaller.recall(RecallQuery(segment="no", k=70)).ids[:3] == ["i3", "i17", "i0"]
    assert len(recaller.recall(RecallQuery(segment="no", k=70)).ids) == ITEMS - 1


def test_what_renews_the_rest_says_that_segments_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segmented(tmp_path / "bundle", [40, 3, 17])
    with closing(SqliteJournal.open(tmp_path / "state")) as journal:
        journal.add_events([UserEvent("e1", "u1", "i40", 1_000)])
    fold.run(tmp_path / "bundle", tmp_path / "state", tmp_path / "folded")
    assert "the popular items of each country stay those of before; an export" in capsys.readouterr().err


def test_segments_of_other_items_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"popular_segments\.parquet: segment 'no'"):
        segmented(tmp_path / "bundle", [ITEMS]).recall(RecallQuery(segment="no"))
