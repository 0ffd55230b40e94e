"""Folders of partitions, `date=2026-11-01/part.parquet`: each key is a column of the files below it."""

import re
from collections.abc import Mapping
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.dataset.column_lines import column_lines
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.derive_features import choices
from pipelines.dataset.resolve_features import resolve_features
from pipelines.errors import DataError
from pipelines.ingest import prepare
from pipelines.ingest.formats import folder
from towers.config.recipe import load_config
from towers.config.sections import DataConfig

ALL_TRAIN = DataConfig(valid_share=0, test_share=0, duplicates="keep")


def write(folder: Path, files: Mapping[str, Mapping[str, list[object]]]) -> Path:
    for name, columns in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        frame = pl.DataFrame(columns)
        kind = Path(name).suffix
        writers = {".csv": frame.write_csv, ".jsonl": frame.write_ndjson, ".parquet": frame.write_parquet}
        writers[kind](folder / name)
    return folder


def opened(tmp_path: Path, events: Path, **options: object) -> Dataset:
    prepare.run(ALL_TRAIN, events, tmp_path / "out", overwrite=True, **options)
    return Dataset.open(tmp_path / "out")


def rows(data: Dataset, *columns: str) -> list[tuple[object, ...]]:
    """User, item and context columns of each event."""
    train, context = data.events("train"), data.context("train")
    users, items = data.users["user_id"], data.items["item_id"]
    values = [train.user.tolist(), train.item.tolist()]
    told = [] if context is None else [context.collect()[column].to_list() for column in columns]
    return sorted((users[u], items[i], *rest) for u, i, *rest in zip(*values, *told, strict=True))


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_every_key_is_a_column(tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    events = write(
        tmp_path / "events",
        {
            f"day=2026-11-01/hour=7/a.{suffix}": {"user": ["u1"], "item": ["a"]},
            f"day=2026-11-01/hour=12/a.{suffix}": {"user": ["u2"], "item": ["a"]},
            f"day=2026-11-02/hour=7/a.{suffix}": {"user": ["u3", "u4"], "item": ["b", "b"]},
            f".staging/day=2026-11-03/hour=1/a.{suffix}": {"user": ["no"], "item": ["no"]},
            f"_delta_log/a.{suffix}": {"user": ["no"], "item": ["no"]},
            f"day=2026-11-02/.tmp/a.{suffix}": {"user": ["no"], "item": ["no"]},
        },
    )
    (events / "_SUCCESS").touch()
    data = opened(tmp_path, events)
    assert f"warning: {events}: files that _delta_log has replaced are read, too; " in capsys.readouterr().err
    assert data.manifest.event_columns == {"day": "string", "hour": "number"}
    assert rows(data, "day", "hour") == [
        ("u1", "a", "2026-11-01", 7),
        ("u2", "a", "2026-11-01", 12),
        ("u3", "b", "2026-11-02", 7),
        ("u4", "b", "2026-11-02", 7),
    ]
    assert data.manifest.source.files == (
        f"day=2026-11-01/hour=7/a.{suffix}",
        f"day=2026-11-01/hour=12/a.{suffix}",
        f"day=2026-11-02/hour=7/a.{suffix}",
    )


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_a_file_without_a_field_of_its_key_has_the_key_beside_one_with_it(tmp_path: Path, suffix: str) -> None:
    events = write(
        tmp_path / "events",
        {
            f"country=FR/a.{suffix}": {"user": ["u1"], "item": ["a"], "country": ["France"]},
            f"country=DE/b.{suffix}": {"user": ["u2"], "item": ["b"]},
        },
    )
    assert rows(opened(tmp_path, events), "country") == [("u1", "a", "France"), ("u2", "b", "DE")]


def test_a_key_may_be_the_time(tmp_path: Path) -> None:
    events = write(
        tmp_path / "events",
        {f"date=2026-11-0{day}/x.parquet": {"user": ["u"], "item": [f"i{day}"]} for day in (2, 1)},
    )
    data = opened(tmp_path, events)
    train = data.events("train")
    assert data.manifest.roles["time"] == "date" and data.manifest.time_unit == "us"
    # 2026-11-01 is day 20,758 since 1970.
    assert train.time is not None and train.time.tolist() == [20_758 * 86_400 * 10**6, 20_759 * 86_400 * 10**6]
    assert data.items["item_id"].gather(train.item).to_list() == ["i1", "i2"]


@pytest.mark.parametrize(
    ("keys", "feature"),
    [
        (["date=2026-11-01", "date=2026-11-02"], None),
        (["dt=20261101", "dt=__HIVE_DEFAULT_PARTITION__"], None),
        (["at=2026-11-01-07", "at=2026-11-01-08"], None),
        (["at=2026-11-01T07%3A30%3A00Z", "at=2026110108"], None),
        (["period=2026-11", "period=202612"], None),
        (["week=2026-W45", "week=2026-W46"], None),
        (["year=2026", "year=2027"], None),
        (["event_hour=7", "event_hour=12"], None),
        (["Month=07", "Month=08"], None),
        (["country=FR", "country=IT"], "categorical"),
        (["day=monday", "day=2026-11-01"], "categorical"),
        (["model=2026-13", "model=2026-14"], "categorical"),
        (["model=2026-11-X", "model=2026-12-X"], "categorical"),
        (["shop=7", "shop=12"], "categorical"),
        (["shop=202611", "shop=202650"], "numeric"),
    ],
)
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_a_key_that_is_a_time_becomes_no_feature(
    tmp_path: Path, suffix: str, keys: list[str], feature: str | None
) -> None:
    users = [f"u{n}" for n in range(30)]
    columns = {"user": users, "item": ["a", "b"] * 15, "timestamp": [1_800_000_000 + n for n in range(30)]}
    data = opened(tmp_path, write(tmp_path / "events", {f"{key}/x.{suffix}": columns for key in keys}))
    (column,) = data.manifest.event_columns
    assert column == keys[0].partition("=")[0] and choices(data, "query")[column].kind == feature
    includes = f"features.query.{column}.kind=hashed"
    told = f"left out: the time of a partition, .*; --set {includes} includes it$"
    assert bool(re.search(told, column_lines(data)[-1])) == (feature is None)
    # A recipe that names the column may use it.
    for overrides, wanted in (([], {feature} - {None}), ([includes], {"hashed"})):
        query = resolve_features(load_config("default", overrides), data).features.query or {}
        assert {each.kind for name, each in query.items() if name == column} == wanted


@pytest.mark.parametrize("include", [True, False])
def test_what_polars_writes_by_key_is_read(tmp_path: Path, include: bool) -> None:
    frame = pl.DataFrame(
        {"user": ["u1", "u2", "u3"], "item": ["a", "b", "a"], "shop": ["Köln / 1=2", None, "100 %"], "rank": [1, 2, 3]}
    )
    frame.lazy().sink_parquet(
        pl.PartitionBy(tmp_path / "events", key=["shop", "rank"], include_key=include), mkdir=True
    )
    data = opened(tmp_path, tmp_path / "events")
    assert data.manifest.event_columns == {"shop": "string", "rank": "number"}
    assert rows(data, "shop", "rank") == [("u1", "a", "Köln / 1=2", 1), ("u2", "b", None, 2), ("u3", "a", "100 %", 3)]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    codes=st.lists(st.from_regex(r"[+-]?[0-9]{1,20}|[a-z]{1,3}", fullmatch=True), min_size=1, max_size=4, unique=True)
)
def test_a_key_is_a_number_only_if_all_its_values_are(
    tmp_path_factory: pytest.TempPathFactory, codes: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("world")
    files = {f"code={code}/x.parquet": {"user": ["u"], "item": ["i"]} for code in codes}
    data = opened(folder, write(folder / "events", files))
    context = data.context("train")
    assert context is not None
    # The rule of text files: as Python would write the number, and within 64 bits.
    plain = all(code.lstrip("-").isdigit() and str(int(code)) == code and len(code.lstrip("-")) <= 18 for code in codes)
    wanted = [int(code) for code in codes] if plain else codes
    assert sorted(context.collect()["code"].to_list(), key=str) == sorted(wanted, key=str)


def test_items_and_users_may_lie_beside_the_partitions(tmp_path: Path) -> None:
    events = write(
        tmp_path / "events",
        {
            "day=1/x.parquet": {"user": ["u"], "item": ["a"]},
            "items.parquet": {"item": ["a"], "title": ["A"]},
            "users.csv": {"user": ["u"], "country": ["FR"]},
        },
    )
    data = opened(tmp_path, events)
    assert rows(data, "day") == [("u", "a", 1)]
    assert data.items["title"].to_list() == ["A"] and data.users["country"].to_list() == ["FR"]


def test_a_bad_row_names_its_partition(tmp_path: Path) -> None:
    columns = {"user": ["u", None], "item": ["a", "b"]}
    events = write(tmp_path / "events", {"day=1/x.parquet": {"user": ["u"], "item": ["a"]}, "day=2/x.parquet": columns})
    with pytest.raises(DataError, match=rf"^{events}/day=2/x.parquet, row 2, column 'user': no id"):
        opened(tmp_path, events)
    data = opened(tmp_path, events, on_bad_rows="skip")
    assert pl.read_csv(data.path / "rejects.csv").row(0)[:3] == ("day=2/x.parquet", 2, "user")


def test_partitions_that_do_not_agree_are_refused(tmp_path: Path) -> None:
    one = {"user": ["u"], "item": ["a"]}
    events = write(tmp_path / "mixed", {"day=1/x.parquet": one, "hour=2/x.parquet": one})
    told = "day=1/x.parquet: only one of them has 'day', 'hour'"
    with pytest.raises(DataError, match=rf"^{events}/hour=2/x.parquet: other columns than in {told}$"):
        opened(tmp_path, events)
    events = write(tmp_path / "reserved", {"__row__=1/x.parquet": one})
    with pytest.raises(DataError, match=r"x.parquet: the column name '__row__' is reserved; rename that column"):
        opened(tmp_path, events)


def test_more_files_than_fit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = write(tmp_path / "events", {f"day={day}/x.csv": {"user": ["u"], "item": ["a"]} for day in (1, 2, 3)})
    monkeypatch.setattr(folder, "MOST_FILES", 2)
    with pytest.raises(DataError, match=rf"^{events}: 3 files of events; at most 2 are read, so join small ones$"):
        opened(tmp_path, events)
