"""Columns of vectors: read from every format, wrong ones refused by place and length, other lists left as they are."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.dataset.column_lines import column_lines
from pipelines.dataset.dataset import Dataset
from pipelines.errors import DataError
from pipelines.ingest import prepare
from pipelines.ingest.columns.vectors import LONGEST, Vectors
from pipelines.ingest.formats.rejects import ROW, Rejects
from pipelines.ingest.formats.table import Table
from pipelines.training import check
from towers.config.recipe import parse_config
from towers.config.sections import DataConfig
from towers.errors import ConfigError

NAMED = DataConfig(vectors=("look",))
LOOKS: list[list[float] | None] = [[0.5, -1.0, 2.0], None, [1.0, 2.0, 3.25], [0.1, 1e-3, -4e5], [0.0, 0.0, 1.0]]
AS_READ = [None if look is None else np.float32(look).tolist() for look in LOOKS]


def prepared(items: Path, config: DataConfig | None = None, **options: str) -> Dataset:
    """A data set of these items and a few events of the first two."""
    folder = items.parent
    lines = [f"u{n // 2}\ti{n % 2}" for n in range(16)]
    if items.suffix == ".item":
        events = folder / "x.inter"
        events.write_text("\n".join(["user_id:token\titem_id:token", *lines]) + "\n")
    else:
        events = folder / "events.tsv"
        events.write_text("\n".join(["user\titem", *lines]) + "\n")
    prepare.run(config or DataConfig(), events, folder / "dataset", items=items, overwrite=True, **options)  # type: ignore[arg-type]
    return Dataset.open(folder / "dataset")


def frame(looks: pl.Series) -> pl.DataFrame:
    return pl.DataFrame({"item_id": [f"i{n}" for n in range(len(looks))], "look": looks})


def parquet(folder: Path, looks: list[object], dtype: pl.DataType) -> Path:
    frame(pl.Series(looks, dtype=dtype)).write_parquet(folder / "items.parquet")
    return folder / "items.parquet"


def jsonl(folder: Path, texts: list[str]) -> Path:
    lines = [f'{{"item_id": "i{n}", "look": {text}}}' for n, text in enumerate(texts)]
    (folder / "items.jsonl").write_text("\n".join(lines) + "\n")
    return folder / "items.jsonl"


def table(folder: Path, texts: list[str], header: str = "item_id\tlook", name: str = "items.tsv") -> Path:
    (folder / name).write_text("\n".join([header, *(f"i{n}\t{text}" for n, text in enumerate(texts))]) + "\n")
    return folder / name


def looks(data: Dataset) -> list[object]:
    return data.items.sort("item_id")["look"].to_list()


def written(look: list[float] | None, separator: str = " ") -> str:
    return "" if look is None else separator.join(map(str, look))


FORMATS = {
    "parquet float64": lambda folder: parquet(folder, LOOKS, pl.List(pl.Float64)),
    "parquet float32": lambda folder: parquet(folder, LOOKS, pl.List(pl.Float32)),
    "parquet of a fixed size": lambda folder: parquet(folder, LOOKS, pl.Array(pl.Float32, 3)),
    "parquet, empty is missing": lambda folder: parquet(folder, [look or [] for look in LOOKS], pl.List(pl.Float64)),
    "json lines": lambda folder: jsonl(folder, [json.dumps(look) for look in LOOKS]),
    "json lines, whole numbers first": lambda folder: jsonl(
        folder, ["[0, 1, 2]", *(json.dumps(look or []) for look in LOOKS[1:])]
    ),
    "recbole": lambda folder: table(folder, list(map(written, LOOKS)), "item_id:token\tlook:float_seq", "x.item"),
}
TEXTS = {
    "blanks": lambda folder: table(folder, list(map(written, LOOKS))),
    "commas": lambda folder: table(folder, [written(look, ", ") for look in LOOKS]),
    "json": lambda folder: table(folder, ["[]" if look is None else json.dumps(look) for look in LOOKS]),
    "numpy": lambda folder: table(folder, ["" if look is None else str(np.array(look)) for look in LOOKS]),
}


@pytest.mark.parametrize("source", FORMATS)
def test_lists_of_floats_are_vectors_in_every_format(source: str, tmp_path: Path) -> None:
    data = prepared(FORMATS[source](tmp_path))
    assert data.manifest.item_columns == {"look": "vector"}
    assert looks(data) == ([[0.0, 1.0, 2.0], *AS_READ[1:]] if "whole" in source else AS_READ)
    features = check.run(parse_config({}), data.path).features
    assert {name: each.kind for name, each in (features.candidate or {}).items()} == {"item_id": "id", "look": "vector"}
    assert [line.split() for line in column_lines(data) if "look" in line] == [
        ["items", "look", "vector:", "vectors", "of", "3", "numbers"]
    ]


@pytest.mark.parametrize("source", TEXTS)
def test_text_is_a_vector_if_the_recipe_says_so_and_else_stays_text(source: str, tmp_path: Path) -> None:
    items = TEXTS[source](tmp_path)
    assert prepared(items).manifest.item_columns == {"look": "string"}
    data = prepared(items, NAMED)
    assert data.manifest.item_columns == {"look": "vector"}
    assert looks(data) == AS_READ


def test_lists_of_whole_numbers_are_words_unless_the_recipe_names_them(tmp_path: Path) -> None:
    for dtype in (pl.List(pl.Int64), pl.Array(pl.Int8, 2)):
        items = parquet(tmp_path, [[1, 2], [3, 4], None], dtype)
        data = prepared(items)
        assert data.manifest.item_columns == {"look": "list"}
        assert looks(data)[:3] == [["1", "2"], ["3", "4"], None]
        assert looks(prepared(items, NAMED))[:3] == [[1.0, 2.0], [3.0, 4.0], None]
    items = jsonl(tmp_path, ["[1, 2]", "[3, 4]", "null"])
    assert looks(prepared(items))[:3] == [["1", "2"], ["3", "4"], None]
    assert looks(prepared(items, NAMED))[:3] == [[1.0, 2.0], [3.0, 4.0], None]


def test_lists_of_texts_of_a_fixed_size_are_lists(tmp_path: Path) -> None:
    data = prepared(parquet(tmp_path, [["a", "b"], ["b", None], None], pl.Array(pl.String, 2)))
    assert data.manifest.item_columns == {"look": "list"}
    assert looks(data)[:3] == [["a", "b"], ["b"], None]


def test_a_column_in_data_lists_keeps_lists_of_several_lengths(tmp_path: Path) -> None:
    config = DataConfig(lists={"look": " "})
    for items in (
        parquet(tmp_path, [[0.5], [0.5, 1.25]], pl.List(pl.Float64)),
        jsonl(tmp_path, ["[0.5]", "[0.5, 1.25]"]),
    ):
        data = prepared(items, config)
        assert data.manifest.item_columns == {"look": "list"}
        assert looks(data)[:2] == [["0.5"], ["0.5", "1.25"]]


BAD: dict[str, tuple[object, str, str, str]] = {
    "too short": (lambda f: parquet(f, [*LOOKS, [1.0, 2.0]], pl.List(pl.Float64)), "6", "have 3 numbers", "2 numbers"),
    "too long": (lambda f: jsonl(f, [*map(json.dumps, LOOKS), "[1, 2, 3, 4.5]"]), "6", "have 3 numbers", "4 numbers"),
    "NaN": (lambda f: parquet(f, [[0.5, float("nan")], [1.0, 2.0]], pl.Array(pl.Float64, 2)), "1", "finite", "NaN"),
    "infinite": (lambda f: parquet(f, [[0.5, 1.0], [-np.inf, 2.0]], pl.List(pl.Float64)), "2", "finite", "-inf"),
    "too large": (lambda f: parquet(f, [[0.5, 1.0], [1.0, 1e39]], pl.List(pl.Float64)), "2", "finite", "1e+39"),
    "a null": (lambda f: parquet(f, [[0.5, 1.0], [1.0, None]], pl.List(pl.Float64)), "2", "finite", "null"),
    "a null in JSON": (lambda f: jsonl(f, ["[0.5, 1]", "[1, null]"]), "2", "finite", "null"),
    "a word in text": (lambda f: table(f, ["0.5 1", "0.5 x"]), "3", "finite", "x"),
    "beyond the limit": (
        lambda f: parquet(f, [[0.5] * 3, [0.5] * (LONGEST + 1)], pl.List(pl.Float32)),
        "2",
        "at most 4,096",
        "4097 numbers",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_vector_is_refused_by_file_row_column_and_value(case: str, tmp_path: Path) -> None:
    write, row, reason, value = BAD[case]
    items = write(tmp_path)  # type: ignore[operator]
    with pytest.raises(DataError) as raised:
        prepared(items, NAMED)
    assert str(raised.value).startswith(f"{items}, row {row}, column 'look': ")
    assert reason in str(raised.value) and f"got '{value}'" in str(raised.value)
    data = prepared(items, NAMED, on_bad_rows="skip")
    rejected = pl.read_csv(data.path / "rejects.csv", infer_schema=False)
    assert rejected.select("file", "row", "column", "value").row(0) == (items.name, row, "look", value)


def test_a_text_among_vectors_of_a_later_block_is_a_bad_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.ingest.formats.jsonl.BLOCK_BYTES", 10)  # one line each
    items = jsonl(tmp_path, ["[0.5, 1]", "[0, 1]", '["x", 1]'])
    with pytest.raises(DataError, match=r"row 3, column 'look': vectors hold finite numbers .*, got 'x'"):
        prepared(items)
    assert looks(prepared(items, on_bad_rows="skip"))[:2] == [[0.5, 1.0], [0.0, 1.0]]


def test_empty_lists_before_the_first_vector_are_missing_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.ingest.formats.jsonl.BLOCK_BYTES", 10)  # one line each
    vectors = ["[]", "null", "[]", "[0.5, 1]", "[]"]
    assert looks(prepared(jsonl(tmp_path, vectors))) == [None, None, None, [0.5, 1.0], None]
    assert looks(prepared(jsonl(tmp_path, ["[]", '["x"]']))) == [[], ["x"]]


def test_the_longest_vector_and_one_of_a_single_number(tmp_path: Path) -> None:
    for length in (LONGEST, 1):
        data = prepared(parquet(tmp_path, [[0.25] * length, [1.5] * length], pl.List(pl.Float32)))
        assert looks(data)[:2] == [[0.25] * length, [1.5] * length]


def test_a_column_without_a_single_number_is_left_out(tmp_path: Path) -> None:
    data = prepared(parquet(tmp_path, [[], None, []], pl.List(pl.Float32)), NAMED)
    assert data.items["look"].to_list() == [None] * 3
    assert any("it has no value" in line for line in column_lines(data) if "look" in line)


@pytest.mark.parametrize(
    ("dtype", "values"), [(pl.Int64(), [1, 2]), (pl.List(pl.List(pl.Float64)), [[[0.5]], [[1.5]]])], ids=str
)
def test_a_type_that_holds_no_vectors_is_refused(dtype: pl.DataType, values: list[object], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"items\.parquet, column 'look': a vector is a list of numbers .*, got "):
        prepared(parquet(tmp_path, values, dtype), NAMED)


def test_a_setting_that_names_no_column_or_a_column_of_lists_is_refused(tmp_path: Path) -> None:
    items = table(tmp_path, ["0.5 1", "2 3"])
    with pytest.raises(DataError, match=r"data\.vectors: 'loko': no column of that name .* there are look"):
        prepared(items, DataConfig(vectors=("loko",)))
    with pytest.raises(ConfigError, match=r"data.*'look'.*lists of words or vectors"):
        parse_config({"data": {"vectors": ["look"], "lists": {"look": " "}}})


def test_a_recipe_that_takes_text_for_a_vector_is_told_the_remedy(tmp_path: Path) -> None:
    data = prepared(table(tmp_path, ["0.5 1", "2 3"]))
    features = {"candidate": {"look": {"kind": "vector"}}}
    with pytest.raises(ConfigError, match=r"features\.candidate\.look\.kind: 'vector' reads vector.*data\.vectors"):
        check.run(parse_config({"features": features}), data.path)


def test_vectors_of_events_follow_their_events_and_have_one_length_in_all_files(tmp_path: Path) -> None:
    def write(name: str, moods: list[list[float] | None]) -> None:
        rows = range(len(moods))
        columns = {"user": [f"u{n % 3}" for n in rows], "item": [f"{name}{n}" for n in rows]}
        moods_of = pl.Series(moods, dtype=pl.List(pl.Float64))
        pl.DataFrame({**columns, "mood": moods_of}).write_parquet(tmp_path / "events" / f"{name}.parquet")

    (tmp_path / "events").mkdir()
    moods: list[list[float] | None] = [None if n % 4 == 3 else [n + 0.5, -float(n)] for n in range(12)]
    write("train", moods)
    write("test", [[7.5, 1.0], None])
    prepare.run(DataConfig(valid_share=0.0), tmp_path / "events", tmp_path / "dataset")
    data = Dataset.open(tmp_path / "dataset")
    assert data.manifest.event_columns == {"mood": "vector"}
    events, context = data.events("train"), data.context("train")
    assert context is not None
    ids = data.items["item_id"].gather(events.item)
    of_item = dict(zip(ids, context.collect()["mood"].to_list(), strict=True))
    assert of_item == {f"train{n}": mood for n, mood in enumerate(moods)}
    write("test", [[7.5, 1.0, 2.0]])
    with pytest.raises(DataError, match=r"test\.parquet, row 1, column 'mood': .* have 2 numbers .*, got '3 numbers'"):
        prepare.run(DataConfig(valid_share=0.0), tmp_path / "events", tmp_path / "other")


@settings(max_examples=60)
@given(st.lists(st.lists(st.none() | st.integers(0, 4), min_size=1, max_size=8), min_size=1, max_size=4))
def test_every_vector_of_another_length_than_most_is_rejected_and_no_other(batches: list[list[int | None]]) -> None:
    """Batches of lengths, null for a missing vector: by a loop, the first most frequent length is the column's."""
    rejects = Rejects(skip=True)
    vectors = Vectors(rejects)
    source = Table(Path("items.parquet"), ("look",), None, lambda rejects: iter(()), typed=True)
    length = wrong = 0
    for lengths in batches:
        drawn = [None if n is None else [place + 0.5] * n for place, n in enumerate(lengths)]
        batch = pl.DataFrame({"look": pl.Series(drawn, dtype=pl.List(pl.Float64)), ROW: range(len(drawn))})
        got = vectors.read(batch, ["look"], source)
        found = Counter(n for n in lengths if n)
        if not length and found:
            length = found.most_common(1)[0][0]
        assert got["look"].to_list() == [look or None for look in drawn if not look or len(look) == length]
        wrong += sum(count for n, count in found.items() if n != length)
    assert rejects.count == wrong
