"""Impressions: they count in no split by place, follow their user's positives in time, and the output tells them."""

import random
from collections import defaultdict
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pipelines.dataset.dataset import Dataset
from pipelines.dataset.leaks import refuse_leaks
from pipelines.errors import DataError
from pipelines.ingest import prepare
from towers.config.sections import DataConfig

Row = tuple[str, str, int, int]
PARTS = ("train", "valid", "test")


def world(seed: int) -> list[Row]:
    """Users, items, times of which many are equal, weights: three of four events are impressions, of u0 all but one."""
    draw = random.Random(seed)
    rows = [
        (f"u{draw.randrange(1, 30)}", f"i{n}", 1000 + draw.randrange(60), draw.choice([0, -1, 0, 3]))
        for n in range(600)
    ]
    return [*rows, *(("u0", f"z{n}", n, int(n == 2)) for n in range(5)), ("shown", "z0", 5, 0), ("shown", "z1", 6, 0)]


def written(path: Path, rows: list[Row]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("user,item,time,weight\n" + "".join(f"{u},{i},{t},{w}\n" for u, i, t, w in rows))
    return path


def prepared(source: Path, out: Path, **settings: object) -> Dataset:
    prepare.run(DataConfig.model_validate({"duplicates": "keep", **settings}), source, out, overwrite=True)
    return Dataset.open(out)


def items_of(data: Dataset, part: str) -> dict[str, set[str]]:
    """The items of each user; in these worlds an item has one event of a user."""
    events, found = data.events(part), defaultdict(set)
    for user, item in zip(events.user.tolist(), events.item.tolist(), strict=True):
        found[data.users["user_id"][user]].add(data.items["item_id"][item])
    return dict(found)


def check(data: Dataset, rows: list[Row], ends: dict[str, dict[str, list[Row]]]) -> None:
    """Compares with what is held out of each user: `ends[part][user]`, positives in time order."""
    wanted: dict[str, dict[str, set[str]]] = {name: defaultdict(set) for name in data.parts()}
    for row in rows:
        user, item, time, weight = row
        part = "train"
        for later in PARTS[1:]:
            held = ends[later].get(user, [])
            if row in held if weight > 0 else held and time >= held[0][2]:
                part = later
        wanted[part if weight > 0 else f"{part}-impressions"][user].add(item)
    assert {name: items_of(data, name) for name in wanted} == wanted
    refuse_leaks(data)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("valid_share", "test_share"), [(0.1, 0.1), (0, 0.1), (0.1, 0), (0, 0)])
def test_leave_last_out_holds_out_the_last_positives(
    tmp_path: Path, seed: int, valid_share: float, test_share: float
) -> None:
    rows = world(seed)
    shares = {"valid_share": valid_share, "test_share": test_share}
    data = prepared(written(tmp_path / "e.csv", rows), tmp_path / "out", split="leave_last_out", **shares)
    ends: dict[str, dict[str, list[Row]]] = {name: {} for name in PARTS}
    for user in {row[0] for row in rows}:
        taken = sorted((row for row in rows if row[0] == user and row[3] > 0), key=lambda row: row[2])
        if test_share and len(taken) > 1:
            ends["test"][user] = [taken.pop()]
        if valid_share and len(taken) > 1:
            ends["valid"][user] = [taken.pop()]
    check(data, rows, ends)
    held = sum(len(ends[name]) for name in PARTS)
    assert held > 20 * ((valid_share > 0) + (test_share > 0)) or held == valid_share + test_share


@pytest.mark.parametrize("seed", range(3))
def test_the_last_positives_of_a_given_split_validate(tmp_path: Path, seed: int) -> None:
    rows = world(seed)
    tested = {user: [(user, "t", 2000, 1)] for user in ("u1", "u2")}
    written(tmp_path / "given" / "train.csv", rows)
    # The impressions of a test file stay there, whenever they were.
    written(tmp_path / "given" / "test.csv", [*(row for held in tested.values() for row in held), ("u1", "s", 1, 0)])
    data = prepared(tmp_path / "given", tmp_path / "out", validation="last", valid_share=0.3)
    ends: dict[str, dict[str, list[Row]]] = {"train": {}, "valid": {}, "test": {}}
    for user in {row[0] for row in rows}:
        taken = sorted((row for row in rows if row[0] == user and row[3] > 0), key=lambda row: row[2])
        if count := min(round(0.3 * len(taken)), max(len(taken) - 1, 0)):
            ends["valid"][user] = taken[-count:]
    assert len(ends["valid"]) > 20
    found = items_of(data, "test"), items_of(data, "test-impressions")
    assert found == ({"u1": {"t"}, "u2": {"t"}}, {"u1": {"s"}})
    for part in PARTS[:2]:
        expected: dict[str, set[str]] = defaultdict(set)
        shown: dict[str, set[str]] = defaultdict(set)
        for row in rows:
            user, item, time, weight = row
            held = ends["valid"].get(user, [])
            later = row in held if weight > 0 else bool(held) and time >= held[0][2]
            if later == (part == "valid"):
                (expected if weight > 0 else shown)[user].add(item)
        assert (items_of(data, part), items_of(data, f"{part}-impressions")) == (expected, shown)


def test_the_output_tells_impressions_from_positives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("u", "a", 1, 2), ("u", "b", 2, 0), ("u", "c", 3, 1), ("v", "a", 4, 1), ("v", "b", 5, -1), ("v", "c", 6, 1)]
    source = written(tmp_path / "e.csv", rows)
    prepared(source, tmp_path / "out", split="leave_last_out")
    said = capsys.readouterr().err
    assert "2 users, 3 items; 2 train, 0 valid, 2 test events by leave_last_out\n" in said
    assert "impressions, by a weight of 0 or less (column 'weight'): 2 train, 0 valid, 0 test events\n" in said
    written(source, [(user, item, time, 1) for user, item, time, _ in rows])
    prepared(source, tmp_path / "out", split="leave_last_out")
    said = capsys.readouterr().err
    assert "2 train, 2 valid, 2 test events" in said and "impressions" not in said


@pytest.mark.parametrize("weights", [(0, 0, 0), (-1, -3, 0)])
def test_events_that_are_all_impressions_are_refused(tmp_path: Path, weights: tuple[int, ...]) -> None:
    source = written(tmp_path / "e.csv", [("u", f"i{n}", n, weight) for n, weight in enumerate(weights)])
    source.write_text(source.read_text().replace("weight", "Score"))
    told = r"e\.csv, column 'Score': .* here all are; some weights must be above 0: data\.columns\.weight names another"
    with pytest.raises(DataError, match=told):
        prepared(source, tmp_path / "out")
    source.write_text(source.read_text().replace("Score", "log_p"))
    assert prepared(source, tmp_path / "out").manifest.weighted is False


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("weight", [1e-320, 1e-46, 1e-40])
def test_a_weight_above_0_is_no_impression_however_small(tmp_path: Path, suffix: str, weight: float) -> None:
    frame = pl.DataFrame({"user": ["u", "v", "w"], "item": ["a", "b", "c"], "weight": [weight, -weight, 2.5]})
    path = tmp_path / f"e.{suffix}"
    frame.write_csv(path) if suffix == "csv" else frame.write_parquet(path)
    data = prepared(path, tmp_path / "out", valid_share=0, test_share=0)
    train = data.events("train").weight
    assert train is not None and sorted(train.tolist()) == [float(np.finfo(np.float32).tiny), 2.5]
    assert len(data.events("train-impressions")) == 1


def test_impressions_alone_are_nothing_to_train_on(tmp_path: Path) -> None:
    written(tmp_path / "given" / "train.csv", [("u", "a", 1, 0)])
    written(tmp_path / "given" / "test.csv", [("u", "b", 2, 1)])
    with pytest.raises(DataError, match="the given split leaves no event to train on"):
        prepared(tmp_path / "given", tmp_path / "out", validation="random")
