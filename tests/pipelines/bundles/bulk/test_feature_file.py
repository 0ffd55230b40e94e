"""Files of features as requests: each kind of input from typed and untyped files, in any cut; wrong values named."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from pipelines.bundles.bulk.feature_file import FeatureFile, Request
from pipelines.bundles.bulk.trained_columns import TrainedColumns
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.number_text import as_strings
from pipelines.errors import DataError
from pipelines.ingest import prepare
from pipelines.ingest.formats.copies import Copies, local_copies
from serving.bundle.manifest import FeatureSpec
from serving.bundle.request_features import check_features
from towers.config.sections import DataConfig

SPECS = [
    FeatureSpec(name="user_id", kind="id", dtype="string"),
    FeatureSpec(name="country", kind="categorical", dtype="string"),
    FeatureSpec(name="age", kind="numeric", dtype="float32"),
    FeatureSpec(name="hour", kind="hour", dtype="int64"),
    FeatureSpec(name="history", kind="history", dtype="string", length=3),
    FeatureSpec(name="taste", kind="vector", dtype="float32", length=2),
]
REQUESTS: list[Request] = [
    {"user_id": "007", "country": "fr", "age": 30.5, "hour": 7, "history": ["i1", "i2"], "taste": [0.5, -1.0]},
    {"user_id": "u2", "country": None, "age": None, "hour": None, "history": None, "taste": None},
    {"user_id": "u3", "country": "de", "age": 4.0, "hour": 23, "history": ["i3"], "taste": [2.0, 1e-3]},
]


@pytest.fixture
def copies() -> Iterator[Copies]:
    with local_copies() as made:
        yield made


def requests(file: FeatureFile, rows: range, specs: Sequence[FeatureSpec] = SPECS) -> list[Request]:
    """What the tower is asked."""
    asked: list[Request] = []

    def encode(some: list[Request]) -> Any:
        for each in some:
            check_features(specs, each)
        asked.extend(some)
        return np.zeros((len(some), 2), np.float32)

    file.encoded(rows, encode)
    return asked


def write(path: Path) -> Path:
    frame = pl.DataFrame(REQUESTS, schema_overrides={"hour": pl.Int64})
    if path.suffix == ".parquet":
        frame.with_columns(pl.col("taste").cast(pl.Array(pl.Float32, 2))).write_parquet(path)
    elif path.suffix == ".jsonl":
        frame.write_ndjson(path)
    else:
        texts = {
            "history": pl.col("history").list.join("|"),
            "taste": pl.format("[{}]", pl.col("taste").cast(pl.List(pl.String)).list.join(", ")),
        }
        frame.with_columns(**texts).write_csv(path, separator="\t" if path.suffix == ".tsv" else ",")
    return path


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_a_file_that_is_exchanged_after_its_ids_were_read_is_refused(
    tmp_path: Path, copies: Copies, suffix: str
) -> None:
    """Otherwise a row's vector would lie beside the id of another row."""
    path = write(tmp_path / f"users.{suffix}")
    file = FeatureFile(path, "user_id", SPECS, copies, TrainedColumns())
    assert file.ids.to_list() == ["007", "u2", "u3"]
    frame = pl.read_parquet(path) if suffix == "parquet" else pl.read_csv(path, infer_schema=False)
    other = tmp_path / f"new.{suffix}"
    _ = frame.reverse().write_parquet(other) if suffix == "parquet" else frame.reverse().write_csv(other)
    other.replace(path)
    with pytest.raises(DataError, match=rf"users\.{suffix}: changed while it was read; give the command again"):
        requests(file, range(2))


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "csv", "tsv"])
def test_every_kind_of_input_from_every_kind_of_file(tmp_path: Path, copies: Copies, suffix: str) -> None:
    file = FeatureFile(write(tmp_path / f"users.{suffix}"), "user_id", SPECS, copies, TrainedColumns())
    assert file.ids.to_list() == ["007", "u2", "u3"]
    for found, expected in zip(requests(file, range(3)), REQUESTS, strict=True):
        taste = found.pop("taste"), expected["taste"]
        assert found == {key: value for key, value in expected.items() if key != "taste"}
        assert taste[0] == (None if taste[1] is None else pytest.approx(taste[1], rel=1e-6))


def test_columns_of_objects_are_not_read(tmp_path: Path, copies: Copies, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "users.jsonl").write_text('{"user_id": "u1", "age": 3, "address": {"city": "Oslo"}}\n')
    file = FeatureFile(tmp_path / "users.jsonl", "user_id", SPECS, copies, TrainedColumns())
    assert requests(file, range(1))[0]["age"] == 3
    assert "not read, since the tower has no such input: address\n" in capsys.readouterr().err
    (tmp_path / "users.jsonl").write_text('{"user_id": "u1", "age": 3, "note": "x"}\n{"user_id": "u2", "note": 7}\n')
    assert (
        len(requests(FeatureFile(tmp_path / "users.jsonl", "user_id", SPECS, copies, TrainedColumns()), range(2))) == 2
    )
    (tmp_path / "users.jsonl").write_text('{"user_id": "u1", "age": {"years": 3}, "hour": 5}\n')
    with pytest.raises(DataError, match=r"users\.jsonl: column 'age' holds objects; a feature takes values or lists$"):
        FeatureFile(tmp_path / "users.jsonl", "user_id", SPECS, copies, TrainedColumns())


@pytest.mark.parametrize("value", [b"\x00\x00", 0.5, {"x": 0.5}, [[0.5]], [b"a"]])
def test_a_vector_that_is_no_list_of_numbers_is_refused(tmp_path: Path, copies: Copies, value: object) -> None:
    pl.DataFrame({"user_id": ["u1"], "taste": [value], "age": [3.0]}).write_parquet(tmp_path / "users.parquet")
    file = FeatureFile(tmp_path / "users.parquet", "user_id", SPECS, copies, TrainedColumns())
    with pytest.raises(DataError, match=r"users\.parquet, column 'taste': must hold lists of numbers, or texts"):
        requests(file, range(1))


@pytest.mark.parametrize("form", ["12|15", "[12, 15]", "['12', '15']", '["12", "15"]'])
def test_a_history_is_read_as_a_list_however_a_list_is_written(tmp_path: Path, copies: Copies, form: str) -> None:
    pl.DataFrame({"user_id": ["u1"], "history": [form]}).write_csv(tmp_path / "users.csv")
    (asked,) = requests(FeatureFile(tmp_path / "users.csv", "user_id", SPECS, copies, TrainedColumns()), range(1))
    assert asked["history"] == ["12", "15"]


@pytest.mark.parametrize("given", [True, False])
def test_a_user_is_no_item_and_the_item_of_a_query_is_a_column(tmp_path: Path, copies: Copies, given: bool) -> None:
    """As of task = "similarity", whose queries are items."""
    specs = [FeatureSpec(name="item_id", kind="item", dtype="string"), SPECS[2]]
    rows = pl.DataFrame({"user_id": ["i7"], "age": [3.0]} | ({"item_id": [12]} if given else {}))
    rows.write_parquet(tmp_path / "users.parquet")
    file = FeatureFile(tmp_path / "users.parquet", "user_id", specs, copies, TrainedColumns())
    (asked,) = requests(file, range(1), specs)
    assert asked.get("item_id") == ("12" if given else None) and asked["age"] == 3.0


@pytest.mark.parametrize("kind", ["neighbours", "cooccurrence"])
def test_of_more_neighbours_than_the_tower_takes_the_last_are_kept(tmp_path: Path, copies: Copies, kind: str) -> None:
    specs = [*SPECS[:2], FeatureSpec(name="near", kind=kind, dtype="string", length=2)]
    pl.DataFrame({"user_id": ["i1"], "near": ["a|b|c"]}).write_csv(tmp_path / "items.csv")
    file = FeatureFile(tmp_path / "items.csv", "user_id", specs, copies, TrainedColumns())
    assert requests(file, range(1), specs)[0]["near"] == ["b", "c"]


def test_rows_are_read_forwards_across_batches(tmp_path: Path, copies: Copies, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.ingest.formats.table.BATCH_ROWS", 4)
    pl.DataFrame({"user_id": [f"u{n}" for n in range(23)], "age": range(23)}).write_parquet(tmp_path / "users.parquet")
    file = FeatureFile(tmp_path / "users.parquet", "user_id", SPECS, copies, TrainedColumns())
    for rows in (range(1, 2), range(2, 9), range(15, 23)):
        assert [(request["user_id"], request["age"]) for request in requests(file, rows)] == [
            (f"u{n}", n) for n in rows
        ]


def test_times_of_day_may_be_moments_with_their_zone(tmp_path: Path, copies: Copies) -> None:
    (tmp_path / "users.csv").write_text("user_id,hour\na,2026-01-31T18:30:00Z\nb,7\n")
    file = FeatureFile(tmp_path / "users.csv", "user_id", SPECS, copies, TrainedColumns())
    assert [each["hour"] for each in requests(file, range(2))] == ["2026-01-31T18:30:00Z", 7]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_times_of_day_are_the_same_in_every_file(tmp_path: Path, copies: Copies, suffix: str) -> None:
    moments = pl.Series([datetime(2026, 1, 31, 18, 30, tzinfo=UTC), None]).dt.convert_time_zone("Asia/Tokyo")
    frame = pl.DataFrame({"user_id": ["a", "b"], "hour": moments})
    for values, expected in ((moments, ["2026-01-31T18:30:00Z", None]), (pl.Series([13.0, None]), [13, None])):
        table = frame.with_columns(hour=values)
        if suffix == "csv":
            texts = pl.col("hour") if values.dtype.is_float() else pl.col("hour").dt.convert_time_zone("UTC")
            form = None if values.dtype.is_float() else "%Y-%m-%dT%H:%M:%SZ"
            table.with_columns(texts).write_csv(tmp_path / "users.csv", datetime_format=form)
        else:
            table.write_parquet(tmp_path / "users.parquet")
        file = FeatureFile(tmp_path / f"users.{suffix}", "user_id", SPECS, copies, TrainedColumns())
        assert [each["hour"] for each in requests(file, range(2))] == expected


def test_times_of_day_without_a_zone_are_refused(tmp_path: Path, copies: Copies) -> None:
    pl.DataFrame({"user_id": ["a"], "hour": [datetime(2026, 1, 31, 18, 30)]}).write_parquet(tmp_path / "users.parquet")
    file = FeatureFile(tmp_path / "users.parquet", "user_id", SPECS, copies, TrainedColumns())
    with pytest.raises(DataError, match=r"users.parquet: column 'hour' holds times without a zone; give them one"):
        requests(file, range(1))


@pytest.mark.parametrize("dtype", [pl.Datetime("ms"), pl.Datetime("us"), pl.Datetime("ns", "Asia/Tokyo"), pl.Date()])
def test_moments_of_a_history_are_seconds(tmp_path: Path, copies: Copies, dtype: pl.DataType) -> None:
    day = datetime(2026, 1, 31, tzinfo=UTC)
    moments = pl.Series([day.date()]).cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
    moments = (
        moments.dt.convert_time_zone("Asia/Tokyo") if "Tokyo" in str(dtype) else moments.dt.replace_time_zone(None)
    )
    frame = pl.DataFrame({"user_id": ["a"], "history": [["x"]], "history_times": [moments.cast(dtype)]})
    frame.write_parquet(tmp_path / "users.parquet")
    specs = [*SPECS, FeatureSpec(name="history_times", kind="history_times", dtype="int64", length=4)]
    file = FeatureFile(tmp_path / "users.parquet", "user_id", specs, copies, TrainedColumns())
    assert requests(file, range(1), specs)[0]["history_times"] == [day.timestamp()]


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["0.0", "1.0", "", "2.50"], ["0", "1", None, "2.5"]),
        (["0", "1", "", "25"], ["0", "1", None, "25"]),
        (["0.0", "1.0", "", "XL"], ["0.0", "1.0", None, "XL"]),
        (["007", "1.0", "", "2.0"], ["007", "1.0", None, "2.0"]),
        (["9007199254741195", "1", "", "+2"], ["9007199254741195", "1", None, "2"]),
    ],
)
def test_categories_are_written_as_prepare_reads_their_column(
    tmp_path: Path, copies: Copies, texts: list[str], found: list[str | None]
) -> None:
    """The data set of the same file is where the expected values come from, too."""
    lines = [f"u{row},{text}\n" for row, text in enumerate(texts)]
    (tmp_path / "users.csv").write_text("user_id,country\n" + "".join(lines))
    file = FeatureFile(tmp_path / "users.csv", "user_id", SPECS, copies, TrainedColumns())
    assert [request["country"] for request in requests(file, range(4))] == found
    (tmp_path / "events.csv").write_text("user_id,item_id\n" + "".join(f"u{row},i\n" for row in range(4)))
    config = DataConfig(valid_share=0, test_share=0)
    prepare.run(config, tmp_path / "events.csv", tmp_path / "data", users=tmp_path / "users.csv")
    assert as_strings(Dataset.open(tmp_path / "data").users.sort("user_id")["country"]).to_list() == found


def test_a_moment_without_end_is_refused(tmp_path: Path, copies: Copies) -> None:
    endless = pl.Series([2**62]).cast(pl.Datetime("ms"))
    frame = pl.DataFrame({"user_id": ["a"], "history": [["x"]], "history_times": [endless]})
    frame.write_parquet(tmp_path / "users.parquet")
    specs = [*SPECS, FeatureSpec(name="history_times", kind="history_times", dtype="int64", length=4)]
    file = FeatureFile(tmp_path / "users.parquet", "user_id", specs, copies, TrainedColumns())
    with pytest.raises(DataError, match=r"row 1, column 'history_times': a date outside the years"):
        requests(file, range(1), specs)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("user_id,age\na,1\nb,old\n", ", row 3, column 'age': not a number, got 'old'"),
        ("user_id,age\na,1\nb,1e39\n", ", row 3, column 'age': beyond ±3.4e38, the range of 32-bit floats, got '1e39'"),
        ("user_id,taste\na,1 2\nb,1 2 3\n", ", row 3: features.taste: must hold 2 numbers, got 3"),
        ("user_id,taste\na,1 2\nb,1 x\n", ", row 3: features.taste.1: must be a finite number that float32 can hold"),
        ("user_id,hour\na,3\nb,24\n", ", row 3: features.hour: must be a whole number from 0 to 23"),
        ("user_id,hour\na,3\nb,late\n", ", row 3: features.hour: must be a whole number from 0 to 23"),
    ],
)
def test_a_wrong_value_is_named_with_its_row(tmp_path: Path, copies: Copies, text: str, reason: str) -> None:
    (tmp_path / "users.csv").write_text(text)
    file = FeatureFile(tmp_path / "users.csv", "user_id", SPECS, copies, TrainedColumns())
    with pytest.raises(DataError) as error:
        requests(file, range(2))
    assert str(error.value).startswith(f"{tmp_path / 'users.csv'}{reason}")


def test_a_row_without_an_id_and_a_file_without_ids_are_refused(tmp_path: Path, copies: Copies) -> None:
    (tmp_path / "users.csv").write_text("user_id,age\na,1\n,2\n")
    with pytest.raises(DataError, match=r"users.csv, row 3, column 'user_id': no id"):
        _ = FeatureFile(tmp_path / "users.csv", "user_id", SPECS, copies, TrainedColumns()).ids
    with pytest.raises(DataError, match="no column 'item_id'; it has user_id, age"):
        FeatureFile(tmp_path / "users.csv", "item_id", SPECS, copies, TrainedColumns())


def test_a_file_without_a_column_of_a_feature_is_refused(tmp_path: Path, copies: Copies) -> None:
    (tmp_path / "users.csv").write_text("user_id,shoe_size\na,42\n")
    with pytest.raises(DataError) as error:
        FeatureFile(tmp_path / "users.csv", "user_id", SPECS, copies, TrainedColumns())
    inputs = "the tower's inputs are country, age, hour, history, taste"
    assert str(error.value) == f"{tmp_path / 'users.csv'}: no column of a feature; it has user_id, shoe_size; {inputs}"
    ids = FeatureFile(tmp_path / "users.csv", "user_id", SPECS[:1], copies, TrainedColumns())
    assert requests(ids, range(1)) == [{"user_id": "a"}]


@pytest.mark.parametrize(
    ("known", "found"),
    [
        (["1", "2.5", "3"], ["1", "1", "2.5", "007", "XL", None]),
        (["1", "2.5", "M"], ["1", "1.0", "2.50", "007", "XL", "nan"]),
        (["1.0", "2.50"], ["1", "1.0", "2.50", "007", "XL", None]),  # a Parquet file's texts
    ],
)
def test_what_the_tower_knows_tells_how_a_category_is_written(
    tmp_path: Path, copies: Copies, known: list[str], found: list[str | None]
) -> None:
    texts = ["1", "1.0", "2.50", "007", "XL", "nan"]
    for some in (range(6), *([n] for n in range(6))):
        lines = [f"u{n},{texts[n]}\n" for n in some]
        (tmp_path / "users.csv").write_text("user_id,country\n" + "".join(lines))
        trained = TrainedColumns(values={"country": known})
        file = FeatureFile(tmp_path / "users.csv", "user_id", SPECS, copies, trained)
        asked = [request["country"] for request in requests(file, range(len(lines)))]
        assert asked == [found[n] for n in some]


@pytest.mark.parametrize("kind", ["categorical", "hashed"])
def test_floats_are_categories_as_in_training(tmp_path: Path, copies: Copies, kind: str) -> None:
    codes = pl.Series([0.0, None, 2.5, -3.0, 1e20])
    pl.DataFrame({"user_id": list("abcde"), "code": codes}).write_parquet(tmp_path / "users.parquet")
    specs = [FeatureSpec(name="code", kind=kind, dtype="string")]
    file = FeatureFile(tmp_path / "users.parquet", "user_id", specs, copies, TrainedColumns())
    found = [request["code"] for request in requests(file, range(5), specs)]
    assert found == as_strings(codes).to_list() and found[:4] == ["0", None, "2.5", "-3"]


def test_a_category_that_is_no_finite_number_is_refused_as_in_training(tmp_path: Path, copies: Copies) -> None:
    pl.DataFrame({"user_id": ["a", "b"], "country": [1.0, np.nan]}).write_parquet(tmp_path / "users.parquet")
    file = FeatureFile(tmp_path / "users.parquet", "user_id", SPECS, copies, TrainedColumns())
    with pytest.raises(DataError, match=r"row 2, column 'country': NaN or infinite; leave the cell empty"):
        requests(file, range(2))


def test_a_column_of_numbers_is_refused_where_the_tower_takes_words(tmp_path: Path, copies: Copies) -> None:
    pl.DataFrame({"item_id": ["a"], "title": [0.5]}).write_parquet(tmp_path / "items.parquet")
    specs = [FeatureSpec(name="title", kind="text", dtype="string")]
    file = FeatureFile(tmp_path / "items.parquet", "item_id", specs, copies, TrainedColumns())
    with pytest.raises(DataError, match=r"row 1: features.title: must be a string, got 0.5"):
        requests(file, range(1), specs)


def test_the_column_that_training_read_is_named(
    copies: Copies, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pl.DataFrame({"user_id": ["u1"], "age": [3.0], "land": ["fr"]}).write_csv(tmp_path / "users.csv")
    FeatureFile(
        tmp_path / "users.csv", "user_id", SPECS, copies, TrainedColumns({"country": "land", "taste": "absent"})
    )
    said = capsys.readouterr().err
    assert "users.csv: training read country from column land: name it country for that" in said
    assert "absent" not in said


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_lists_that_a_tower_reads_as_one_text_are_joined(tmp_path: Path, copies: Copies, suffix: str) -> None:
    frame = pl.DataFrame({"item_id": ["a", "b"], "words": [["Red", "big sea"], None]})
    specs = [FeatureSpec(name="words", kind="text", dtype="string")]
    if suffix == "parquet":
        frame.write_parquet(tmp_path / "items.parquet")
    else:
        frame.with_columns(pl.col("words").list.join("x")).write_csv(tmp_path / "items.csv")
    trained = TrainedColumns(separators={"words": "x"})
    file = FeatureFile(tmp_path / f"items.{suffix}", "item_id", specs, copies, trained)
    assert requests(file, range(2), specs) == [{"words": "Red big sea"}, {"words": None}]
