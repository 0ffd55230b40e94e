"""`prepare` works through ranges of users and blocks of rows, whose size changes nothing."""

import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipelines.ingest import prepare
from pipelines.ingest.columns import event_table
from pipelines.ingest.columns.event_table import among, counts_of, renumber, user_ranges
from pipelines.ingest.columns.spool import Spool
from pipelines.ingest.splits import _at_rank
from towers.config.sections import DataConfig
from towers.data import blocks


def world(folder: Path) -> Path:
    """400 events of 25 users, one of whom has a third of them; times and pairs repeat."""
    draw = random.Random(4)
    users = [0 if draw.random() < 0.3 else draw.randrange(25) for _ in range(400)]
    rows = [
        (f"u{u}", f"i{draw.randrange(30)}", 1_000 + draw.randrange(60), draw.randrange(3), "ab"[u % 2]) for u in users
    ]
    frame = pl.DataFrame(rows, schema=["user", "item", "time", "rating", "device"], orient="row")
    frame.write_parquet(folder / "e.parquet")
    return folder / "e.parquet"


@pytest.mark.parametrize("duplicates", ["first", "last", "keep"])
@pytest.mark.parametrize("split", ["global_time", "leave_last_out", "random"])
def test_the_size_of_ranges_and_blocks_changes_no_byte(
    tmp_path: Path, split: str, duplicates: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = DataConfig(split=split, duplicates=duplicates, min_user_events=3, min_item_events=2)
    found = set()
    for number, size in enumerate((10**6, 37, 1)):
        monkeypatch.setattr(event_table, "RANGE_EVENTS", size)
        monkeypatch.setattr(blocks, "BLOCK_ROWS", size)
        found.add(prepare.run(config, world(tmp_path), tmp_path / str(number)).fingerprint)
    assert len(found) == 1


CODES = st.lists(st.integers(0, 9), min_size=1, max_size=60)


@given(codes=CODES, size=st.integers(1, 70))
def test_ranges_hold_each_event_once_and_no_user_twice(codes: list[int], size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_table, "RANGE_EVENTS", size)
        found = [places.tolist() for places in user_ranges(np.array(codes, np.int32), 10)]
    assert sorted(place for places in found for place in places) == list(range(len(codes)))
    users = [{codes[place] for place in places} for places in found]
    assert all(places == sorted(places) for places in found)
    assert all(not one or not other or max(one) < min(other) for one, other in pairwise(users))


@given(codes=CODES, size=st.integers(1, 70), data=st.data())
def test_counts_masks_and_numbers_are_those_of_a_loop(codes: list[int], size: int, data: st.DataObject) -> None:
    array, table = np.array(codes, np.int32), data.draw(st.permutations(range(10)))
    chosen = data.draw(st.lists(st.booleans(), min_size=len(codes), max_size=len(codes)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_ROWS", size)
        assert counts_of(array, 10).tolist() == [codes.count(code) for code in range(10)]
        kept = [code for code, keep in zip(codes, chosen, strict=True) if keep]
        assert counts_of(array, 10, np.array(chosen)).tolist() == [kept.count(code) for code in range(10)]
        assert among(array, np.array(table) < 5).tolist() == [table[code] < 5 for code in codes]
        renumber(array, np.array(table, np.int32))
    assert array.tolist() == [table[code] for code in codes]


@given(time=st.lists(st.integers(-9 * 10**18, 9 * 10**18) | st.integers(0, 5), min_size=1, max_size=50), data=st.data())
@example(time=[-9 * 10**18, 0, 9 * 10**18], data=None)
def test_the_value_at_a_rank_is_that_of_the_sorted_list(time: list[int], data: st.DataObject | None) -> None:
    ranks = range(len(time)) if data is None else [data.draw(st.integers(0, len(time) - 1))]
    assert [_at_rank(np.array(time), rank) for rank in ranks] == [sorted(time)[rank] for rank in ranks]


@given(parts=st.lists(st.lists(st.integers(-(10**6), 10**6) | st.floats(-1e6, 1e6), min_size=1)))
def test_a_spool_gives_back_what_it_got(parts: list[list[float]]) -> None:
    spool = Spool(None)
    for part in parts:
        spool.append(np.array(part, np.int64 if all(isinstance(each, int) for each in part) else np.float64))
    assert len(spool) == sum(map(len, parts))
    whole = [each for part in parts for each in part]
    assert spool.joined(np.int64, 1_000).tolist() == [round(each * 1_000.0) for each in whole]


def test_a_spool_keeps_every_digit_of_whole_numbers_beside_fractions() -> None:
    spool, whole = Spool(None), 1_700_000_000_000_000_001
    spool.append(np.array([whole]))
    spool.append(np.array([0.5, 1.5]))
    assert spool.joined(np.int64, 1).tolist() == [whole, 0, 2]
