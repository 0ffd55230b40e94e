"""Which files a path means: files beside a file, lone lists, other separators, upper-case endings, reserved names."""

import csv
import gzip
import re
from datetime import date
from itertools import product
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pipelines.errors import DataError
from pipelines.ingest import prepare
from pipelines.ingest.formats.delimited import csv_table
from pipelines.ingest.formats.rejects import ROW, Rejects
from tests.support.worlds.prepared import opened, pairs
from towers.config.sections import DataConfig

EVENTS = [("u1", "a"), ("u2", "b")]


@pytest.mark.parametrize(("text", "format"), [("u1 a\nu2 b\n", "pairs"), ("u1 a b\nu2 b\n", "lightgcn")])
def test_a_folder_with_one_text_file_is_read_as_that_file(tmp_path: Path, text: str, format: str) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "pairs.txt").write_text(text)
    (source / "README.md").write_text("about")
    data = opened(tmp_path, source)
    assert data.manifest.source.format == format
    assert pairs(data) == pairs(opened(tmp_path, source / "pairs.txt"))
    (source / "more.txt").write_text(text)
    with pytest.raises(DataError, match=r"cannot tell the format of README.md, more.txt, pairs.txt"):
        opened(tmp_path, source)


@pytest.mark.parametrize(
    ("events", "items", "users"),
    [
        (("u.data", "u1\ta\t3\t5\nu2\tb\t4\t6\n"), ("u.item", None), ("u.user", "u1|24|M|writer|1\nu2|5|F|x|2\n")),
        (
            ("ratings.dat", "u1::a::3::5\nu2::b::4::6\n"),
            ("movies.dat", "a::A::War\nb::B::War\nc::C::War\n"),
            ("users.dat", "u1::F::1::1::1\nu2::M::1::1::1\n"),
        ),
        (
            ("ratings.csv", "userId,movieId,rating,timestamp\nu1,a,3,5\nu2,b,4,6\n"),
            ("movies.csv", "movieId,title,genres\na,A,War\nb,B,War\nc,C,War\n"),
            None,
        ),
        (
            ("x.inter", "user_id:token\titem_id:token\nu1\ta\nu2\tb\n"),
            ("x.item", "item_id:token\ttitle:token\na\tA\nb\tB\nc\tC\n"),
            ("x.user", "user_id:token\tage:float\nu1\t1\nu2\t2\n"),
        ),
    ],
)
def test_a_file_of_movielens_or_recbole_brings_the_files_beside_it(
    tmp_path: Path, events: tuple[str, str], items: tuple[str, str | None], users: tuple[str, str] | None
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    movies = "".join(f"{item}|T||||{'|'.join('0' * 19)}\n" for item in "abc")
    (source / items[0]).write_text(items[1] or movies)
    (source / events[0]).write_text(events[1])
    if users:
        (source / users[0]).write_text(users[1])
    # Of another RecBole set: not to be taken.
    (source / "y.item").write_text("item_id:token\tname:token\nz\tZ\n")
    data = opened(tmp_path, source / events[0])
    assert data.items["item_id"].to_list() == ["a", "b", "c"] and "title" in data.items.columns
    assert data.manifest.source.files == (events[0], items[0], *([users[0]] if users else []))
    assert pairs(data) == EVENTS


def test_a_plain_file_takes_nothing_from_beside_it(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("user,item\nu1,a\nu2,b\n")
    (tmp_path / "items.csv").write_text("item,title\nz,Z\n")
    assert opened(tmp_path, tmp_path / "e.csv").manifest.source.files == ("e.csv",)


@pytest.mark.parametrize("column", ["__row__", "__time__", "__number__", "*", "^k.*$"])
@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
def test_a_column_with_a_name_of_the_reader_is_refused(tmp_path: Path, column: str, suffix: str) -> None:
    frame = pl.DataFrame({"user": ["u"], "item": ["a"], column: [1]})
    path = tmp_path / f"e.{suffix}"
    {"csv": frame.write_csv, "parquet": frame.write_parquet, "jsonl": frame.write_ndjson}[suffix](path)
    told = re.escape(f"e.{suffix}: the column name {column!r} is reserved; rename that column")
    with pytest.raises(DataError, match=told):
        opened(tmp_path, path)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
def test_files_of_one_folder_may_have_their_columns_in_any_order(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "log").mkdir()
    for name, columns in (("a", ["user", "item", "place", "km"]), ("b", ["km", "item", "place", "user"])):
        frame = pl.DataFrame({"user": [f"u{name}"], "item": ["i"], "place": [f"p{name}"], "km": [len(name) + 0.5]})
        path = tmp_path / "log" / f"{name}.{suffix}"
        frame = frame.select(columns)
        {"csv": frame.write_csv, "parquet": frame.write_parquet, "jsonl": frame.write_ndjson}[suffix](path)
    data = opened(tmp_path, tmp_path / "log")
    assert data.manifest.event_columns == {"place": "string", "km": "number"}
    context = data.context("train")
    assert context is not None
    assert sorted(context.select("place", "km").collect().rows()) == [("pa", 1.5), ("pb", 1.5)]


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ("user,item,price", "user,cost,item", "'cost', 'price'"),
        ("user,item,time", "user,item,km", "'km', times"),
        ("user,item,rating,time", "user,item,time", "weights"),
        # A column of context may have the name of a role, or a word of the message.
        ("user,item,timestamp,time", "user,item,time", "'time'"),
        ("user,item,times", "user,item,time", "'times', times"),
    ],
)
def test_a_file_with_other_columns_than_the_first_is_refused_with_them(
    tmp_path: Path, first: str, second: str, told: str
) -> None:
    for name, header in (("a", first), ("b", second)):
        (tmp_path / f"{name}.csv").write_text(f"{header}\n" + ",".join("1" * len(header.split(","))) + "\n")
    with pytest.raises(DataError) as caught:
        prepare.run(DataConfig(), tmp_path, tmp_path / "out")
    assert str(caught.value) == f"{tmp_path / 'b.csv'}: other columns than in a.csv: only one of them has {told}"


VALUES: dict[str, list[object]] = {
    "string": ["x", True],
    "number": [7, 1.5],
    "date": [date(2026, 11, 1)],
    "list": [["x"], [1]],
    "vector": [[1.5, 2.0]],
}


# Once a column holds vectors, what cannot be one is refused as such.
@pytest.mark.parametrize(("first", "second"), [*product(list(VALUES)[:4], VALUES), ("vector", "vector")])
def test_a_column_is_of_one_kind_in_all_files(tmp_path: Path, first: str, second: str) -> None:
    (tmp_path / "log").mkdir()
    for one, other in product(VALUES[first], VALUES[second]):
        for name, value in (("a", one), ("b", None), ("c", other)):
            frame = pl.DataFrame({"user": [f"u{name}"], "item": ["i"], "c": [value]})
            frame.write_parquet(tmp_path / "log" / f"{name}.parquet")
        if first == second:
            assert opened(tmp_path, tmp_path / "log").manifest.event_columns == {
                "c": "number" if first == "date" else first
            }
            continue
        with pytest.raises(DataError) as caught:
            opened(tmp_path, tmp_path / "log")
        exact = {bool: "booleans"}
        here, there = exact.get(type(other), f"{second}s"), exact.get(type(one), f"{first}s")
        remedy = "; data.vectors or data.lists makes them alike" if (first, second) == ("list", "vector") else ""
        told = f"{tmp_path / 'log' / 'c.parquet'}, column 'c': {here} here, {there} in a.parquet{remedy}"
        assert str(caught.value) == told


@pytest.mark.parametrize("files", [1, 4])
@pytest.mark.parametrize(
    ("contexts", "kind", "read"),
    [
        (["[]", "null", "[0.5, 1]", "[]"], "vector", [None, None, [0.5, 1.0], None]),
        (["[0.5, 1]", "[]", "null", "[]"], "vector", [[0.5, 1.0], None, None, None]),
        (["[]", "[]", '["x"]', "[]"], "list", [[], [], ["x"], []]),
        (["[]", "null", "[]", "[]"], "list", [[], None, [], []]),
    ],
)
def test_empty_lists_of_events_may_be_missing_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int, contexts: list[str], kind: str, read: list[object]
) -> None:
    monkeypatch.setattr("pipelines.ingest.formats.jsonl.BLOCK_BYTES", 10)  # one line each
    (tmp_path / "log").mkdir()
    for n, context in enumerate(contexts):
        with (tmp_path / "log" / f"{n % files}.jsonl").open("a") as lines:
            lines.write(f'{{"user": "u{n}", "item": "i", "c": {context}}}\n')
    data = opened(tmp_path, tmp_path / "log")
    assert data.manifest.event_columns == {"c": kind}
    context = data.context("train")
    users = data.users["user_id"].gather(data.events("train").user)
    assert context is not None
    got = dict(zip(users, context.collect()["c"].to_list(), strict=True))
    assert [got[f"u{n}"] for n in range(4)] == read


@pytest.mark.parametrize(("first", "second"), [("[]", '"x"'), ('"x"', "[]")])
def test_empty_lists_beside_strings_are_refused(tmp_path: Path, first: str, second: str) -> None:
    (tmp_path / "log").mkdir()
    for name, value in (("a", first), ("b", second)):
        (tmp_path / "log" / f"{name}.jsonl").write_text(f'{{"user": "u", "item": "i", "c": {value}}}\n')
    with pytest.raises(
        DataError, match=r"b\.jsonl, column 'c': (lists here, strings|strings here, lists) in a\.jsonl$"
    ):
        opened(tmp_path, tmp_path / "log")


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
def test_a_file_without_rows_is_refused_as_such(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"e.{suffix}"
    frame = pl.DataFrame(schema={"user": pl.String, "item": pl.String})
    if suffix == "parquet":
        frame.write_parquet(path)
    else:
        frame.write_csv(path, separator="," if suffix == "csv" else "\t")
    with pytest.raises(DataError, match=f"e.{suffix}: there are no rows"):
        opened(tmp_path, path)


@pytest.mark.parametrize("quote", ["", '"'])
@pytest.mark.parametrize("separator", [";", "|", "\t"])
def test_a_csv_with_another_separator_is_read(tmp_path: Path, separator: str, quote: str) -> None:
    rows = [
        tuple(f"{quote}{name}{quote}" for name in ("user", "item", "note")),
        ("u1", "a", '"x,;|y"'),
        ("u2", "b", ""),
    ]
    (tmp_path / "e.csv").write_text("".join(separator.join(row) + "\n" for row in rows))
    (tmp_path / "i.csv").write_text(f"item{separator}title\na{separator}A, one\nb{separator}B\n")
    data = opened(tmp_path, tmp_path / "e.csv", items=tmp_path / "i.csv")
    assert pairs(data) == EVENTS and data.items["title"].to_list() == ["A, one", "B"]
    context = data.context("train")
    assert context is not None and context.collect()["note"].to_list() == ["x,;|y", None]


def test_a_header_that_is_no_csv_is_refused(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text('"user"x,item\nu1,a\n')
    with pytest.raises(DataError, match=r"e.csv, row 1: not valid CSV"):
        opened(tmp_path, tmp_path / "e.csv")


def test_a_comma_wins_over_other_separators_in_names(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("user,item,a;b;c|d\nu1,a,1\nu2,b,2\n")
    data = opened(tmp_path, tmp_path / "e.csv")
    assert pairs(data) == EVENTS and data.manifest.event_columns == {"a;b;c|d": "number"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("E.CSV", "user,item\nu1,a\nu2,b\n"),
        ("E.Tsv", "user\titem\nu1\ta\nu2\tb\n"),
        ("E.JSONL", '{"user":"u1","item":"a"}\n{"user":"u2","item":"b"}\n'),
        ("E.TXT", "u1 a\nu2 b\n"),
        ("E.INTER", "user_id:token\titem_id:token\nu1\ta\nu2\tb\n"),
    ],
)
@pytest.mark.parametrize("folder", [False, True])
def test_endings_may_be_in_upper_case(tmp_path: Path, name: str, text: str, folder: bool) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / name).write_text(text)
    (tmp_path / "I.CSV").write_text("item,title\na,A\nb,B\n")
    data = opened(tmp_path, source if folder else source / name, items=tmp_path / "I.CSV")
    assert pairs(data) == EVENTS


def test_names_in_upper_case_mean_the_same(tmp_path: Path) -> None:
    (tmp_path / "TRAIN.CSV").write_text("user_id,item_id\na,x\nb,y\nc,x\n")
    (tmp_path / "Test.csv").write_text("user_id,item_id\na,y\n")
    (tmp_path / "Items.CSV").write_text("item_id,title\nx,X\ny,Y\nz,Z\n")
    manifest = prepare.run(DataConfig(valid_share=0.0), tmp_path, tmp_path / "out")
    assert manifest.split.kind == "given"
    assert manifest.events["test"] == 1
    assert manifest.items == 3


@pytest.mark.parametrize("what", ["items", "users"])
def test_two_files_of_one_kind_beside_the_events_are_refused(tmp_path: Path, what: str) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "events.csv").write_text("user_id,item_id\nu1,a\nu2,b\n")
    (source / f"{what}.csv").write_text(f"{what[:-1]}_id,x\na,1\n")
    (source / f"{what}.jsonl").write_text(f'{{"{what[:-1]}_id": "a", "x": 2}}\n')
    with pytest.raises(DataError, match=rf"several files of {what}: {what}\.csv, {what}\.jsonl"):
        opened(tmp_path, source)


@pytest.mark.parametrize(("ending", "bom"), [(".json", ""), (".JSON.gz", ""), (".json", "\ufeff")])
def test_json_lines_may_be_named_json_as_those_of_yelp_and_amazon_are(tmp_path: Path, ending: str, bom: str) -> None:
    def written(name: str, *lines: str) -> Path:
        raw = (bom + "".join(f"{line}\n" for line in lines)).encode()
        path = tmp_path / f"{name}{ending}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress(raw) if ending.endswith(".gz") else raw)
        return path

    items = written("business", '{"item": "a", "city": "Oslo"}', '{"item": "b", "city": "Bergen"}')
    events = written("review", *(f'{{"user": "{user}", "item": "{item}"}}' for user, item in EVENTS))
    data = opened(tmp_path, events, items=items)
    assert pairs(data) == sorted(EVENTS)
    assert data.items.sort("item_id")["city"].to_list() == ["Oslo", "Bergen"]
    written("log/part-0", '{"user": "u1", "item": "a"}')  # as Spark names what it writes
    written("log/part-1", '{"user": "u2", "item": "b"}')
    written("log/items", '{"item": "a", "city": "Oslo"}', '{"item": "b", "city": "Bergen"}')
    of_folder = opened(tmp_path, tmp_path / "log")
    assert of_folder.manifest.source.format == "jsonl"
    assert pairs(of_folder) == sorted(EVENTS)
    assert of_folder.manifest.item_columns == {"city": "string"}


def test_a_json_file_beside_events_of_another_ending_holds_no_events(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "part-0.jsonl").write_text('{"user": "u1", "item": "a"}\n{"user": "u2", "item": "b"}\n')
    (tmp_path / "log" / "schema.json").write_text('{"user": "string"}\n')
    assert pairs(opened(tmp_path, tmp_path / "log")) == sorted(EVENTS)
    assert f"{tmp_path / 'log'}: not read: schema.json\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("events", "beside", "format"),
    [
        ("events.json", {"items.jsonl": '{"item": "a", "city": "Oslo"}\n{"item": "b"}\n'}, "jsonl"),
        ("part-0.json", {"README.txt": "hello this is\n", "License.TXT": "free\n"}, "jsonl"),
        # As S3Rec publishes them: the lists hold the events.
        ("Beauty.txt", {"Beauty_item2attributes.json": '{"a": ["red"], "b": []}'}, "pairs"),
    ],
)
def test_json_lines_beside_items_or_a_readme_are_the_events(
    tmp_path: Path, events: str, beside: dict[str, str], format: str
) -> None:
    (tmp_path / "log").mkdir()
    lines = '{"user": "u1", "item": "a"}\n{"user": "u2", "item": "b"}\n' if format == "jsonl" else "u1 a\nu2 b\n"
    for name, text in {events: lines, **beside}.items():
        (tmp_path / "log" / name).write_text(text)
    data = opened(tmp_path, tmp_path / "log")
    assert (data.manifest.source.format, pairs(data)) == (format, sorted(EVENTS))
    assert data.manifest.item_columns == ({"city": "string"} if "items.jsonl" in beside else {})


def test_rows_that_a_quote_of_tab_separated_text_swallows_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"u{n}\ti{n % 3}\tsong\n" for n in range(40)]
    rows[9], rows[19] = 'u9\ti0\t"Weird Al\n', 'u19\ti1\tMix 12"\n'  # lines 11 and 21
    (tmp_path / "log.tsv").write_text("user\titem\tname\n" + "".join(rows))
    assert len(pairs(opened(tmp_path, tmp_path / "log.tsv"))) == 30
    said = capsys.readouterr().err
    assert f"warning: {tmp_path / 'log.tsv'}, row 11: a value in quotes holds tabs and line ends" in said
    rows[9], rows[19] = 'u9\ti0\t"two\nlines"\n', '"u\t19"\ti1\t"two\nlines"\n'
    (tmp_path / "log.tsv").write_text("user\titem\tname\n" + "".join(rows))
    assert len(pairs(opened(tmp_path, tmp_path / "log.tsv"))) == 40
    assert "in quotes" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        # As Last.fm, Amazon's ratings and MIND are published.
        (
            "plays.tsv",
            "user_1\t2009-05-04T23:08:57Z\tf1b1\tDeep Dish",
            "no column of user ids; it has user_1, 2009-.*; if",
        ),
        ("ratings.csv", "A1,B2,5.0,1369699200", "no column of user ids; it has A1, B2, 5.0, 1369699200; if"),
        (
            "news.tsv",
            "N1\tnews\t[]\t[]",
            r"row 1: a column name occurs twice in: N1, news, \[\], \[\]; is this line data\?",
        ),
    ],
)
def test_a_file_without_a_line_of_names_is_told_from_one_with_other_names(
    tmp_path: Path, name: str, line: str, message: str
) -> None:
    (tmp_path / name).write_text(f"{line}\n{line}\n")
    with pytest.raises(DataError, match=message) as caught:
        opened(tmp_path, tmp_path / name, format="csv")
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize("separator", [";", ",", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("start", ["sep=", "\ufeffSEP="])
@pytest.mark.parametrize("name", ["plain", '"quoted"'])
def test_a_first_line_of_excel_that_states_the_separator_is_no_line_of_names(
    tmp_path: Path, separator: str, end: str, start: str, name: str
) -> None:
    """The line counts in the numbers of rows; blank lines do, too, for both readers."""
    path = tmp_path / "e.csv"
    lines = [["user_id", "item_id", "name"], ["u1", "a", name], [], ["u2", "b", name], ["", "c", name]]
    text = end.join([f"{start}{separator}", *map(separator.join, lines), ""])
    path.write_text(text, encoding="utf-8", newline="")
    with pytest.raises(DataError) as caught:
        opened(tmp_path, path)
    assert str(caught.value) == (
        f"{path}, row 6, column 'user_id': no id, got None; --on-bad-rows skip leaves such rows out"
    )
    manifest = prepare.run(DataConfig(), path, tmp_path / "skipped", on_bad_rows="skip")
    assert (manifest.rejected, manifest.roles) == (1, {"user": "user_id", "item": "item_id"})
    assert manifest.event_columns == {"name": "string"}


def test_a_line_like_excel_s_for_another_sign_or_before_tabs_is_a_line_of_names(tmp_path: Path) -> None:
    for name, line in (("e.csv", "sep=:"), ("e.csv", "sep=;x"), ("e.tsv", "sep=;")):
        path = tmp_path / name
        path.write_text(f"{line}\nuser_id\titem_id\nu1\ta\n")
        with pytest.raises(DataError, match="no column of user ids; it has sep="):
            opened(tmp_path, path)


@pytest.mark.parametrize(
    ("name", "what", "format"),
    [
        ("items.csv", "items", "csv"),
        ("Users.TSV", "users", "csv"),
        ("items.csv.gz", "items", "csv"),
        ("users.parquet", "users", "parquet"),
        ("items.jsonl", "items", "jsonl"),
    ],
)
def test_a_file_of_items_or_users_given_as_the_events_is_told_from_one_of_an_unknown_format(
    tmp_path: Path, name: str, what: str, format: str
) -> None:
    path = tmp_path / name
    path.write_bytes(b"")
    with pytest.raises(DataError) as caught:
        opened(tmp_path, path)
    assert str(caught.value) == (
        f"{path}: by its name the file of the {what}; --events takes the events (if these are the events, --format "
        f"{format})"
    )


def test_a_file_of_events_that_is_named_as_items_is_read_with_a_format(tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_text("user_id,item_id\nu1,a\nu2,b\n")
    assert pairs(opened(tmp_path, tmp_path / "items.csv", format="csv")) == EVENTS
    (tmp_path / "items.xls").write_text("user_id,item_id\nu1,a\nu2,b\n")
    with pytest.raises(DataError, match=r"items\.xls: cannot tell the format of items\.xls; name it with --format"):
        opened(tmp_path, tmp_path / "items.xls")


CELL = st.sampled_from(["a", "", '5"', '"5"', 'x""', '30" z', '"say ""hi"""', '"a, b"', '"a\nb"', '"a, 5"""', '""'])
INCHES = [('"Frame, oak"', '20"', '30"', "red"), ('"Frame, ash"', '24"', '36"', "blue"), ('"S, pine"', '9"', '8"', "")]


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(CELL, CELL, CELL, CELL), min_size=1, max_size=8), batch=st.sampled_from([2, 5, 100]))
@example(rows=INCHES, batch=100)
@example(rows=[("a", '"say ""hi"""', '5" z', "plain")] * 6, batch=2)
def test_quotes_are_read_as_python_s_csv_reads_them(tmp_path: Path, rows: list[tuple[str, ...]], batch: int) -> None:
    path = tmp_path / "e.csv"
    path.write_text("a,b,c,d\n" + "".join(",".join(row) + "\n" for row in rows), encoding="utf-8")
    with path.open(encoding="utf-8", newline="") as handle:
        wanted = [tuple(value or None for value in record) for record in csv.reader(handle, strict=True)][1:]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.ingest.formats.delimited.BATCH_ROWS", batch)
        patch.setattr("pipelines.ingest.formats.delimited.PYTHON_ROWS", 3)
        found = [row for each in csv_table(path).read(Rejects(skip=False)) for row in each.drop(ROW).rows()]
    assert found == wanted


def test_inches_in_items_stay_in_their_columns(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("user_id,item_id\nu1,i0\nu2,i1\nu3,i2\n", encoding="utf-8")
    lines = ["item_id,title,width,height,color", *(f"i{n},{','.join(row)}" for n, row in enumerate(INCHES))]
    (tmp_path / "items.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    items = opened(tmp_path, tmp_path / "e.csv", items=tmp_path / "items.csv").items
    assert items.select("item_id", "title", "width", "height", "color").sort("item_id").rows() == [
        ("i0", "Frame, oak", '20"', '30"', "red"),
        ("i1", "Frame, ash", '24"', '36"', "blue"),
        ("i2", "S, pine", '9"', '8"', None),
    ]


def refused_as_table(tmp_path: Path, path: Path, why: str) -> None:
    with pytest.raises(DataError) as caught:
        opened(tmp_path, path)
    assert str(caught.value) == (
        f"{path}: {why}: a table without a header, not lists of items; put a line of names before it (user_id, "
        "item_id, …), with tabs or commas between all columns, and give --format csv; if it does hold lists, give "
        "--format lightgcn"
    )


@pytest.mark.parametrize("cells", ["u{n} i{n} 17000000{n}", "u{n}\ti{n}\t5\t17000000{n}000"])
def test_a_table_without_a_header_whose_lines_end_in_times_is_no_lists(tmp_path: Path, cells: str) -> None:
    path = tmp_path / "clicks.txt"
    path.write_text("".join(cells.format(n=n) + "\n" for n in range(10, 100)), encoding="utf-8")
    last = cells.format(n=10).split()[-1]
    refused_as_table(tmp_path, path, f"each line ends like a time ({last})")
    assert ("u10", last) in pairs(opened(tmp_path, path, format="lightgcn"))


@pytest.mark.parametrize(
    ("text", "user"), [("1 1 2\n1 2 4\n2 1 3.5\n", "1"), ("u1, a, 5, x\nu2, a, 4, x\nu2, b, 4, x\n", "u2,")]
)
def test_ratings_without_a_header_are_no_lists(tmp_path: Path, text: str, user: str) -> None:
    path = tmp_path / "ratings.txt"
    path.write_text(text, encoding="utf-8")
    refused_as_table(
        tmp_path, path, f"each line holds {len(text.splitlines()[0].split())} words, and {user!r} begins several"
    )


@pytest.mark.parametrize(
    "text",
    [
        "u1 1700000001 1700000002\nu2 1700000003 1700000001\n",  # long ids, not times
        "u1 a 1700000001\nu2 b c\n",
        "u1 a 1700000001\nu2 b c 1700000001\n",
        "u1 a 17000000\nu2 b 17000001\n",
        "u1 a 0439893577\nu2 b 0439893577\n",  # ISBNs
        "u1 a b c 1700000001\nu2 a b c 1700000002\n",
    ],
)
def test_lists_whose_items_are_long_numbers_stay_lists(tmp_path: Path, text: str) -> None:
    (tmp_path / "lists.txt").write_text(text, encoding="utf-8")
    data = opened(tmp_path, tmp_path / "lists.txt")
    wanted = [(user, item) for user, *items in map(str.split, text.splitlines()) for item in items]
    assert data.manifest.source.format == "lightgcn" and pairs(data) == sorted(wanted)


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("pairs", "u1\ta\nu2\tb\n"),
        ("lightgcn", "u1\ta\nu2\tb\n"),
        ("recbole", "user_id:token\titem_id:token\nu1\ta\nu2\tb\n"),
        ("jsonl", '{"user": "u1", "item": "a"}\n{"user": "u2", "item": "b"}\n'),
    ],
)
def test_a_format_that_is_given_counts_for_every_ending(tmp_path: Path, format: str, text: str) -> None:
    for name in ("p.tsv", "p.dat"):
        (tmp_path / name).write_text(text, encoding="utf-8")
        data = opened(tmp_path, tmp_path / name, format=format)
        assert (data.manifest.source.format, pairs(data)) == (format, EVENTS)
