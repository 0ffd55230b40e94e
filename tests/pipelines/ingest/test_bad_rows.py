"""Bad input: each case is an error that names file, column and row, or with skip a counted line in rejects.csv."""

from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest

from pipelines.dataset.dataset import Dataset
from pipelines.errors import DataError
from pipelines.ingest import prepare
from pipelines.ingest.formats.rejects import ROW, Rejects
from towers.config.sections import Columns, DataConfig

ALL_TRAIN = DataConfig(valid_share=0, test_share=0)
HEADER = "user,item,time,rating\n"
GOOD = "u1,a,1700000000,4\nu2,b,1700000001,5\n"

# Name of the case: file, content, row, column, reason, value in rejects.csv. The good rows come before it.
CASES: dict[str, tuple[str, bytes, int, str, str, str | None]] = {
    "null user": ("e.csv", (HEADER + GOOD + ",a,1700000002,3\n").encode(), 4, "user", "no id", None),
    "null item": ("e.csv", (HEADER + GOOD + "u3,,1700000002,3\n").encode(), 4, "item", "no id", None),
    "blank item": ("e.csv", (HEADER + GOOD + "u3,  ,1700000002,3\n").encode(), 4, "item", "an empty id", "  "),
    "id with a line break": (
        "e.csv",
        (HEADER + GOOD + '"u\n3",a,1700000002,3\n').encode(),
        4,
        "user",
        "an id with a line break",
        "u\n3",
    ),
    "no time": ("e.csv", (HEADER + GOOD + "u3,a,,3\n").encode(), 4, "time", "no time", None),
    "NaN time": ("e.csv", (HEADER + GOOD + "u3,a,nan,3\n").encode(), 4, "time", "no number", "nan"),
    "time of another type": ("e.csv", (HEADER + GOOD + "u3,a,noon,3\n").encode(), 4, "time", "not a number", "noon"),
    "another time unit": (
        "e.csv",
        (HEADER + GOOD + "u3,a,1700000002000,3\n").encode(),
        4,
        "time",
        "another time unit",
        "1700000002000",
    ),
    "weight of another type": (
        "e.csv",
        (HEADER + GOOD + "u3,a,1700000002,good\n").encode(),
        4,
        "rating",
        "not a number",
        "good",
    ),
    "NaN weight": ("e.csv", (HEADER + GOOD + "u3,a,1700000002,NaN\n").encode(), 4, "rating", "NaN or infinite", "NaN"),
    "infinite weight": (
        "e.csv",
        (HEADER + GOOD + "u3,a,1700000002,inf\n").encode(),
        4,
        "rating",
        "NaN or infinite",
        "inf",
    ),
    "no weight": ("e.csv", (HEADER + GOOD + "u3,a,1700000002,\n").encode(), 4, "rating", "no weight", None),
    "too many values": (
        "e.csv",
        (HEADER + GOOD + "u3,a,1700000002,3,9,9\n").encode(),
        4,
        "",
        "6 values, the header has 4",
        None,
    ),
    "not UTF-8": ("e.csv", (HEADER + GOOD + "caf\xe9,a,1700000002,3\n").encode("latin-1"), 4, "", "not UTF-8", None),
    "cut inside a character": ("e.csv", (HEADER + GOOD + "u3,café").encode()[:-1], 4, "", "not UTF-8", None),
    "not UTF-8 in lists": ("e.txt", b"u1 a\nu2 b\ncaf\xe9 c\n", 3, "", "not UTF-8", None),
    "1 and 1.0 in text": ("e.csv", b"user,item\n1,a\n2,b\n1.0,c\n", 4, "user", "differ only by type", "1.0"),
    "1.0 and 1 alike": ("e.csv", b"user,item\n1.0,a\n1,b\nu,c\n", 2, "user", "others are written like 1", "1.0"),
    "1.0 before 2 and 3": ("e.csv", b"user,item\n1.0,a\n2,b\n3,c\n", 2, "user", "others are written like 1", "1.0"),
    "not a pair": ("e.txt", b"u1 a\nu2 b\n" + b"u a\n" * 100 + b"u3 c d\n", 103, "line", "expected two ids", "u3 c d"),
    "JSON line cut off": (
        "e.jsonl",
        b'{"user":1,"item":2}\n{"user":2,"item":3}\n{"user":\n',
        3,
        "",
        "not a JSON object",
        '{"user":',
    ),
    "JSON ids 1 and '1'": (
        "e.jsonl",
        b'{"user":1,"item":2}\n{"user":2,"item":3}\n{"user":"1","item":2}\n',
        3,
        "user",
        "ids that differ only by type",
        '"1"',
    ),
    "JSON object for a number": (
        "e.jsonl",
        b'{"user":1,"item":2,"x":1}\n{"user":2,"item":3,"x":2}\n{"user":3,"item":2,"x":{}}\n',
        3,
        "x",
        "wrong type",
        "{}",
    ),
    "JSON no id": ("e.jsonl", b'{"user":1,"item":2}\n{"user":2,"item":3}\n{"item":2}\n', 3, "user", "no id", None),
    "ratings.dat line too short": (
        "ratings.dat",
        b"1::2::3::8\n2::2::3::9\n1::3::4\n",
        3,
        "line",
        "expected 4 values",
        "1::3::4",
    ),
    "NaN in a context number": ("e.csv", b"user,item,km\n1,a,2\n2,b,3.5\n3,c,NaN\n", 4, "km", "NaN", "NaN"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_bad_row_is_named_or_skipped_and_counted(tmp_path: Path, case: str) -> None:
    name, content, row, column, reason, value = CASES[case]
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(DataError) as caught:
        prepare.run(ALL_TRAIN, file, tmp_path / "out")
    message = str(caught.value)
    assert message.startswith(f"{file}, row {row}") and reason in message
    assert f"column {column!r}" in message or not column
    assert not (tmp_path / "out").exists()

    manifest = prepare.run(ALL_TRAIN, file, tmp_path / "out", on_bad_rows="skip")
    rejects = pl.read_csv(tmp_path / "out" / "rejects.csv", infer_schema=False)
    assert manifest.rejected == rejects.height == 1
    only = rejects.row(0, named=True)
    assert (only["file"], only["row"], only["column"] or "", only["value"]) == (name, str(row), column, value)
    assert reason in only["reason"]
    items = Dataset.open(tmp_path / "out").items
    assert items["train_count"].sum() == manifest.events["train"] >= 2


@pytest.mark.parametrize(
    ("format", "events"),
    [
        ("pairs", [("a", "b"), ("c", "\x01"), ("h", "i")]),
        ("lightgcn", [("a", "b"), ("c", "\x01"), ("c", "d"), ("h", "i")]),
        ("sequences", [("a", "b"), ("c", "\x01"), ("c", "d"), ("h", "i")]),
        ("movielens", [("a", "b"), ("c", "\x01")]),
    ],
)
def test_the_other_lines_of_a_file_that_is_not_utf_8_are_read_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, events: list[tuple[str, str]]
) -> None:
    monkeypatch.setattr("pipelines.ingest.formats.table.BATCH_ROWS", 2)
    file = tmp_path / ("ratings.dat" if format == "movielens" else "e.txt")
    more = " d" if format in ("lightgcn", "sequences") else ""
    lines = ["a b", f"c \x01{more}", "x \xff", "caf\xe9", "h i"]
    if format == "movielens":
        lines = ["a::b::1::5", "c::\x01::1::6", "x::\xff::1::7", "caf\xe9", "", "h::i::1"]
    file.write_bytes("\r\n".join(lines).encode("latin-1"))
    prepare.run(ALL_TRAIN, file, tmp_path / "out", format=format, on_bad_rows="skip")
    rejects = pl.read_csv(tmp_path / "out" / "rejects.csv", infer_schema=False)
    assert rejects.filter(reason="not UTF-8")["row"].to_list() == ["3", "4"]
    assert rejects.filter(pl.col("reason") != "not UTF-8")["row"].to_list() == (["6"] if format == "movielens" else [])
    data = Dataset.open(tmp_path / "out")
    train, users, items = data.events("train"), data.users["user_id"], data.items["item_id"]
    assert sorted((users[int(u)], items[int(i)]) for u, i in zip(train.user, train.item, strict=True)) == events


def typed(frame: pl.DataFrame, tmp_path: Path) -> Path:
    frame.write_parquet(tmp_path / "e.parquet")
    return tmp_path / "e.parquet"


@pytest.mark.parametrize(
    ("bad", "column", "reason"),
    [
        ({"user": None}, "user", "no id"),
        ({"time": None}, "time", "no time"),
        ({"time": float("nan")}, "time", "no number"),
        ({"rating": float("nan")}, "rating", "NaN or infinite"),
        ({"km": float("nan")}, "km", "NaN or infinite"),
        ({"km": float("inf")}, "km", "NaN or infinite"),
        ({"time": 1e300}, "time", "another time unit"),
        ({"rating": 1e300}, "rating", "beyond ±3.4e38"),
    ],
)
def test_a_bad_row_of_a_parquet_file_is_named(tmp_path: Path, bad: dict[str, object], column: str, reason: str) -> None:
    rows = [{"user": u, "item": "a", "time": 1.7e9, "rating": 3.0, "km": 1.0} for u in ("u1", "u2")]
    file = typed(pl.DataFrame([*rows, {**rows[0], "user": "u3", **bad}]), tmp_path)
    with pytest.raises(DataError, match=rf"e.parquet, row 3, column '{column}': {reason}"):
        prepare.run(ALL_TRAIN, file, tmp_path / "out")
    assert prepare.run(ALL_TRAIN, file, tmp_path / "out", on_bad_rows="skip").rejected == 1


@pytest.mark.parametrize(
    ("column", "values", "reason"),
    [
        ("user", [[1], [2]], "ids are strings or whole numbers, got List"),
        ("item", [True, False], "ids are strings or whole numbers, got Boolean"),
        ("time", [True, False], "a time is a number or a date, got Boolean"),
        ("rating", [[1], [2]], "a weight is a number, got List"),
        ("action", [["click"], ["buy"]], "an event's type is text or a number, got List"),
        ("action", [{"x": 1}, {"x": 2}], "an event's type is text or a number, got Struct"),
        ("action", [b"\xff", b"a"], "an event's type is text or a number, got Binary"),
        ("action", [timedelta(1), timedelta(2)], "an event's type is text or a number, got Duration"),
        ("place", [{"x": 1}, {"x": 2}], "is not supported; drop or convert it"),
        ("place", [[b"\xff"], [b"a"]], "is not supported; drop or convert it"),
        ("place", [[timedelta(1)], [timedelta(2)]], "is not supported; drop or convert it"),
    ],
)
def test_a_parquet_column_of_a_wrong_type_is_refused(
    tmp_path: Path, column: str, values: list[object], reason: str
) -> None:
    frame = pl.DataFrame({"user": ["u", "v"], "item": ["a", "b"], "time": [1, 2], "rating": [1, 2]})
    file = typed(frame.with_columns(pl.Series(column, values)), tmp_path)
    with pytest.raises(DataError, match=reason) as caught:
        prepare.run(ALL_TRAIN, file, tmp_path / "out")
    assert str(file) in str(caught.value) and repr(column) in str(caught.value)


@pytest.mark.parametrize("name", ["e.csv", "e.parquet", "e.jsonl", "e.txt"])
def test_an_empty_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(DataError, match=f"{name}: the file is empty"):
        prepare.run(ALL_TRAIN, tmp_path / name, tmp_path / "out", format="pairs" if name == "e.txt" else "auto")


def test_a_file_with_a_header_only_is_refused(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text(HEADER)
    with pytest.raises(DataError, match=r"e.csv: there are no rows"):
        prepare.run(ALL_TRAIN, tmp_path / "e.csv", tmp_path / "out")


@pytest.mark.parametrize("keep", [20, 200, -4])
def test_a_truncated_parquet_file_is_refused(tmp_path: Path, keep: int) -> None:
    file = typed(pl.DataFrame({"user": [f"u{n}" for n in range(500)], "item": list(range(500))}), tmp_path)
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"e.parquet: not a whole Parquet file"):
        prepare.run(ALL_TRAIN, file, tmp_path / "out")


@pytest.mark.parametrize("after", ["", 'u3,"c"\n', '"u3","c"\n', "u3,c\n" * 40_000])
@pytest.mark.parametrize("row", ['"u2,b\n', 'u2,"b\n', '"u2","b\n', '"u""2","b""\n'])
@pytest.mark.parametrize("before", ["", "u1,a\n", '\n"u\n1",a\n\n"u4","a, ""b\n"\n'])
def test_a_quote_left_open_is_refused_with_the_row_on_which_it_opens(
    tmp_path: Path, before: str, row: str, after: str
) -> None:
    (tmp_path / "e.csv").write_text("user,item\n" + before + row + after)
    opened = before.count("\n") + 2
    told = r": a quote of the record that begins here is not closed: |: " if after else ": "
    with pytest.raises(DataError, match=rf"e.csv, row {opened}: not valid CSV({told})"):
        prepare.run(ALL_TRAIN, tmp_path / "e.csv", tmp_path / "out", on_bad_rows="skip")


@pytest.mark.parametrize("end", ['"B', '"B ""'])
def test_a_quote_left_open_in_the_last_cell_is_refused(tmp_path: Path, end: str) -> None:
    (tmp_path / "e.csv").write_text(f'user,item,title\nu1,a,"A ""1"""\nu2,b,{end}')
    with pytest.raises(DataError, match=r"e.csv, row 3: not valid CSV: "):
        prepare.run(ALL_TRAIN, tmp_path / "e.csv", tmp_path / "out", on_bad_rows="skip")


@pytest.mark.parametrize(
    ("names", "hint"),
    [
        ("user_id,mvid,rating,timestamp", ""),
        ("user_id,movie_ident,rating,timestamp", "; did you mean 'movie_ident'?"),
        ("user_id,the_item,rating,time", "; did you mean 'the_item'?"),
        ("user_id,tim,rating,item type", "; did you mean 'item type'?"),
        ("user_id,item_rating,itemDate,ITEM_SCORE", ""),
    ],
)
def test_a_missing_id_column_is_told_with_the_columns_there_are_and_never_a_rating_or_time(
    tmp_path: Path, names: str, hint: str
) -> None:
    (tmp_path / "e.csv").write_text(f"{names}\nu1,a,4,1\n")
    with pytest.raises(DataError) as caught:
        prepare.run(ALL_TRAIN, tmp_path / "e.csv", tmp_path / "out")
    assert str(caught.value) == (
        f"{tmp_path / 'e.csv'}: no column of item ids; it has {names.replace(',', ', ')}{hint}; name it: --config "
        'default --set data.columns.item=NAME, or item = "NAME" under [data.columns] of the recipe that --config names'
    )


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (",".join(f"c{place}" for place in range(40)).encode(), "it has c0, .*, c29 and 10 more; name it"),
        (b"\x1b[31m\x01,b", r"it has '\\x1b\[31m\\x01', b; it may be no file of text; if it is, name it"),
        (b"\x01" * 101 + b",b", r"it has '(\\x01){100}…', b; it may"),
        ("usr_idd\u00a0,b".encode(), "it has usr_idd\u00a0, b; did you mean [^;]*; name it"),
    ],
)
def test_columns_are_told_in_one_line_that_a_terminal_can_show(tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / "e.csv").write_bytes(content + b"\n1,2\n")
    with pytest.raises(DataError, match=told):
        prepare.run(ALL_TRAIN, tmp_path / "e.csv", tmp_path / "out")


@pytest.mark.parametrize(
    ("side", "names", "remedy"),
    [
        ("item", ("buyer", "film"), "item_id, id or 'film'"),
        ("user", ("buyer", "film"), "user_id, id or 'buyer'"),
        ("item", ("user_id", "item_id"), "id or 'item_id'"),
        ("user", ("id", "film"), "user_id or 'id'"),
    ],
)
def test_an_id_column_of_attributes_is_renamed_as_in_the_events_which_the_recipe_names(
    tmp_path: Path, side: str, names: tuple[str, str], remedy: str
) -> None:
    (tmp_path / "e.csv").write_text(f"{','.join(names)}\nu1,a\n")
    (tmp_path / "attributes.csv").write_text("name,age\na,1\n")
    with pytest.raises(DataError) as caught:
        prepare.run(
            DataConfig(columns=Columns(user=names[0], item=names[1])),
            tmp_path / "e.csv",
            tmp_path / "out",
            **{f"{side}s": tmp_path / "attributes.csv"},
        )
    assert str(caught.value) == (
        f"{tmp_path / 'attributes.csv'}: no column of {side} ids; it has name, age; rename it to {remedy}, as in "
        "the events"
    )


def test_a_mistyped_id_column_is_never_taken_for_the_rating(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("user_id,film,rating\nu1,a,4\n")
    for wanted, hint in (("ratings", ""), ("flim", "; did you mean 'film'?")):
        with pytest.raises(DataError) as caught:
            prepare.run(DataConfig(columns=Columns(item=wanted)), tmp_path / "e.csv", tmp_path / "out")
        assert str(caught.value).endswith(f"(data.columns.item); it has user_id, film, rating{hint}")


WRITE = "write times as 2026-01-31T12:30:00 or as seconds since 1970"
NO_DATE = "not an ISO-8601 date and time of the years 1 to 9999"
NAME_WEIGHTS = (
    "rename the column if it holds no weights, or name the one that does: "
    "--config default --set data.columns.weight=NAME"
)
DATE = f"{WRITE}; if 'date' holds the times: --config default --set data.columns.time=date"


@pytest.mark.parametrize(
    ("columns", "cells", "told"),
    [
        ("date,time", "2026-01-0{},00:00:5{}", f"column 'time': {NO_DATE}, got '00:00:51'{{}}; {DATE}"),
        ("time,date", ",2026-01-0{}", f"column 'time': no time, got None{{}}; {DATE}"),
        ("time", "0{}/31/2026 00:00", f"column 'time': {NO_DATE}, got '01/31/2026 00:00'{{}}; {WRITE}"),
        # A year in a column of another name is no time of an event.
        ("date,year", "31.0{}.2026,2026", f"column 'date': {NO_DATE}, got '31.01.2026'{{}}; {WRITE}"),
        ("rating", "view", f"column 'rating': not a number, got 'view'{{}}; {NAME_WEIGHTS}"),
        ("rating,price", ",{}", f"column 'rating': no weight, got None{{}}; {NAME_WEIGHTS}"),
    ],
)
def test_where_no_row_has_a_time_or_a_weight_the_error_says_what_helps_instead_of_skipping(
    tmp_path: Path, columns: str, cells: str, told: str
) -> None:
    path = tmp_path / "e.csv"
    rows = "".join(f"u{n},i{n},{cells.format(n, n)}\n" for n in (1, 2, 3))
    path.write_text(f"user,item,{columns}\n{rows}")
    with pytest.raises(DataError) as caught:
        prepare.run(ALL_TRAIN, path, tmp_path / "out")
    assert str(caught.value) == f"{path}, row 2, " + told.format(" (and 2 more such rows nearby)")


@pytest.mark.parametrize(("column", "good"), [("time", "2026-01-01"), ("rating", "4")])
def test_after_good_rows_of_an_earlier_file_the_bad_ones_of_another_may_be_skipped(
    tmp_path: Path, column: str, good: str
) -> None:
    (tmp_path / "events").mkdir()
    for number, cell in enumerate((good, "view")):
        path = tmp_path / "events" / f"{number}.csv"
        path.write_text(f"user,item,{column}\nu1,i{number},{cell}\nu2,i{number},{cell}\n")
    reason = NO_DATE if column == "time" else "not a number"
    with pytest.raises(DataError) as caught:
        prepare.run(ALL_TRAIN, tmp_path / "events", tmp_path / "out")
    assert str(caught.value) == (
        f"{path}, row 2, column {column!r}: {reason}, got 'view' (and 1 more such rows nearby); "
        "--on-bad-rows skip leaves such rows out"
    )


@pytest.mark.parametrize(
    ("rejects", "rows", "ending"),
    [
        (Rejects(), 2, "; name another"),
        (Rejects(), 1, "; --on-bad-rows skip leaves such rows out"),  # which may be a bad row in a good column
        (Rejects(hint="fix the file"), 2, "; fix the file"),  # of a command without these options
        (Rejects(hint=""), 2, ""),
    ],
)
def test_a_remedy_takes_the_place_of_the_advice_to_skip_alone(rejects: Rejects, rows: int, ending: str) -> None:
    frame = pl.DataFrame({ROW: range(1, rows + 1), "time": ["noon"] * rows})
    with pytest.raises(DataError) as caught:
        rejects.split_off(frame, pl.col("time") == "noon", Path("e.csv"), "time", "no number", remedy="name another")
    more = " (and 1 more such rows nearby)" if rows > 1 else ""
    assert str(caught.value) == f"e.csv, row 1, column 'time': no number, got 'noon'{more}{ending}"


def items_file(tmp_path: Path, text: str) -> dict[str, Path]:
    (tmp_path / "e.csv").write_text("user,item\nu1,a\nu2,b\nu2,zzz\n")
    (tmp_path / "items.csv").write_text(text)
    return {"items": tmp_path / "items.csv"}


def test_an_event_with_an_unknown_item_is_a_bad_row(tmp_path: Path) -> None:
    files = items_file(tmp_path, "item,title\na,A\nb,B\nc,C\n")
    with pytest.raises(
        DataError, match=r"e.csv, row 4, column 'item': an item that the items file does not have, got 'zzz'"
    ):
        prepare.run(ALL_TRAIN, tmp_path / "e.csv", tmp_path / "out", **files)
    manifest = prepare.run(ALL_TRAIN, tmp_path / "e.csv", tmp_path / "out", **files, on_bad_rows="skip")
    assert (manifest.items, manifest.rejected, manifest.events["train"]) == (3, 1, 2)


def test_of_many_small_files_the_one_with_an_unknown_item_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "events"
    folder.mkdir()
    for part in range(30):
        (folder / f"part-{part:02}.csv").write_text(f"user,item\nu{part},i{part}\n")
    (folder / "part-30.csv").write_text("user,item\nu0,gone\n")
    (tmp_path / "items.csv").write_text("item\n" + "".join(f"i{part}\n" for part in range(50)))
    with pytest.raises(DataError, match=r"part-30.csv, row 2, column 'item': .* does not have, got 'gone'"):
        prepare.run(ALL_TRAIN, folder, tmp_path / "out", items=tmp_path / "items.csv")


@pytest.mark.parametrize(
    ("text", "row", "message"),
    [
        ("item,title\na,A\nb,B\nzzz,Z\na,again\n", 5, "column 'item': a duplicate row of this item, got 'a'"),
        ("item,title\na,A\n,B\nb,B\nzzz,Z\n", 3, "column 'item': no id"),
        ("item,price\na,1\nb,2\nzzz,nan\n", 4, "column 'price': NaN or infinite"),
    ],
)
def test_a_bad_item_row_is_named_or_skipped(tmp_path: Path, text: str, row: int, message: str) -> None:
    files = items_file(tmp_path, text)
    with pytest.raises(DataError, match=f"items.csv, row {row}, {message}"):
        prepare.run(ALL_TRAIN, tmp_path / "e.csv", tmp_path / "out", **files)
    prepare.run(ALL_TRAIN, tmp_path / "e.csv", tmp_path / "out", **files, on_bad_rows="skip")
    rejects = pl.read_csv(tmp_path / "out" / "rejects.csv")
    assert rejects.row(0)[:2] == ("items.csv", row)


def test_a_duplicate_row_decides_no_type(tmp_path: Path) -> None:
    files = items_file(tmp_path, "item,price\na,1.5\nb,2\nzzz,3\na,N/A\n")
    prepare.run(ALL_TRAIN, tmp_path / "e.csv", tmp_path / "out", **files, on_bad_rows="skip")
    data = Dataset.open(tmp_path / "out")
    assert data.manifest.item_columns == {"price": "number"} and data.manifest.rejected == 1


def test_a_good_row_is_no_duplicate_of_a_bad_one(tmp_path: Path) -> None:
    files = items_file(tmp_path, "item,price\na,inf\nb,2\nzzz,3\na,5\n")
    manifest = prepare.run(ALL_TRAIN, tmp_path / "e.csv", tmp_path / "out", **files, on_bad_rows="skip")
    assert (manifest.items, manifest.rejected) == (3, 1)
    items = Dataset.open(tmp_path / "out").items
    assert dict(items.select("item_id", "price").rows()) == {"a": 5.0, "b": 2.0, "zzz": 3.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("item,train_count\na,1\n", "the column name 'train_count' is reserved"),
        (
            "name,title\na,1\n",
            "items.csv: no column of item ids; it has name, title; rename it to item_id, id or 'item', as in the "
            "events$",
        ),
        ("item,title\n", "items.csv: no row to read"),
    ],
)
def test_an_items_file_that_cannot_be_one_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        prepare.run(ALL_TRAIN, tmp_path / "e.csv", tmp_path / "out", **items_file(tmp_path, text))


def test_a_user_with_one_event_is_refused_only_under_leave_last_out(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("user,item,time\nu1,a,1\nu1,b,2\nu2,a,3\nu3,a,4\nu3,b,5\nu3,c,6\n")
    config = DataConfig(split="leave_last_out")
    with pytest.raises(
        DataError, match=r"e.csv, row 4, column 'user': the only event of its user.*min_user_events = 2.* 'u2'"
    ):
        prepare.run(config, tmp_path / "e.csv", tmp_path / "out")
    manifest = prepare.run(config, tmp_path / "e.csv", tmp_path / "out", on_bad_rows="skip")
    assert (manifest.users, manifest.rejected, manifest.events) == (2, 1, {"train": 2, "valid": 1, "test": 2})
    config = DataConfig(split="leave_last_out", min_user_events=2)
    assert prepare.run(config, tmp_path / "e.csv", tmp_path / "out", overwrite=True).rejected == 0
    config = DataConfig(split="global_time", valid_share=0.2, test_share=0.2)
    assert prepare.run(config, tmp_path / "e.csv", tmp_path / "out", overwrite=True).users == 3


def test_bad_rows_are_found_beyond_the_first_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.ingest.formats.delimited.BATCH_ROWS", 10)
    lines = [f"u{n},i{n % 7},{1_700_000_000 + n},1" for n in range(95)]
    lines[73] = "u73,i1,1700000073,1,too,many"
    lines[91] = "u91,,1700000091,1"
    (tmp_path / "e.csv").write_text(HEADER + "\n".join(lines) + "\n")
    with pytest.raises(DataError, match=r"e.csv, row (75: 6 values|93, column 'item')"):
        prepare.run(ALL_TRAIN, tmp_path / "e.csv", tmp_path / "out")
    manifest = prepare.run(ALL_TRAIN, tmp_path / "e.csv", tmp_path / "out", on_bad_rows="skip")
    rejects = pl.read_csv(tmp_path / "out" / "rejects.csv")
    assert sorted(rejects["row"].to_list()) == [75, 93]
    assert (manifest.users, manifest.events["train"]) == (93, 93)


@pytest.mark.parametrize(
    ("events", "count", "first"),
    [
        ("user,item\n,a\n,b\nu1,\n", "3 bad rows", "e.csv, row 2, column 'user': no id, got None"),
        ("user,item,time\nu1,a,\n", "1 bad row", "e.csv, row 2, column 'time': no time, got None"),
        (
            "user,item,km\nu1,a,1e39\n",
            "1 bad row",
            "e.csv, row 2, column 'km': beyond ±3.4e38, the range of 32-bit floats, got '1e39'",
        ),
        ("user,item\nu1,a,b\nu1,b,c\n", "2 bad rows", "e.csv, row 2: 3 values, the header has 2"),
    ],
)
def test_events_that_are_all_bad_are_counted_and_the_first_is_named(
    tmp_path: Path, events: str, count: str, first: str
) -> None:
    (tmp_path / "e.csv").write_text(events)
    with pytest.raises(DataError) as caught:
        prepare.run(ALL_TRAIN, tmp_path / "e.csv", tmp_path / "out", on_bad_rows="skip")
    message = str(caught.value)
    assert message == f"{tmp_path / 'e.csv'}: no event left to use; left out: {count}, the first: {first}"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "text", "count", "first"),
    [
        ("items.csv", "item,title\n,A\n,B\n", "2 bad rows", "items.csv, row 2, column 'item': no id, got None"),
        ("items.csv", "item,title\na,A,1\n", "1 bad row", "items.csv, row 2: 3 values, the header has 2"),
        (
            "x.item",
            "item:token\tkm:float\na\tfar\n",
            "1 bad row",
            "x.item, row 2, column 'km': not a number, got 'far'",
        ),
    ],
)
def test_items_that_are_all_bad_are_counted_and_the_first_is_named(
    tmp_path: Path, name: str, text: str, count: str, first: str
) -> None:
    (tmp_path / "e.csv").write_text("user,item\nu1,a\n")
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError) as caught:
        prepare.run(ALL_TRAIN, tmp_path / "e.csv", tmp_path / "out", items=tmp_path / name, on_bad_rows="skip")
    assert str(caught.value) == f"{tmp_path / name}: no row to read; left out: {count}, the first: {first}"


@pytest.mark.parametrize(("bad", "warned"), [(3, False), (4, True)])
def test_a_file_of_which_more_than_half_is_left_out_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], bad: int, warned: bool
) -> None:
    """Bad rows of the reader and of its columns count, those of another file do not."""
    rows = ["u1,a,1,9", *[f",b,{n}" for n in range(bad - 1)], "u1,a,5", "u2,b,6", "u3,b,7"]
    (tmp_path / "e.csv").write_text("user,item,km\n" + "\n".join(rows) + "\n")
    (tmp_path / "items.csv").write_text("item,title\na,A\na,B\nb,B\n")
    files = {"items": tmp_path / "items.csv"}
    manifest = prepare.run(ALL_TRAIN, tmp_path / "e.csv", tmp_path / "out", **files, on_bad_rows="skip")
    assert (manifest.rejected, manifest.events["train"]) == (bad + 1, 3)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    first = "row 2: 4 values, the header has 3"
    told = f"warning: {tmp_path / 'e.csv'}: {bad} of its {bad + 3} rows were left out, the first: {first}"
    assert lines == ([told] if warned else [])
