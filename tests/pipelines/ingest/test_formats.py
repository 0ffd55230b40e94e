"""Every accepted format: the same few events written in each come out the same, and the real files as they are."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.dataset.dataset import Dataset
from pipelines.errors import DataError
from pipelines.ingest import prepare
from towers.config.sections import Columns, DataConfig

ROWS = [
    ("1", "10", 4.0, 881250949),
    ("1", "20", 5.0, 881250950),
    ("2", "10", 3.0, 881250951),
    ("3", "30", 1.0, 881250952),
]
ALL_TRAIN = DataConfig(valid_share=0, test_share=0)


def opened(tmp_path: Path, events: Path, config: DataConfig = ALL_TRAIN, **options: object) -> Dataset:
    prepare.run(config, events, tmp_path / "out", overwrite=True, **options)
    return Dataset.open(tmp_path / "out")


def pairs(data: Dataset, split: str = "train") -> list[tuple[str, str]]:
    events = data.events(split)
    users, items = data.users["user_id"], data.items["item_id"]
    return sorted((users[int(u)], items[int(i)]) for u, i in zip(events.user, events.item, strict=True))


def csv(folder: Path) -> Path:
    lines = [f"{user},{item},{rating},{time}" for user, item, rating, time in ROWS]
    (folder / "log.csv").write_text("userId,movieId,rating,timestamp\n" + "\n".join(lines) + "\n")
    return folder / "log.csv"


def tsv(folder: Path) -> Path:
    (folder / "log.tsv").write_text(csv(folder).read_text().replace(",", "\t"))
    return folder / "log.tsv"


def parquet(folder: Path) -> Path:
    users, items, ratings, times = zip(*ROWS, strict=True)
    frame = pl.DataFrame(
        {"user": [int(u) for u in users], "item": [float(i) for i in items], "rating": ratings, "ts": times}
    )
    frame.write_parquet(folder / "log.parquet")
    return folder / "log.parquet"


def jsonl(folder: Path) -> Path:
    lines = [f'{{"user_id": {u}, "item_id": "{i}", "rating": {r}, "time": {t}}}' for u, i, r, t in ROWS]
    (folder / "log.jsonl").write_text("\n".join(lines) + "\n\n")
    return folder / "log.jsonl"


def u_data(folder: Path) -> Path:
    (folder / "u.data").write_text("".join(f"{u}\t{i}\t{r:g}\t{t}\n" for u, i, r, t in ROWS))
    return folder / "u.data"


def ratings_dat(folder: Path) -> Path:
    (folder / "ratings.dat").write_text("".join(f"{u}::{i}::{r:g}::{t}\n" for u, i, r, t in ROWS))
    return folder / "ratings.dat"


def ratings_csv(folder: Path) -> Path:
    return csv(folder).rename(folder / "ratings.csv")


def recbole(folder: Path) -> Path:
    header = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
    (folder / "x.inter").write_text(header + "".join(f"{u}\t{i}\t{r:g}\t{t}\n" for u, i, r, t in ROWS))
    return folder / "x.inter"


@pytest.mark.parametrize("write", [csv, tsv, parquet, jsonl, u_data, ratings_dat, ratings_csv, recbole])
def test_each_format_gives_the_same_events(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    source = tmp_path / "source"
    source.mkdir()
    data = opened(tmp_path, write(source))
    train = data.events("train")
    assert pairs(data) == [("1", "10"), ("1", "20"), ("2", "10"), ("3", "30")]
    assert train.time is not None and train.time.tolist() == [881250949, 881250950, 881250951, 881250952]
    assert train.weight is not None and train.weight.tolist() == [4, 5, 3, 1]
    assert data.items["item_id"].to_list() == ["10", "20", "30"]


def test_a_movielens_100k_folder_brings_its_latin_1_movies_and_users(tmp_path: Path) -> None:
    source = tmp_path / "ml"
    source.mkdir()
    u_data(source)
    flags = {"10": "0|1|" + "0|" * 14 + "0|0|1", "20": "|".join("0" * 19), "30": "|".join("0" * 18) + "|1"}
    movies = "".join(f"{item}|Café {item} (1995)|01-Jan-1995||http://x|{flag}\n" for item, flag in flags.items())
    (source / "u.item").write_bytes(movies.encode("latin-1"))
    (source / "u.user").write_text("1|24|M|writer|05201\n2|53|F|other|94043\n3|23|M|none|T8H1N\n")
    data = opened(tmp_path, source)
    # Genres in the order of the README of ml-100k: unknown, Action, …, War, Western.
    assert data.items["genres"].to_list() == [["Action", "Western"], None, ["Western"]]
    assert data.items["title"][0] == "Café 10 (1995)"
    assert data.users.row(0, named=True) == {
        "user_id": "1", "age": 24, "gender": "M", "occupation": "writer", "zip_code": "05201"
    }  # fmt: skip


@pytest.mark.parametrize(("encoding", "end"), [("latin-1", "\x85"), ("utf-8", "\u2028"), ("utf-8", "\x0c")])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_the_lines_of_movies_end_only_where_those_of_ratings_do(
    tmp_path: Path, encoding: str, end: str, line_end: str
) -> None:
    source = tmp_path / "ml"
    source.mkdir()
    ratings_dat(source)
    lines = [f"10::é{end}1::War", "", "20::B::Drama", "30::C", "40::D::War"]
    (source / "movies.dat").write_bytes(line_end.join(lines).encode(encoding))
    with pytest.raises(DataError, match=r"movies\.dat, row 4, column 'line': expected 3 values .*got '30::C'"):
        opened(tmp_path, source)
    lines[3] += "::Drama"
    (source / "movies.dat").write_bytes(line_end.join(lines).encode(encoding))
    data = opened(tmp_path, source)
    assert data.items["title"].to_list() == [f"é{end}1", "B", "C", "D"]
    assert data.items["genres"].to_list() == [["War"], ["Drama"], ["Drama"], ["War"]]


@pytest.mark.parametrize("line", ["10|A|1995|1", "10|A|1995||http://x|" + "|".join("0" * 20)])
def test_a_movie_with_too_few_or_too_many_values_is_refused(tmp_path: Path, line: str) -> None:
    source = tmp_path / "ml"
    source.mkdir()
    u_data(source)
    (source / "u.item").write_text(line + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"u\.item.*expected 24 values between '\|'"):
        opened(tmp_path, source)


def test_a_movielens_1m_folder_and_a_latest_folder_bring_their_movies(tmp_path: Path) -> None:
    old, new = tmp_path / "ml-1m", tmp_path / "ml-latest"
    old.mkdir()
    new.mkdir()
    ratings_dat(old)
    (old / "movies.dat").write_bytes(
        "10::Misérables, Les (1995)::Drama|Musical\n20::B::Drama\n30::C::War\n".encode("latin-1")
    )
    (old / "users.dat").write_text("1::F::1::10::48067\n2::M::56::16::70072\n3::M::25::15::55117\n")
    data = opened(tmp_path, old)
    assert data.items.row(0) == ("10", 2, "Misérables, Les (1995)", ["Drama", "Musical"])
    assert data.manifest.user_columns["age"] == "string"
    ratings_csv(new)
    (new / "movies.csv").write_text('movieId,title,genres\n10,"A, The",Drama|War\n20,B,War\n30,2001,Sci-Fi\n')
    data = opened(tmp_path, new)
    assert data.items["title"].to_list() == ["A, The", "B", "2001"]
    assert data.items["genres"].to_list() == [["Drama", "War"], ["War"], ["Sci-Fi"]]


def test_a_recbole_folder_keeps_the_declared_kinds(tmp_path: Path) -> None:
    source = tmp_path / "rb"
    source.mkdir()
    recbole(source)
    (source / "x.item").write_text(
        'item_id:token\tname:token_seq\tyear:token\tprice:float\n10\tToy "Story\t1995\t1.5\n20\t\t1996\t\n30\tC\t\t2\n'
    )
    data = opened(tmp_path, source)
    assert data.manifest.item_columns == {"name": "list", "year": "string", "price": "number"}
    assert data.items.row(0) == ("10", 2, ["Toy", '"Story'], "1995", 1.5)
    assert data.items["price"].to_list() == [1.5, None, 2.0]


def test_a_lightgcn_folder_gives_the_split_and_a_missing_validation_is_drawn_from_train(tmp_path: Path) -> None:
    source = tmp_path / "lists"
    source.mkdir()
    train = {user: list(range(user, user + 50)) for user in range(40)}
    (source / "train.txt").write_text("".join(f"{u} {' '.join(map(str, items))}\n" for u, items in train.items()))
    (source / "test.txt").write_text("0 60 61\n1\n2 7000\n")
    config = DataConfig(valid_share=0.25)
    data = opened(tmp_path, source, config)
    assert pairs(data, "test") == [("0", "60"), ("0", "61"), ("2", "7000")]
    both = pairs(data) + pairs(data, "valid")
    assert sorted(both) == sorted((str(u), str(i)) for u, items in train.items() for i in items)
    # 2,000 draws of probability 1/4: six deviations are 6 sqrt(2000 * 3/16) = 116.
    assert abs(len(pairs(data, "valid")) - 500) < 116
    assert data.manifest.split.kind == "given" and not data.manifest.timed and data.events("train").time is None
    (source / "valid.txt").write_text("5 900\n")
    assert pairs(opened(tmp_path, source, config), "valid") == [("5", "900")]


def test_pairs_are_in_time_order_and_leave_the_last_out(tmp_path: Path) -> None:
    file = tmp_path / "pairs.txt"
    file.write_text("a x\nb y\na\ty\na z\nb x\n")
    data = opened(tmp_path, file, DataConfig())
    assert data.manifest.source.format == "pairs" and data.manifest.time_unit == "order"
    assert (pairs(data), pairs(data, "valid"), pairs(data, "test")) == (
        [("a", "x"), ("b", "y")], [("a", "y")], [("a", "z"), ("b", "x")]
    )  # fmt: skip


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
def test_a_folder_of_train_and_test_files_is_a_given_split(tmp_path: Path, suffix: str) -> None:
    source = tmp_path / "given"
    source.mkdir()
    parts = {"train": [("u", "a", 1), ("u", "b", 2)], "valid": [("u", "c", 3)], "test": [("u", "d", 4)]}
    for name, rows in parts.items():
        frame = pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")
        path = source / f"{name}.{suffix}"
        {"csv": frame.write_csv, "parquet": frame.write_parquet, "jsonl": frame.write_ndjson}[suffix](path)
    data = opened(tmp_path, source)
    assert [pairs(data, name) for name in parts] == [[("u", "a"), ("u", "b")], [("u", "c")], [("u", "d")]]
    assert data.manifest.split.kind == "given" and data.manifest.timed


def test_a_folder_of_parts_is_read_as_one(tmp_path: Path) -> None:
    source = tmp_path / "parts"
    source.mkdir()
    for number in range(3):
        (source / f"part-{number}.csv").write_text(f"user,item,time,device\nu{number},a,{100 + number},d{number}\n")
    data = opened(tmp_path, source)
    assert pairs(data) == [("u0", "a"), ("u1", "a"), ("u2", "a")]
    context = data.context("train")
    assert context is not None and context.collect()["device"].to_list() == ["d0", "d1", "d2"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "the folder holds no file"),
        (["a.csv", "b.parquet"], r"cannot tell the format of a.csv, b.parquet; name it with --format \(csv"),
        (["notes.md"], "cannot tell the format of notes.md"),
        (["train.csv"], "a given split needs one train and one test file"),
        (["a.inter", "b.inter"], "expected one file of recbole events"),
    ],
)
def test_a_folder_that_says_too_little_is_refused(tmp_path: Path, names: list[str], message: str) -> None:
    source = tmp_path / "odd"
    source.mkdir()
    for name in names:
        (source / name).write_text("user,item\n1,2\n")
    with pytest.raises(DataError, match=message):
        opened(tmp_path, source)


def test_a_missing_path_and_an_unknown_format_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none.csv: no such file or folder"):
        opened(tmp_path, tmp_path / "none.csv")
    with pytest.raises(DataError, match="--format 'xml': allowed are auto, csv, parquet"):
        opened(tmp_path, csv(tmp_path), format="xml")
    with pytest.raises(DataError, match=r"items.xls: no such file"):
        opened(tmp_path, csv(tmp_path), items=tmp_path / "items.xls")


def test_an_id_that_is_no_number_in_a_float_column_is_refused_and_whole_numbers_lose_the_point(tmp_path: Path) -> None:
    pl.DataFrame({"user": [1.0, 2.0], "item": [3, 4]}).write_parquet(tmp_path / "log.parquet")
    assert pairs(opened(tmp_path, tmp_path / "log.parquet")) == [("1", "3"), ("2", "4")]
    pl.DataFrame({"user": [1.0, 2.5], "item": [3, 4]}).write_parquet(tmp_path / "log.parquet")
    with pytest.raises(DataError, match=r"log.parquet, row 2, column 'user': an id must be .* got '2.5'"):
        opened(tmp_path, tmp_path / "log.parquet")


@pytest.mark.parametrize(("value", "shown"), [(1.5, "1.5"), (2050.0, "2050.0")])
def test_an_id_that_a_float16_does_not_hold_exactly_is_refused(tmp_path: Path, value: float, shown: str) -> None:
    ids = pl.Series("item", [3.0, value], dtype=pl.Float32).cast(pl.Float16)
    pl.DataFrame({"user": [1, 2], "item": ids}).write_parquet(tmp_path / "log.parquet")
    with pytest.raises(DataError, match=rf"log.parquet, row 2, column 'item': an id must be .* got '{shown}'"):
        opened(tmp_path, tmp_path / "log.parquet")


ID = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=6).filter(lambda text: text.strip())
# Text ids that look like 1 and 1.0 in one column are refused on purpose.
WORDS = ID.filter(lambda text: not text.strip().replace(".", "").isdigit())


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    events=st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=8, unique=True),
    kind=st.sampled_from(["csv", "jsonl", "parquet"]),
)
def test_any_ids_survive_any_format(tmp_path: Path, events: list[tuple[str, str]], kind: str) -> None:
    frame = pl.DataFrame(events, schema={"user_id": pl.String, "item_id": pl.String}, orient="row")
    path = tmp_path / f"any.{kind}"
    {"csv": frame.write_csv, "parquet": frame.write_parquet, "jsonl": frame.write_ndjson}[kind](path)
    assert pairs(opened(tmp_path, path)) == sorted(events)


@pytest.mark.parametrize(
    ("name", "users", "items", "counts", "kind"),
    [
        ("ml-100k", 943, 1682, (79_999, 10_001, 10_000), "global_time"),
        ("gowalla", 29_858, 40_981, (719_081, 91_047, 217_242), "given"),
        ("ml-1m-split", 6_022, 3_043, (None, None, 99_455), "given"),
        ("beauty", 40_226, 54_542, (353_962 - 2 * 40_226, 40_226, 40_226), "leave_last_out"),
        ("beauty-s3rec", 22_363, 12_101, (198_502 - 2 * 22_363, 22_363, 22_363), "leave_last_out"),
    ],
)
def test_real_files_as_they_are(
    tmp_path: Path,
    real_data: Callable[[str], Path],
    name: str,
    users: int,
    items: int,
    counts: tuple[int | None, ...],
    kind: str,
) -> None:
    # The figures of gowalla, ml-1m-split and both beauties are those their sources publish.
    folder = real_data(name)
    config = DataConfig(validation="given" if name == "gowalla" else "auto")
    data = opened(tmp_path, folder / "beauty.txt" if name == "beauty" else folder, config)
    assert (data.manifest.users, data.manifest.items, data.manifest.split.kind) == (users, items, kind)
    found = tuple(data.manifest.events.values())
    assert all(
        count is None or abs(count - got) <= (2 if kind == "global_time" else 0)
        for count, got in zip(counts, found, strict=True)
    )
    totals = {"ml-100k": 100_000, "gowalla": 1_027_370, "ml-1m-split": 895_699}
    assert sum(found) == {**totals, "beauty": 353_962, "beauty-s3rec": 198_502}[name]
    assert int(np.sum(data.items["train_count"].to_numpy())) == found[0]


def test_the_item_attributes_beside_the_sequences_of_beauty_are_a_list_column(
    tmp_path: Path, real_data: Callable[[str], Path]
) -> None:
    folder = real_data("beauty-s3rec")
    data = opened(tmp_path, folder, DataConfig(), items=folder / "item_attributes.json")
    assert data.manifest.item_columns == {"attributes": "list"}
    # Every item has some; the figures are those of a count in the file.
    words = data.items["attributes"]
    assert (words.len(), words.null_count(), words.list.len().min()) == (12_101, 0, 1)
    assert data.items.filter(pl.col("item_id") == "4")["attributes"].to_list() == [["1", "2", "3"]]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("e.csv", b"\xef\xbb\xbfuser,item,place\r\nu1,a,x\r\n\r\nu2,b,\r\n"),
        ("e.txt", b"\xef\xbb\xbfu1 a\r\nu2 b\r\n"),
        ("e.jsonl", b'\xef\xbb\xbf{"user":"u1","item":"a"}\r\n\r\n{"user":"u2","item":"b"}\r\n'),
        ("ratings.dat", b"\xef\xbb\xbfu1::a::3::5\r\nu2::b::4::6\r\n"),
    ],
)
def test_files_written_on_windows_are_read(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert pairs(opened(tmp_path, tmp_path / name)) == [("u1", "a"), ("u2", "b")]


def test_users_of_movielens_written_on_windows_are_read(tmp_path: Path) -> None:
    source = tmp_path / "ml"
    source.mkdir()
    ratings_dat(source)
    users = "1::F::1::10::48067\r\n2::M::56::16::70072\r\n3::M::25::15::55117\r\n"
    (source / "users.dat").write_bytes(b"\xef\xbb\xbf" + users.encode())
    found = opened(tmp_path, source).users
    assert found.select("user_id", "zip_code").rows() == [("1", "48067"), ("2", "70072"), ("3", "55117")]


def test_a_key_that_first_comes_late_in_json_lines_is_a_column(tmp_path: Path) -> None:
    lines = [f'{{"user": "u{n}", "item": "i"}}\n' for n in range(3_000)]
    late = '{"user": "late", "item": "i", "device": "tv"}\n'
    (tmp_path / "log.jsonl").write_text("".join(lines) + late)
    data = opened(tmp_path, tmp_path / "log.jsonl")
    assert data.manifest.event_columns == {"device": "string"} and data.manifest.events["train"] == 3_001
    (tmp_path / "log.jsonl").write_text("".join(lines) + late.replace('"device": "tv"', '"weight": 0'))
    with pytest.raises(DataError, match=r"log.jsonl, row 1, column 'weight': no weight"):
        opened(tmp_path, tmp_path / "log.jsonl")


def test_a_key_that_one_file_of_json_lines_lacks_is_missing_there(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "a.jsonl").write_text('{"user": "u1", "item": "i", "km": 1.5}\n{"user": "u2", "item": "i"}\n')
    (tmp_path / "log" / "b.jsonl").write_text('{"item": "i", "user": "u3", "place": "x"}\n')
    data = opened(tmp_path, tmp_path / "log")
    context = data.context("train")
    assert data.manifest.event_columns == {"km": "number", "place": "string"} and context is not None
    rows = context.select("km", "place").collect().rows()
    assert sorted(rows, key=str) == [(1.5, None), (None, "x"), (None, None)]


def test_json_objects_are_left_unread_with_a_line_for_each_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").mkdir()
    for name, user in (("a", "u1"), ("b", "u2")):
        first = f'{{"user": "{user}", "item": "i", "style": null}}\n'
        second = f'{{"user": "{user}", "item": "j", "style": {{"Color:": " Red"}}, "vote": "2"}}\n'
        (tmp_path / "log" / f"{name}.jsonl").write_text(first + second)
    items = tmp_path / "goods.jsonl"
    # Of items a rating is no role.
    one = '{"item": "i", "details": {}, "rating": {"rate": 3.9, "count": 2}, "city": "Oslo"}\n'
    items.write_text(one + '{"item": "j", "details": "x", "city": "Rome"}\n')
    data = opened(tmp_path, tmp_path / "log", items=items)
    assert (data.manifest.event_columns, data.manifest.item_columns) == ({"vote": "string"}, {"city": "string"})
    said = capsys.readouterr().err
    assert said.count("they hold objects") == 2
    assert f"{tmp_path / 'log'}: not read, because they hold objects: style\n" in said
    assert f"{items}: not read, because they hold objects: details, rating\n" in said


@pytest.mark.parametrize("role", ["user", "item", "time", "code"])
def test_json_objects_in_a_column_with_a_role_are_refused(tmp_path: Path, role: str) -> None:
    row = {"user": "u1", "item": "i", "time": 5, "code": 1} | {role: {"$oid": "5f"}}  # as MongoDB writes
    (tmp_path / "e.json").write_text(f"{json.dumps(row)}\n")
    config = DataConfig(columns=Columns(weight="code"))
    with pytest.raises(DataError, match=rf"e.json, row 1, column '{role}': wrong type: an object"):
        prepare.run(config, tmp_path / "e.json", tmp_path / "out")


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_a_key_of_objects_in_one_file_is_left_unread_in_all(
    tmp_path: Path, names: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").mkdir()
    for name, style in zip(names, ("{}", '"x"'), strict=True):
        (tmp_path / "log" / f"{name}.jsonl").write_text(f'{{"user": "{name}", "item": "i", "style": {style}}}\n')
    assert opened(tmp_path, tmp_path / "log").manifest.event_columns == {}
    assert "not read, because they hold objects: style\n" in capsys.readouterr().err


def test_an_id_of_the_database_beside_those_of_the_events_is_left_unread(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = {"_id": {"$oid": "5f"}}  # as mongoexport writes into every row
    rows = [key | {"user_id": user, "item_id": item, "timestamp": time} for user, item, _, time in ROWS]
    (tmp_path / "e.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    items = [key | {"item_id": item, "title": f"title {item}"} for item in sorted({row[1] for row in ROWS})]
    (tmp_path / "i.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in items))
    data = opened(tmp_path, tmp_path / "e.jsonl", items=tmp_path / "i.jsonl")
    assert pairs(data) == sorted(row[:2] for row in ROWS) and data.manifest.item_columns == {"title": "string"}
    assert capsys.readouterr().err.count("not read, because they hold objects: _id\n") == 2
    for name in ("id", "isbn"):
        items = [key | {name: row["item_id"], "title": row["title"]} for row in items]
        (tmp_path / "i.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in items))
        items = [key | {"item_id": row[name], "title": row["title"]} for row in items]
        data = opened(tmp_path, tmp_path / "e.jsonl", items=tmp_path / "i.jsonl")
        assert data.manifest.item_columns == {"title": "string"}


def test_json_objects_for_the_ids_of_items_are_refused(tmp_path: Path) -> None:
    (tmp_path / "i.jsonl").write_text('{"id": {"$oid": "10"}, "title": "x"}\n')
    with pytest.raises(DataError, match=r"i.jsonl, row 1, column 'id': wrong type: an object"):
        opened(tmp_path, csv(tmp_path), items=tmp_path / "i.jsonl")


@pytest.mark.parametrize("separator", ["\t", ",", ";"])
def test_a_table_in_a_text_file_is_no_list_of_items(tmp_path: Path, separator: str) -> None:
    lines = [["user_id", "item_id", "rating", "timestamp"], *([*map(str, row)] for row in ROWS)]
    (tmp_path / "clicks.txt").write_text("\n".join(map(separator.join, lines)) + "\n")
    with pytest.raises(
        DataError, match=r"clicks\.txt: a table with a header \(user_id.*timestamp\), .*give --format csv"
    ):
        opened(tmp_path, tmp_path / "clicks.txt")
    assert pairs(opened(tmp_path, tmp_path / "clicks.txt", format="csv")) == sorted(row[:2] for row in ROWS)


@pytest.mark.parametrize("bad", [[], ['"1","2","3","4","5"']], ids=["whole", "beside a bad row"])
def test_a_quoted_empty_cell_is_a_missing_value(tmp_path: Path, bad: list[str]) -> None:
    prices = ["", "1", "2", ""]
    rows = [f'"{user}","{item}","{time}","{price}"' for (user, item, _, time), price in zip(ROWS, prices, strict=True)]
    (tmp_path / "e.csv").write_text("\n".join(["user_id,item_id,timestamp,price", *rows, *bad]) + "\n")
    data = opened(tmp_path, tmp_path / "e.csv", on_bad_rows="skip")
    assert data.manifest.event_columns == {"price": "number"} and data.manifest.rejected == len(bad)


def test_a_value_of_any_length_is_read_beside_a_bad_row(tmp_path: Path) -> None:
    note = "x" * 200_000
    rows = [f"{user},{item},{time},{note}" for user, item, _, time in ROWS]
    (tmp_path / "e.csv").write_text("\n".join(["user_id,item_id,timestamp,note", *rows, "1,2,3,4,5"]) + "\n")
    data = opened(tmp_path, tmp_path / "e.csv", on_bad_rows="skip")
    assert len(pairs(data)) == len(ROWS) and data.manifest.rejected == 1


def test_a_header_of_lists_is_a_line_to_remove(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("user item\n0 0\n0 1\n1 0\n")
    with pytest.raises(DataError, match=r"a table with a header \(user item\), not lists of items; remove that line$"):
        opened(tmp_path, tmp_path / "x.txt")


def test_a_quote_left_open_in_the_header_reads_no_whole_file(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text('user_id,item_id,timestamp,"title\n' + "1,2,3,some title\n" * 20_000)
    with pytest.raises(DataError, match=r"row 1: not valid CSV: field larger than field limit \(131072\)"):
        opened(tmp_path, tmp_path / "e.csv")


def test_ids_of_other_files_that_stand_for_none_are_not_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "items.csv").write_text("item_id,title\n10,a\n20,b\n30,c\nnan,d\n")
    opened(tmp_path, csv(tmp_path), items=tmp_path / "items.csv")
    assert "stands for no item" not in capsys.readouterr().err


def test_ids_that_stand_for_none_and_padded_ones_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = [("\\N", "10", 1), ("\\N", "20", 2), ("1", " 10", 3), ("nan", "10", 4)]
    rows = [*((user, item, time) for user, item, _, time in ROWS), *odd]
    pl.DataFrame(rows, ["user_id", "item_id", "timestamp"], orient="row").write_csv(tmp_path / "e.csv")
    opened(tmp_path, tmp_path / "e.csv")
    said = capsys.readouterr().err
    assert r"warning: 2 events of the user '\\N': if it stands for no user, leave these rows out" in said
    assert "warning: 1 event of the user 'nan': if it stands for no user, leave these rows out" in said
    assert "warning: 1 item id with blanks around them, ' 10' for one: they are others than without" in said


def test_a_lone_carriage_return_ends_no_row(tmp_path: Path) -> None:
    rows = "\n".join(f"{user},{item},{time}" for user, item, _, time in ROWS)
    (tmp_path / "e.csv").write_text(f"user_id,item_id,timestamp\n{rows}\n")
    lines = ["item_id,title", '10,5" nail', '20,"one\rtwo"', "30,three"]  # the first quote sends it to the slow reader
    (tmp_path / "items.csv").write_text("\n".join(lines) + "\n", newline="")
    data = opened(tmp_path, tmp_path / "e.csv", items=tmp_path / "items.csv")
    titles = dict(data.items.select("item_id", "title").iter_rows())
    assert (titles["10"], titles["20"], titles["30"], data.manifest.items) == ('5" nail', "one\rtwo", "three", 3)
    lines[2] = "20,one\rtwo"
    (tmp_path / "items.csv").write_text("\n".join(lines) + "\n", newline="")
    # Where the fast reader reads it, rows keep their numbers.
    (tmp_path / "plain.csv").write_text('item_id,title\n10,"a, b"\n20,one\rtwo\n\n30,three\n,x\n', newline="")
    with pytest.raises(DataError, match=r"plain\.csv, row 6, column 'item_id': no id"):
        opened(tmp_path, tmp_path / "e.csv", items=tmp_path / "plain.csv")
    with pytest.raises(
        DataError, match=r"items\.csv, row 3: not valid CSV: a carriage return in a value without quotes"
    ):
        opened(tmp_path, tmp_path / "e.csv", items=tmp_path / "items.csv")


@pytest.mark.parametrize("prices", [[".5", "1.5", "-.25"], [" 5", "7 ", "6"]])
def test_numbers_that_other_programs_write_are_numbers(tmp_path: Path, prices: list[str]) -> None:
    rows = [f"{user},{item},{time},{price}" for (user, item, _, time), price in zip(ROWS[:3], prices, strict=True)]
    (tmp_path / "e.csv").write_text("\n".join(["user_id,item_id,timestamp,price", *rows]) + "\n")
    assert opened(tmp_path, tmp_path / "e.csv").manifest.event_columns == {"price": "number"}
