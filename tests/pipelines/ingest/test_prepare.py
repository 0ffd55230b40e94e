"""`towers prepare` on small files with known answers: mapping, filters, order, manifest, and all or nothing."""

import json
from datetime import date, time
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pipelines.dataset.dataset import Dataset
from pipelines.dataset.leaks import refuse_leaks
from pipelines.errors import DataError
from pipelines.ingest import prepare
from serving.files.staging import OutputExistsError
from towers.config.sections import Columns, DataConfig

EVENTS = """\
user_id,item_id,time,rating,event_type,device
u1,a,100,5,view,phone
u2,b,200,3,buy,tv
u1,b,300,4,buy,phone
u3,c,400,1,view,
u1,a,500,2,view,tv
u2,a,600,5,view,phone
u3,a,700,4,buy,phone
u1,c,800,5,buy,tv
"""


def prepared(tmp_path: Path, text: str = EVENTS, **settings: object) -> Dataset:
    file = tmp_path / "events.csv"
    file.write_text(text)
    prepare.run(DataConfig(**settings), file, tmp_path / "out", overwrite=True)
    return Dataset.open(tmp_path / "out")


def triples(data: Dataset, split: str) -> list[tuple[str, str, int]]:
    events = data.events(split)
    users, items = data.users["user_id"].to_list(), data.items["item_id"].to_list()
    times = [0] * len(events) if events.time is None else events.time.tolist()
    return [(users[u], items[i], t) for u, i, t in zip(events.user, events.item, times, strict=True)]


def test_global_time_split_of_a_csv_is_sorted_numbered_and_counted(tmp_path: Path) -> None:
    data = prepared(tmp_path, valid_share=0.2, test_share=0.2, duplicates="keep")
    # 8 events, the last round(3.2) = 3 held out, of them round(1.6) = 2 test.
    assert triples(data, "train") == [
        ("u1", "a", 100),
        ("u1", "b", 300),
        ("u1", "a", 500),
        ("u2", "b", 200),
        ("u3", "c", 400),
    ]
    assert triples(data, "valid") == [("u2", "a", 600)]
    assert triples(data, "test") == [("u1", "c", 800), ("u3", "a", 700)]
    assert data.manifest.split.boundaries == {"valid": 600, "test": 700}
    assert data.items.rows() == [("a", 2), ("b", 2), ("c", 1)]
    assert data.users["user_id"].to_list() == ["u1", "u2", "u3"]
    train = data.events("train")
    assert train.offsets.tolist() == [0, 3, 4, 5]
    assert train.history_end is not None and train.history_end.tolist() == [0, 1, 2, 3, 4]
    assert train.weight is not None and train.weight.tolist() == [5, 4, 2, 3, 1]
    context = data.context("train")
    assert context is not None and context.collect()["device"].to_list() == ["phone", "phone", "tv", "tv", None]
    assert data.manifest.time_unit == "s" and data.manifest.timed and data.manifest.weighted
    assert data.manifest.event_columns == {"device": "string"}


def test_events_of_weight_0_lie_in_a_split_of_their_own(tmp_path: Path) -> None:
    lines = ["u1,a,1,5,tv", "u1,b,1,0,tv", "u2,a,1,0,web", "u1,c,2,4,web", "u1,d,2,-1,tv", "u2,b,3,1,tv", "u1,e,9,0,"]
    text = "\n".join(["user,item,time,rating,device", *lines]) + "\n"
    data = prepared(tmp_path, text, valid_share=0, test_share=0.15)
    assert data.parts() == [
        "train", "train-impressions", "valid", "valid-impressions", "test", "test-impressions"
    ]  # fmt: skip
    assert data.manifest.events == {"train": 6, "valid": 0, "test": 1}
    assert triples(data, "train") == [("u1", "a", 1), ("u1", "c", 2), ("u2", "b", 3)]
    assert triples(data, "train-impressions") == [("u1", "b", 1), ("u1", "d", 2), ("u2", "a", 1)]
    assert (triples(data, "test"), triples(data, "test-impressions")) == ([], [("u1", "e", 9)])
    shown, context = data.events("train-impressions"), data.context("train-impressions")
    assert shown.weight is not None and shown.weight.tolist() == [0, -1, 0] and shown.history_end is None
    # b follows one event of its user, d two, and the a of u2 none.
    assert shown.place is not None and shown.place.tolist() == [1, 2, 0] and shown.place.dtype == np.int32
    assert context is not None and context.collect()["device"].to_list() == ["tv", "tv", "web"]
    assert data.items.filter(item_id="b")["train_count"].item() == 2
    # Without such events there are no such splits.
    assert prepared(tmp_path, text.replace(",0,", ",1,").replace(",-1,", ",1,")).parts() == ["train", "valid", "test"]


@pytest.mark.parametrize(("duplicates", "times"), [("first", [100]), ("last", [500]), ("keep", [100, 500])])
def test_a_repeated_pair_keeps_the_event_asked_for(tmp_path: Path, duplicates: str, times: list[int]) -> None:
    data = prepared(tmp_path, duplicates=duplicates, valid_share=0, test_share=0)
    assert [time for user, item, time in triples(data, "train") if (user, item) == ("u1", "a")] == times
    assert data.manifest.dropped.get("duplicates", 0) == 2 - len(times)


@pytest.mark.parametrize(
    ("duplicates", "taken", "shown"), [("first", [2], [1]), ("last", [5], [4]), ("keep", [2, 5], [1, 4])]
)
def test_an_impression_and_what_was_taken_are_not_duplicates(
    tmp_path: Path, duplicates: str, taken: list[int], shown: list[int]
) -> None:
    lines = ["u1,a,1,0", "u1,a,2,5", "u1,a,4,-1", "u1,a,5,4", "u1,b,3,4"]
    text = "\n".join(["user,item,time,rating", *lines]) + "\n"
    data = prepared(tmp_path, text, duplicates=duplicates, valid_share=0, test_share=0)
    times = [[time for _, item, time in triples(data, name) if item == "a"] for name in ("train", "train-impressions")]
    assert times == [taken, shown]


def test_no_leak_is_found_where_an_item_shown_in_training_is_taken_in_the_test(tmp_path: Path) -> None:
    lines = ["u1,a,1,0", "u1,b,2,5", "u2,a,3,4", "u2,b,4,4", "u1,a,9,5"]
    text = "\n".join(["user,item,time,rating", *lines]) + "\n"
    data = prepared(tmp_path, text, valid_share=0, test_share=0.2)
    assert (triples(data, "train-impressions"), triples(data, "test")) == ([("u1", "a", 1)], [("u1", "a", 9)])
    refuse_leaks(data)


def test_event_types_and_minimum_weight_keep_only_what_they_name(tmp_path: Path) -> None:
    data = prepared(tmp_path, event_types=("buy",), min_weight=4, valid_share=0, test_share=0)
    assert triples(data, "train") == [("u1", "b", 300), ("u1", "c", 800), ("u3", "a", 700)]
    assert data.manifest.dropped == {"event_types": 4, "min_weight": 1}


def test_minimum_counts_are_applied_until_nothing_changes(tmp_path: Path) -> None:
    # d has one event; without it u4 has one; without u4 item c has one; without c, u3 has one; then a and b remain.
    pairs = ["u1 a", "u1 b", "u2 a", "u2 b", "u3 a", "u3 c", "u4 c", "u4 d"]
    text = "user,item\n" + "\n".join(pair.replace(" ", ",") for pair in pairs) + "\n"
    data = prepared(tmp_path, text, min_user_events=2, min_item_events=2, valid_share=0, test_share=0)
    assert {(u, i) for u, i, _ in triples(data, "train")} == {("u1", "a"), ("u1", "b"), ("u2", "a"), ("u2", "b")}
    assert data.manifest.dropped == {"min_counts": 4}


def test_named_columns_win_over_usual_names(tmp_path: Path) -> None:
    text = "user,who,thing,when\nx,u1,a,5\nx,u2,b,6\n"
    columns = Columns(user="who", item="thing", time="when")
    data = prepared(tmp_path, text, columns=columns, valid_share=0, test_share=0)
    assert triples(data, "train") == [("u1", "a", 5), ("u2", "b", 6)]
    assert data.manifest.event_columns == {"user": "string"}


@pytest.mark.parametrize(
    ("header", "columns", "message"),
    [
        (
            "person,item",
            Columns(),
            r"events.csv: no column of user ids; it has person, item; name it: --config default --set "
            r"data.columns.user=NAME, or user = \"NAME\" under \[data.columns\] of the recipe that --config names$",
        ),
        ("user,itm", Columns(), r"no column of item ids; .*did you mean 'itm'\?"),
        ("user,item", Columns(time="tme"), r"no column 'tme' \(data.columns.time\); it has user, item"),
        ("user,item,when", Columns(time="whn"), r"no column 'whn' .*did you mean 'when'\?"),
        ("user,item", Columns(user="item"), r"column 'item' cannot be both data.columns.user and .item"),
        ("user,user", Columns(), r"a column name occurs twice"),
    ],
)
def test_a_missing_column_names_the_file_its_columns_and_the_nearest(
    tmp_path: Path, header: str, columns: Columns, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        prepared(tmp_path, f"{header}\n" + ",".join("12345"[: header.count(",") + 1]) + "\n", columns=columns)


@pytest.mark.parametrize(
    ("header", "columns", "roles"),
    [
        ("user,event,x", Columns(item="event"), {"user": "user", "item": "event"}),
        ("user,event,action", Columns(item="event"), {"user": "user", "item": "event", "type": "action"}),
        ("uid,user_id,x", Columns(item="user_id"), {"user": "uid", "item": "user_id"}),
        ("user,item,date", Columns(weight="date"), {"user": "user", "item": "item", "weight": "date"}),
        ("user,asin,overall", Columns(item="asin"), {"user": "user", "item": "asin", "weight": "overall"}),
    ],
)
def test_a_column_that_the_recipe_maps_has_no_other_role_by_its_name(
    tmp_path: Path, header: str, columns: Columns, roles: dict[str, str]
) -> None:
    assert prepared(tmp_path, f"{header}\n1,2,3\n4,5,6\n", columns=columns).manifest.roles == roles


@pytest.mark.parametrize(
    ("header", "columns", "roles"),
    [
        ("user,event,x", Columns(item="event", type="event"), "item and .type"),
        ("user_id,film,x", Columns(item="user_id"), "user and .item"),
    ],
)
def test_a_column_of_two_roles_is_refused(tmp_path: Path, header: str, columns: Columns, roles: str) -> None:
    with pytest.raises(DataError) as caught:
        prepared(tmp_path, f"{header}\n1,2,3\n", columns=columns)
    column = header.split(",")[roles.startswith("item")]
    assert str(caught.value) == (f"{tmp_path / 'events.csv'}: column {column!r} cannot be both data.columns.{roles}")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"event_types": ("buy",)}, "data.event_types is set, but no column of types"),
        ({"min_weight": 3.0}, "data.min_weight is set, but no weight column"),
        ({"split": "global_time"}, "'global_time' needs a time column"),
        ({"split": "leave_last_out"}, "'leave_last_out' needs a time column"),
        ({"split": "given"}, "'given' needs a folder with train and test files"),
        ({"min_user_events": 9}, "no event is left with data.min_user_events = 9"),
    ],
)
def test_a_setting_that_the_file_cannot_serve_is_refused(
    tmp_path: Path, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        prepared(tmp_path, "user,item\nu1,a\nu2,b\n", **settings)


@pytest.mark.parametrize(
    ("values", "types"),
    [
        (pl.Series([True, None, False]), ("false", "true")),
        (pl.Series([3, None, 20]), ("20", "3")),
        (pl.Series([3.0, None, 20.5]), ("20.5", "3")),
        (pl.Series(["x", None, "y"], dtype=pl.Enum(["y", "x"])), ("x", "y")),
        (pl.Series(["x", None, "y"], dtype=pl.Categorical), ("x", "y")),
        (pl.Series([date(2026, 11, 2), None, date(2026, 11, 1)]), ("2026-11-01", "2026-11-02")),
        (pl.Series([time(9), None, time(7)]), ("07:00:00", "09:00:00")),
        (pl.Series([None] * 3), ()),
    ],
)
def test_types_of_events_are_kept_as_text(tmp_path: Path, values: pl.Series, types: tuple[str, ...]) -> None:
    frame = pl.DataFrame({"user": ["u1", "u2", "u3"], "item": ["a", "b", "a"], "action": values})
    frame.write_parquet(tmp_path / "e.parquet")
    assert prepare.run(DataConfig(), tmp_path / "e.parquet", tmp_path / "out").event_types == types


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_a_number_is_one_type_in_files_with_and_without_a_missing_one(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "log").mkdir()
    for name, types in (("a", pl.Series([1, 2])), ("b", pl.Series([1.0, None]))):
        frame = pl.DataFrame({"user": [f"{name}1", f"{name}2"], "item": ["i", "j"], "action": types})
        path = tmp_path / "log" / f"{name}.{suffix}"
        frame.write_parquet(path) if suffix == "parquet" else frame.write_ndjson(path)
    config = DataConfig(event_types=("1",), valid_share=0, test_share=0)
    manifest = prepare.run(config, tmp_path / "log", tmp_path / "out")
    assert (manifest.event_types, manifest.events["train"], manifest.dropped) == (("1",), 2, {"event_types": 2})


def test_a_bundle_of_before_may_name_the_type_of_a_float(tmp_path: Path) -> None:
    """Its recipe has the types for a renewal, and nobody can change them there."""
    frame = pl.DataFrame({"user": ["u", "v", "w"], "item": ["i", "j", "k"], "action": [1.0, None, 2.0]})
    frame.write_parquet(tmp_path / "e.parquet")
    config = DataConfig(event_types=("1.0",), valid_share=0, test_share=0)
    manifest = prepare.run(config, tmp_path / "e.parquet", tmp_path / "out")
    assert (manifest.event_types, manifest.events["train"]) == (("1",), 1)


def test_event_types_that_match_nothing_list_those_there_are(tmp_path: Path) -> None:
    told = r"no event left to use; data\.event_types = \['purchase'\] dropped 8; the types there are buy, view$"
    with pytest.raises(DataError, match=told):
        prepared(tmp_path, event_types=("purchase",))


def test_a_weight_that_drops_every_event_is_named(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("user_id,item_id,rating\na,x,3\nb,y,4\nc,x,5\nd,x,nan\n")
    told = r"no event left to use; data\.min_weight = 40.0 dropped 3; left out: 1 bad row"
    with pytest.raises(DataError, match=told):
        prepare.run(DataConfig(min_weight=40), tmp_path / "e.csv", tmp_path / "out", on_bad_rows="skip")


def test_items_and_users_without_events_stay_and_attributes_have_kinds(tmp_path: Path) -> None:
    (tmp_path / "events.csv").write_text("user_id,item_id\n1,7\n2,7\n2,8\n")
    (tmp_path / "items.csv").write_text('id,title,price,zip\n8,"A, b",1.5,01234\n7,C,,99999\n9,New,2,1\n')
    pl.DataFrame(
        {"user_id": [2, 1, 3], "age": [30, None, 5], "vip": [True, False, None], "tags": [["x", "y"], [], None]}
    ).write_parquet(tmp_path / "users.parquet")
    out = tmp_path / "out"
    config = DataConfig(valid_share=0, test_share=0)
    files = {"items": tmp_path / "items.csv", "users": tmp_path / "users.parquet"}
    manifest = prepare.run(config, tmp_path / "events.csv", out, **files)
    data = Dataset.open(out)
    assert data.items.rows() == [
        ("7", 2, "C", None, "99999"),
        ("8", 1, "A, b", 1.5, "01234"),
        ("9", 0, "New", 2.0, "1"),
    ]
    assert data.users["user_id"].to_list() == ["2", "1", "3"]
    assert data.users["age"].to_list() == [30, None, 5]
    assert data.users["vip"].to_list() == ["true", "false", None]
    assert data.users["tags"].to_list() == [["x", "y"], [], None]
    assert manifest.item_columns == {"title": "string", "price": "number", "zip": "string"}
    assert manifest.user_columns == {"age": "number", "vip": "string", "tags": "list"}
    assert manifest.source.files == ("events.csv", "items.csv", "users.parquet")


@pytest.mark.parametrize(
    ("cells", "unit", "times"),
    [
        (["1700000000", "1700000060"], "s", [1700000000, 1700000060]),
        (["1700000000000", "1700000060000"], "ms", [1700000000000, 1700000060000]),
        (["1700000000000000", "1700000060000000"], "us", [1700000000000000, 1700000060000000]),
        (["1700000000000000001", "1700000000000000002"], "ns", [1700000000000000001, 1700000000000000002]),
        (["1700000000.0", "1700000060"], "s", [1700000000, 1700000060]),
        (["1700000000.25", "1700000060"], "us", [1700000000250000, 1700000060000000]),
        # 2024-03-01 is day 19,783 since 1970.
        (["2024-03-01", "2024-03-01T00:00:01.5Z"], "us", [1709251200000000, 1709251201500000]),
        (["2024-03-01 02:00:00+02:00", "2024-03-01T00:01"], "us", [1709251200000000, 1709251260000000]),
    ],
)
def test_times_are_read_in_their_unit(tmp_path: Path, cells: list[str], unit: str, times: list[int]) -> None:
    text = "user,item,time\n" + "".join(f"u,{place},{cell}\n" for place, cell in enumerate(cells))
    data = prepared(tmp_path, text, valid_share=0, test_share=0)
    time = data.events("train").time
    assert time is not None and time.tolist() == times
    assert data.manifest.time_unit == unit


def test_the_same_input_gives_the_same_fingerprint_and_another_seed_another(tmp_path: Path) -> None:
    fingerprints = [prepared(tmp_path, split="random", seed=seed).manifest.fingerprint for seed in (1, 1, 2)]
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]


def test_a_failure_leaves_nothing_and_keeps_what_was_there(tmp_path: Path) -> None:
    data = prepared(tmp_path)
    before = (data.path / "dataset.json").read_text()
    with pytest.raises(OutputExistsError, match="already exists"):
        prepare.run(DataConfig(), tmp_path / "events.csv", tmp_path / "out")
    (tmp_path / "events.csv").write_text("user,item\nu1,\n")
    with pytest.raises(DataError):
        prepare.run(DataConfig(), tmp_path / "events.csv", tmp_path / "out", overwrite=True)
    assert (data.path / "dataset.json").read_text() == before
    with pytest.raises(DataError):
        prepare.run(DataConfig(), tmp_path / "events.csv", tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["events.csv", "out"]


@pytest.mark.parametrize("side", ["events", "items", "users"])
@pytest.mark.parametrize("place", ["file", "folder", "link"])
def test_an_output_that_holds_what_is_read_is_not_replaced(tmp_path: Path, side: str, place: str) -> None:
    data = prepared(tmp_path)
    texts = {"events": EVENTS, "items": "item_id,x\na,1\nb,2\nc,3\n", "users": "user_id,y\nu1,1\nu2,2\nu3,3\n"}
    folder = data.path / "raw" if side == "events" else data.path
    folder.mkdir(exist_ok=True)
    inside = folder / f"{side}.csv"
    inside.write_text(texts[side], encoding="utf-8")
    (tmp_path / "link").symlink_to(data.path)
    given = {"file": inside, "folder": folder, "link": tmp_path / "link" / inside.relative_to(data.path)}[place]
    if place == "folder" and side != "events":
        given = folder  # the output itself
    with pytest.raises(OutputExistsError) as caught:
        inputs = {"events": tmp_path / "events.csv", side: given}
        prepare.run(DataConfig(), out=data.path, overwrite=True, **inputs)
    assert str(caught.value) == f"{data.path} is or holds what this command reads ({given}); name another --out"
    assert inside.read_text(encoding="utf-8") == texts[side]


def test_the_manifest_has_no_path_and_counts_every_file(tmp_path: Path) -> None:
    data = prepared(tmp_path)
    text = (data.path / "dataset.json").read_text()
    assert str(tmp_path) not in text
    files = {path.relative_to(data.path).as_posix() for path in data.path.rglob("*") if path.is_file()}
    assert set(json.loads(text)["files"]) == files - {"dataset.json"}


def test_arrays_have_the_types_of_the_contract(tmp_path: Path) -> None:
    train = prepared(tmp_path).events("train")
    found = {name: getattr(train, name).dtype for name in ("user", "item", "offsets", "time", "history_end", "weight")}
    wanted = {"user": "int32", "item": "int32", "offsets": "int64", "time": "int64", "history_end": "int64"}
    assert found == {name: np.dtype(dtype) for name, dtype in {**wanted, "weight": "float32"}.items()}


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        ("bought", "2020-01-0{}", "if 'bought' holds the times: --config default --set data.columns.time=bought"),
        ("buy day", "0{}/01/2020", "if 'buy day' holds the times: --config default --set 'data.columns.time=buy day'"),
        ("at ts", "160000000{}", "if 'at ts' holds the times: --config default --set 'data.columns.time=at ts'"),
        ("dt", "2026010{}", "if 'dt' holds the times: --config default --set data.columns.time=dt"),
        ("created", "160000000{}", "if 'created' holds the times: --config default --set data.columns.time=created"),
        ("utc", "160000000{}", "if 'utc' holds the times: --config default --set data.columns.time=utc"),
        ("dt", "0.{}", None),
        ("watch_time", "3{}", None),
        ("time_of_day", "noon {}", None),
        ("device", "tv{}", None),
    ],
)
def test_a_random_split_for_want_of_times_is_told_with_the_column_that_may_hold_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], column: str, value: str, told: str | None
) -> None:
    rows = "".join(f"u{n},i{n % 3},{value.format(n)}\n" for n in range(1, 10))
    prepared(tmp_path, f"user,item,{column}\n{rows}")
    said = capsys.readouterr().err
    line = "no column of times is found, so the split is random: it does not tell how well later events are foreseen"
    assert f"warning: {line}; {told}\n" in said if told else f"\n{line}\n" in said
    prepared(tmp_path, f"user,item,{column}\n{rows}", split="random")
    assert "column of times" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "header",
    [
        "reviewerID,asin,overall,unixReviewTime",  # Amazon
        "user_id,item_id,overall,unixReviewTime",  # Amazon with other names of the ids
        "user_id,business_id,stars,date",  # Yelp
        "customer_id,article_id,rating,t_dat",  # H&M, whose prices would be no rating
        "User-ID,ISBN,rating,timestamp",  # Book-Crossing, which has no times
    ],
)
def test_the_columns_of_public_data_sets_are_found_by_their_names(tmp_path: Path, header: str) -> None:
    rows = "".join(f"u{n},i{n % 3},{n % 5 + 1},2020-01-0{n}\n" for n in range(1, 10))
    data = prepared(tmp_path, f"{header}\n{rows}")
    roles = ("user", "item", "weight", "time")
    assert data.manifest.roles == dict(zip(roles, header.split(","), strict=True))
    assert data.manifest.split.kind == "global_time"


@pytest.mark.parametrize("value", ["good", "0"])
def test_overall_is_a_weight_only_beside_columns_of_amazon(tmp_path: Path, value: str) -> None:
    rows = "".join(f"u{n},i{n % 3},{value},2020-01-0{n}\n" for n in range(1, 10))
    manifest = prepared(tmp_path, f"user,item,overall,date\n{rows}").manifest
    assert "weight" not in manifest.roles
    assert manifest.event_columns == {"overall": "string" if value == "good" else "number"}
