"""Ids are written alike in all files of a data set, and users and items files are those of the events."""

import itertools
import json
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.dataset.dataset import Dataset
from pipelines.errors import DataError
from pipelines.ingest import prepare
from towers.config.sections import Columns, DataConfig

ALL_TRAIN = DataConfig(valid_share=0, test_share=0)
IDS = range(12)
# Each writes the ids 0 to 11 in one form: as text without and with a point, as whole, broken and decimal numbers.
WHOLE, POINT = "1", "1.0"
TYPES = {"Int64": pl.Int64, "Float64": pl.Float64, "NUMBER(38)": pl.Decimal(38, 0), "NUMBER": pl.Decimal(38, 10)}
ALIKE = {WHOLE: WHOLE, POINT: POINT, **dict.fromkeys(TYPES, WHOLE)}


def written(folder: Path, stem: str, column: str, form: str, **others: list[str]) -> Path:
    """A file with the ids 0 to 11 in a form, and other columns."""
    if form in TYPES:
        path = folder / f"{stem}.parquet"
        pl.DataFrame({column: list(IDS), **others}).with_columns(pl.col(column).cast(TYPES[form])).write_parquet(path)
        return path
    path = folder / f"{stem}.csv"
    pl.DataFrame({column: [f"{n}{form[1:]}" for n in IDS], **others}).write_csv(path)
    return path


# A folder holds one format; the files of attributes below mix them.
SAME_FORMAT = [
    *itertools.product((WHOLE, POINT), repeat=2),
    *itertools.product(TYPES, repeat=2),
]


@pytest.mark.parametrize("column", ["user", "item"])
@pytest.mark.parametrize(("first", "second"), SAME_FORMAT)
def test_parts_of_the_events_write_ids_alike(tmp_path: Path, column: str, first: str, second: str) -> None:
    other = "item" if column == "user" else "user"
    (tmp_path / "events").mkdir()
    for stem, form in (("a", first), ("b", second)):
        written(tmp_path / "events", stem, column, form, **{other: [f"{stem}{n}" for n in IDS]})
    if ALIKE[first] == ALIKE[second]:
        manifest = prepare.run(ALL_TRAIN, tmp_path / "events", tmp_path / "out")
        assert (manifest.users if column == "user" else manifest.items) == len(IDS)
        return
    told = f"b.csv, column '{column}': ids that differ only in form .*a.csv: '0{second[1:]}' here, '0{first[1:]}' there"
    for on_bad_rows in ("error", "skip"):
        with pytest.raises(DataError, match=told):
            prepare.run(ALL_TRAIN, tmp_path / "events", tmp_path / "out", on_bad_rows=on_bad_rows)


@pytest.mark.parametrize("side", ["user", "item"])
@pytest.mark.parametrize(("events", "listed"), itertools.product(ALIKE, repeat=2))
def test_users_and_items_files_write_ids_as_the_events_do(tmp_path: Path, side: str, events: str, listed: str) -> None:
    other = "item" if side == "user" else "user"
    path = written(tmp_path, "events", side, events, **{other: [f"x{n}" for n in IDS]})
    table = written(tmp_path, f"{side}s", side, listed, colour=[f"c{n}" for n in IDS])
    if ALIKE[events] != ALIKE[listed]:
        with pytest.raises(DataError, match="ids that differ only in form"):
            prepare.run(ALL_TRAIN, path, tmp_path / "out", **{f"{side}s": table}, on_bad_rows="skip")
        return
    prepare.run(ALL_TRAIN, path, tmp_path / "out", **{f"{side}s": table})
    data = Dataset.open(tmp_path / "out")
    frame = data.users if side == "user" else data.items
    assert dict(zip(frame[f"{side}_id"], frame["colour"], strict=True)) == {
        f"{n}{ALIKE[events][1:]}": f"c{n}" for n in IDS
    }


def test_a_decimal_with_a_fraction_is_no_id_and_one_of_38_digits_is(tmp_path: Path) -> None:
    users = {"whole": [Decimal(7), Decimal("9" * 38)], "broken": [Decimal(7), Decimal("7.5")]}
    for name, ids in users.items():
        frame = pl.DataFrame({"user": pl.Series(ids), "item": ["a", "b"]})
        frame.write_parquet(tmp_path / f"{name}.parquet")
    prepare.run(ALL_TRAIN, tmp_path / "whole.parquet", tmp_path / "out")
    assert set(Dataset.open(tmp_path / "out").users["user_id"]) == {"7", "9" * 38}
    with pytest.raises(DataError, match=r"broken\.parquet, row 2, column 'user': an id must be a string or a whole"):
        prepare.run(ALL_TRAIN, tmp_path / "broken.parquet", tmp_path / "other")


ID = st.sampled_from(["1", "2", "2.0", "1.00", "a", "x.0", "7"])


@settings(max_examples=30)
@given(parts=st.lists(st.lists(ID, min_size=1), min_size=1, max_size=3))
def test_a_data_set_holds_one_form_of_whole_numbers(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[str]]
) -> None:
    folder = tmp_path_factory.mktemp("world")
    (folder / "events").mkdir()
    for number, ids in enumerate(parts):
        pl.DataFrame({"user": ids, "item": ["i"] * len(ids)}).write_csv(folder / "events" / f"{number}.csv")
    every = {each for ids in parts for each in ids}
    if every & {"2.0", "1.00"} and every & {"1", "2", "7"}:
        with pytest.raises(DataError, match="ids that differ only"):
            prepare.run(ALL_TRAIN, folder / "events", folder / "out")
        return
    prepare.run(ALL_TRAIN, folder / "events", folder / "out")
    assert set(Dataset.open(folder / "out").users["user_id"]) == every


FORMS = {"case": ("U{}", "u{}"), "zeros": ("{:03}", "{}"), "prefix": ("user-{}", "{}")}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("side", ["user", "item"])
@pytest.mark.parametrize("on_bad_rows", ["error", "skip"])
def test_a_file_of_other_ids_than_the_events_is_refused_with_both_forms(
    tmp_path: Path, form: str, side: str, on_bad_rows: str
) -> None:
    here, there = FORMS[form]
    other = "item" if side == "user" else "user"
    ids = range(200, 500)
    pl.DataFrame({side: [there.format(n) for n in ids], other: ["x"] * len(ids)}).write_csv(tmp_path / "e.csv")
    # Three of the 300 are in both: almost none.
    listed = [(there if n < 203 else here).format(n) for n in ids]
    if form == "zeros":
        listed = [each if n < 203 else f"0{each}" for n, each in zip(ids, listed, strict=True)]
    pl.DataFrame({side: listed, "colour": ["red"] * len(ids)}).write_csv(tmp_path / f"{side}s.csv")
    told = (
        rf"{side}s.csv: 3 of its 300 {side} ids are among the 300 .*'{listed[3]}' here, '{there.format(203)}' in e.csv"
    )
    files = {f"{side}s": tmp_path / f"{side}s.csv"}
    with pytest.raises(DataError, match=told):
        prepare.run(ALL_TRAIN, tmp_path / "e.csv", tmp_path / "out", **files, on_bad_rows=on_bad_rows)


@pytest.mark.parametrize("listed", [range(200), range(1_000), range(98, 4_000)])
def test_a_users_file_of_some_or_of_more_users_is_not_refused(tmp_path: Path, listed: range) -> None:
    pl.DataFrame({"user": [f"u{n}" for n in range(100, 300)], "item": ["i"] * 200}).write_csv(tmp_path / "e.csv")
    pl.DataFrame({"user": [f"u{n}" for n in listed], "age": [1] * len(listed)}).write_csv(tmp_path / "users.csv")
    manifest = prepare.run(ALL_TRAIN, tmp_path / "e.csv", tmp_path / "out", users=tmp_path / "users.csv")
    assert manifest.users == len({*listed, *range(100, 300)})


@pytest.mark.parametrize("on_bad_rows", ["error", "skip"])
@pytest.mark.parametrize("padded", ["events", "listed"])
@pytest.mark.parametrize("side", ["user", "item"])
def test_a_file_that_lost_the_zeros_of_some_ids_is_refused(
    tmp_path: Path, side: str, padded: str, on_bad_rows: str
) -> None:
    """From 1000 on both forms are one, so half of the ids match."""
    other = "item" if side == "user" else "user"
    forms = {"events": "{}", "listed": "{}"} | {padded: "{:04}"}
    numbers = range(500, 1500)
    pl.DataFrame({side: [forms["events"].format(n) for n in numbers], other: ["x"] * 1000}).write_csv(
        tmp_path / "e.csv"
    )
    listed = [forms["listed"].format(n) for n in numbers]
    pl.DataFrame({side: listed, "colour": ["red"] * 1000}).write_csv(tmp_path / f"{side}s.csv")
    here, there = ("0500", "500") if padded == "listed" else ("500", "0500")
    told = (
        rf"{side}s\.csv: 500 of its {side} ids are those of the events but for .*: '{here}' here, '{there}' in e\.csv"
    )
    files = {f"{side}s": tmp_path / f"{side}s.csv"}
    with pytest.raises(DataError, match=told):
        prepare.run(ALL_TRAIN, tmp_path / "e.csv", tmp_path / "out", **files, on_bad_rows=on_bad_rows)


@pytest.mark.parametrize(
    ("taken", "listed", "told"),
    [
        (range(100, 300), range(98, 298), "2 of the 200 users of the events have no row in it ('u298', say), and 2 of"),
        (range(100, 300), range(98, 4_000), None),
        (range(100, 300), range(102, 298), None),
        (range(200), range(200), None),
    ],
)
def test_users_that_only_one_of_both_files_has_are_told(
    tmp_path: Path, taken: range, listed: range, told: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    users, rows = [[f"u{n}" for n in numbers] for numbers in (taken, listed)]
    pl.DataFrame({"user": users, "item": ["i"] * len(users)}).write_csv(tmp_path / "e.csv")
    pl.DataFrame({"user": rows, "age": [1] * len(rows)}).write_csv(tmp_path / "users.csv")
    prepare.run(ALL_TRAIN, tmp_path / "e.csv", tmp_path / "out", users=tmp_path / "users.csv")
    said = [line for line in capsys.readouterr().err.splitlines() if "no row in it" in line]
    ending = " its 200 rows are of no user of the events ('u98', say)"
    assert said == ([] if told is None else [f"{tmp_path / 'users.csv'}: {told}{ending}"])


def test_two_ids_that_differ_in_zeros_may_be_two(tmp_path: Path) -> None:
    """One of 200 unmatched pairs is a coincidence."""
    pl.DataFrame({"user": ["1", *(f"{n}" for n in range(1000, 1400))], "item": ["i"] * 401}).write_csv(
        tmp_path / "e.csv"
    )
    pl.DataFrame({"user": ["01", *(f"{n}" for n in range(1200, 1600))], "age": [1] * 401}).write_csv(
        tmp_path / "users.csv"
    )
    manifest = prepare.run(ALL_TRAIN, tmp_path / "e.csv", tmp_path / "out", users=tmp_path / "users.csv")
    assert manifest.users == 602


@pytest.mark.parametrize(("kind", "mapping"), [("csv", {}), ("parquet", {}), ("jsonl", {}), ("csv", {"item": "film"})])
def test_the_ids_of_attributes_are_in_the_column_that_has_the_name_of_the_events_ids(
    tmp_path: Path, kind: str, mapping: dict[str, str]
) -> None:
    """Not in the one with a more usual name: here titles, and the person whose session it is."""
    item = mapping.get("item", "asin")
    pl.DataFrame({"session_id": ["s1", "s2"], item: ["a", "b"]}).write_csv(tmp_path / "e.csv")
    tables = {
        "items": pl.DataFrame({"item": ["Tea", "Bread"], item: ["b", "a"]}),
        "users": pl.DataFrame({"uid": ["p", "q"], "session_id": ["s2", "s1"]}),
    }
    for name, frame in tables.items():
        path = tmp_path / f"{name}.{kind}"
        {"csv": frame.write_csv, "parquet": frame.write_parquet, "jsonl": frame.write_ndjson}[kind](path)
    files = {name: tmp_path / f"{name}.{kind}" for name in tables}
    config = DataConfig(valid_share=0, test_share=0, columns=Columns(**mapping))
    prepare.run(config, tmp_path / "e.csv", tmp_path / "out", **files)
    data = Dataset.open(tmp_path / "out")
    assert sorted(data.items.select("item_id", "item").rows()) == [("a", "Bread"), ("b", "Tea")]
    assert sorted(data.users.select("user_id", "uid").rows()) == [("s1", "q"), ("s2", "p")]


def test_of_two_columns_that_may_hold_the_ids_one_is_to_be_renamed(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("session_id,item_id\ns1,a\ns2,b\n")
    (tmp_path / "users.csv").write_text("user_id,session_id\np,s1\nq,s2\n")
    with pytest.raises(DataError) as caught:
        prepare.run(ALL_TRAIN, tmp_path / "e.csv", tmp_path / "out", users=tmp_path / "users.csv")
    assert str(caught.value) == (
        f"{tmp_path / 'users.csv'}: the column name 'user_id' is reserved; rename that column if the ids are in "
        "'session_id', as in the events; else rename 'session_id'"
    )
    for text in ("person,session_id\np,s1\nq,s2\n", "user_id,name\ns1,p\ns2,q\n"):
        (tmp_path / "users.csv").write_text(text)
        prepare.run(ALL_TRAIN, tmp_path / "e.csv", tmp_path / "out", users=tmp_path / "users.csv", overwrite=True)
        assert sorted(Dataset.open(tmp_path / "out").users["user_id"]) == ["s1", "s2"]


@pytest.mark.parametrize(
    ("of_events", "column", "values"),
    [
        ("item_id", "business_id", [3, 2, 1]),
        ("item_id", "isbn", ["978a", "978b", "978c"]),
        ("商品", "番号", [3, 2, 1]),
    ],
)
def test_the_column_id_of_an_items_file_wins_over_rare_names(
    tmp_path: Path, of_events: str, column: str, values: list[object]
) -> None:
    (tmp_path / "events.csv").write_text(f"user_id,{of_events}\nu1,1\nu2,2\nu3,3\n")
    items = pl.DataFrame({"id": [1, 2, 3], column: values, "title": ["one", "two", "three"]})
    items.write_csv(tmp_path / "items.csv")
    config = DataConfig(valid_share=0, test_share=0, columns=Columns(item=of_events))
    prepare.run(config, tmp_path / "events.csv", tmp_path / "out", items=tmp_path / "items.csv")
    data = Dataset.open(tmp_path / "out")
    assert data.items.select("item_id", "title").rows() == [("1", "one"), ("2", "two"), ("3", "three")]
    assert data.items[column].to_list() == values


@pytest.mark.parametrize(
    ("of_events", "header"), [("businessId", "id,business_id"), ("ISBN", "item,isbn"), ("shopKey", "id,shop_key")]
)
def test_the_name_of_the_events_ids_wins_in_another_spelling_too(tmp_path: Path, of_events: str, header: str) -> None:
    (tmp_path / "events.csv").write_text(f"user_id,{of_events}\nu1,1\nu2,2\nu3,3\n")
    (tmp_path / "items.csv").write_text(f"{header},title\n3,1,one\n2,2,two\n1,3,three\n")
    config = DataConfig(valid_share=0, test_share=0, columns=Columns(item=of_events))
    prepare.run(config, tmp_path / "events.csv", tmp_path / "out", items=tmp_path / "items.csv")
    items = Dataset.open(tmp_path / "out").items
    assert items.select("item_id", "title").rows() == [("1", "one"), ("2", "two"), ("3", "three")]


def test_rare_names_of_items_hold_ids_in_json_lines_only_where_no_other_column_does(tmp_path: Path) -> None:
    def written(name: str, *rows: dict[str, object]) -> Path:
        (tmp_path / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        return tmp_path / name

    both = [{"user_id": "u1", "item_id": "a", "isbn": 0.0}, {"user_id": "u2", "item_id": "b", "isbn": 1}]
    events = written("e.jsonl", *both)
    items = written("i.jsonl", {"item_id": "a", "business_id": 1}, {"item_id": "b", "business_id": 2.5})
    users = written("u.jsonl", {"user_id": "u1", "isbn": 1}, {"user_id": "u2", "isbn": 2})
    manifest = prepare.run(ALL_TRAIN, events, tmp_path / "out", items=items, users=users)
    kinds = (manifest.event_columns, manifest.item_columns, manifest.user_columns)
    assert kinds == ({"isbn": "number"}, {"business_id": "number"}, {"isbn": "number"})
    alone = written("alone.jsonl", {"user_id": "u1", "isbn": 2**64 - 1}, {"user_id": "u2", "isbn": 7})
    prepare.run(ALL_TRAIN, alone, tmp_path / "alone")
    assert set(Dataset.open(tmp_path / "alone").items["item_id"]) == {str(2**64 - 1), "7"}
