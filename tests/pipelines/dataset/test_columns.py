"""What becomes of columns: the same kinds from every format, lists, derived features, and how it is told."""

import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.dataset.column_lines import column_lines, visible
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.derive_features import choices
from pipelines.dataset.list_text import separator_of, split_text
from pipelines.dataset.manifest import DatasetManifest
from pipelines.dataset.number_text import FIRST, word_among_numbers
from pipelines.errors import DataError
from pipelines.ingest import prepare
from pipelines.training import check
from towers.config.recipe import Config, load_config, parse_config
from towers.config.sections import DataConfig
from towers.errors import ConfigError

FORMATS = ("csv", "parquet", "jsonl")
USERS, ITEMS = 1_050, 60
GENRES = ("Drama", "War", "Film-Noir", "Sci-Fi")


def write(frame: pl.DataFrame, path: Path) -> Path:
    {".csv": frame.write_csv, ".parquet": frame.write_parquet, ".jsonl": frame.write_ndjson}[path.suffix](path)
    return path


def genres(item: int, separator: str = "|") -> str:
    """One or two of four genres, by the item's number."""
    return separator.join((GENRES[item % 4], GENRES[item // 4 % 4])[: 1 + (item % 4 != item // 4 % 4)])


def frames() -> dict[str, pl.DataFrame]:
    numbers = range(USERS)
    events = range(4 * USERS)
    return {
        "users": pl.DataFrame(
            {
                "user_id": [f"u{n}" for n in numbers],
                "occupation": [n % 21 for n in numbers],
                "born": [1940 + n % 30 for n in numbers],
                "visits": [n % 51 for n in numbers],
                "income": [n % 7 + 0.5 for n in numbers],
                "code": [n % 20 - 1.0 for n in numbers],
                "zip": [f"{n * 89:05}" for n in numbers],
                "nothing": pl.Series([None] * USERS, dtype=pl.String),
            }
        ),
        "items": pl.DataFrame(
            {
                "item_id": [f"i{n}" for n in range(ITEMS)],
                "genres": [genres(n) for n in range(ITEMS)],
                "moods": [genres(n, " ; ") for n in range(ITEMS)],
                "title": [f"Film | number {n}" for n in range(ITEMS)],
                "rare": [n % 21 for n in range(ITEMS)],
            }
        ),
        "events": pl.DataFrame(
            {
                "user_id": [f"u{n % USERS}" for n in events],
                "item_id": [f"i{n * 7 % ITEMS}" for n in events],
                "timestamp": [1_700_000_000 + n for n in events],
                "rating": [n % 5 + 1 for n in events],
                "device": [genres(n) for n in events],
                "hour of day": [n % 24 for n in events],
            }
        ),
    }


def prepared(folder: Path, suffix: str, config: DataConfig | None = None, **changed: pl.DataFrame) -> DatasetManifest:
    files = {name: write(frame, folder / f"{name}.{suffix}") for name, frame in {**frames(), **changed}.items()}
    attributes = {name: files[name] for name in ("items", "users")}
    return prepare.run(config or DataConfig(), files["events"], folder / f"out-{suffix}", overwrite=True, **attributes)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("columns")
    for suffix in FORMATS:
        prepared(folder, suffix)
    return folder


def test_whole_numbers_of_a_text_file_keep_every_digit_as_those_of_a_parquet_file_do(tmp_path: Path) -> None:
    """Beyond 2**53 a float holds only even numbers; a fraction, an exponent or 65 bits make a column of floats."""
    texts = {
        "year": (["2001", "", "-1", "+7"], [2001, None, -1, 7]),
        "sku": (["9007199254741195", "9223372036854775807", "-9223372036854775808", ""],
                [9007199254741195, 9223372036854775807, -9223372036854775808, None]),
        "price": (["1", "2.5", "", "3"], [1.0, 2.5, None, 3.0]),
        "level": (["1.0", "2.0", "", "3.0"], [1.0, 2.0, None, 3.0]),
        "views": (["1e3", "2", "", "3"], [1000.0, 2.0, None, 3.0]),
        "big": (["9223372036854775808", "2", "", "3"], [2.0**63, 2.0, None, 3.0]),
    }  # fmt: skip
    names = ("year", "sku", "price", "level", "views", "big")
    cells = [",".join(texts[name][0][row] for name in names) for row in range(4)]
    heading = ",".join(names)
    (tmp_path / "events.csv").write_text(
        f"user_id,item_id,timestamp,{heading}\n" + "".join(f"u{n},i{n},{n},{cells[n]}\n" for n in range(4))
    )
    for name in ("user", "item"):
        text = f"{name}_id,{heading}\n" + "".join(f"{name[0]}{n},{cells[n]}\n" for n in range(4))
        (tmp_path / f"{name}s.csv").write_text(text)
    attributes = {name: tmp_path / f"{name}.csv" for name in ("users", "items")}
    prepare.run(DataConfig(valid_share=0, test_share=0), tmp_path / "events.csv", tmp_path / "out", **attributes)
    data = Dataset.open(tmp_path / "out")
    context = data.context("train")
    assert context is not None
    wanted = pl.DataFrame({name: values for name, (_, values) in texts.items()})
    assert wanted.dtypes == [pl.Int64, pl.Int64, *[pl.Float64] * 4]
    for frame in (data.users.sort("user_id"), data.items.sort("item_id"), context.collect()):
        assert frame.select(names).equals(wanted) and frame.select(names).schema == wanted.schema
    assert set(data.manifest.item_columns.values()) == {"number"}


def test_decimals_are_whole_numbers_with_every_digit_if_all_are_and_else_floats(tmp_path: Path) -> None:
    written = {
        "year": ["1990", None, "2001"],
        "code": ["1234567890123456780", "1234567890123456789", None],
        "hash": [str(2**64), "7", None],
        "price": ["1.5", "2", None],
    }
    for places in (0, 10):
        columns = {
            name: pl.Series(values, dtype=pl.String).cast(pl.Decimal(38, 10 if name == "price" else places))
            for name, values in written.items()
        }
        ids = {"item_id": ["a", "b", "c"]}
        pl.DataFrame(ids | columns).write_parquet(tmp_path / "items.parquet")
        pl.DataFrame({"user_id": ["u1", "u2", "u3"], **ids, **columns}).write_parquet(tmp_path / "events.parquet")
        config = DataConfig(valid_share=0, test_share=0)
        files = [tmp_path / f"{name}.parquet" for name in ("events", "items")]
        prepare.run(config, files[0], tmp_path / f"out{places}", items=files[1])
        data = Dataset.open(tmp_path / f"out{places}")
        context = data.context("train")
        assert context is not None
        for frame in (data.items.sort("item_id"), context.collect()):
            assert frame.select(*written).to_dict(as_series=False) == {
                "year": [1990, None, 2001],
                "code": [1234567890123456780, 1234567890123456789, None],
                "hash": [2.0**64, 7.0, None],
                "price": [1.5, 2.0, None],
            }
            assert frame.select(*written).dtypes == [pl.Int64, pl.Int64, pl.Float64, pl.Float64]


def test_a_row_that_is_left_out_does_not_make_floats_of_whole_numbers(tmp_path: Path) -> None:
    (tmp_path / "events.csv").write_text("user_id,item_id,place\nu1,a,1\nu2,b,nan\nu3,a,2\n")
    (tmp_path / "items.csv").write_text("item_id,year\na,2001\nb,2002\nc,NaN\n")
    config = DataConfig(valid_share=0, test_share=0)
    prepare.run(config, tmp_path / "events.csv", tmp_path / "out", items=tmp_path / "items.csv", on_bad_rows="skip")
    data = Dataset.open(tmp_path / "out")
    context = data.context("train")
    assert context is not None and data.items.schema["year"] == context.collect_schema()["place"] == pl.Int64
    assert data.manifest.rejected == 2


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_gives_the_same_kinds_values_and_features(made: Path, suffix: str) -> None:
    data = Dataset.open(made / f"out-{suffix}")
    numbers = dict.fromkeys(("occupation", "born", "visits", "income", "code"), "number")
    assert data.manifest.user_columns == {**numbers, "zip": "string", "nothing": "string"}
    assert data.manifest.item_columns == {"genres": "list", "moods": "string", "title": "string", "rare": "number"}
    assert data.manifest.event_columns == {"device": "list", "hour of day": "number"}
    of_item = dict(zip(data.items["item_id"], data.items["genres"], strict=True))
    assert {item: list(found) for item, found in of_item.items()} == {
        f"i{n}": genres(n).split("|") for n in range(ITEMS)
    }
    context = data.context("train")
    assert context is not None
    times = data.events("train").time
    assert times is not None
    assert [list(found) for found in context.collect()["device"]] == [
        genres(int(t) - 1_700_000_000).split("|") for t in times
    ]
    resolved = check.check_recipe(Config(), data).features
    assert {name: each.kind for name, each in (resolved.query or {}).items()} == {
        "user_id": "id",
        "history": "history",
        "occupation": "categorical",
        "born": "numeric",
        "visits": "numeric",
        "income": "numeric",
        "code": "categorical",
        "device": "multi",
        "hour_of_day": "categorical",
    }
    assert {name: each.kind for name, each in (resolved.candidate or {}).items()} == {
        "item_id": "id",
        "genres": "multi",
        "moods": "categorical",
        "title": "text",
        "rare": "numeric",
    }


LINES = """\
columns, and the features of a recipe that names none:
  events  user_id      user ids
  events  item_id      item ids
  events  timestamp    time, in seconds
  events  rating       weight of the event
  events  device       multi: lists
  events  hour of day  categorical: 24 different whole numbers in TRAIN rows: codes
  users   occupation   categorical: 21 different whole numbers in 1,050 rows: codes
  users   born         numeric: whole numbers, not all of them from -1 to 999
  users   visits       numeric: 51 different whole numbers in 1,050 rows: too many for codes, or too rare
  users   income       numeric: numbers with fractions
  users   code         categorical: 20 different whole numbers in 1,050 rows: codes
  users   zip          left out: 1,050 different words in 1,050 rows: a key; \
--set features.query.zip.kind=hashed includes it
  users   nothing      left out: it has no value
  items   genres       multi: lists
  items   moods        categorical: 16 different texts in 60 rows; they look like lists separated by ';' \
(see data.lists)
  items   title        text: 60 different texts in 60 rows, most of several words
  items   rare         numeric: 21 different whole numbers in 60 rows: too many for codes, or too rare"""


@pytest.mark.parametrize("suffix", FORMATS)
def test_prepare_tells_of_each_column_what_it_became_and_why(
    made: Path, tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = prepared(tmp_path, suffix)
    said = capsys.readouterr().err
    assert LINES.replace("TRAIN", f"{manifest.events['train']:,}") in said


def test_check_tells_what_its_recipe_makes_of_each_column(made: Path) -> None:
    recipe = {
        "features": {
            "query": {"derive": True, "occupation": False, "zip": {"kind": "hashed"}, "born": {"kind": "categorical"}},
            "candidate": {"item_id": {"kind": "id"}, "genres": {"kind": "multi"}},
        }
    }
    config = check.run(Config.model_validate(recipe), made / "out-csv")
    told = [line.removeprefix("# ") for line in check.describe(config, made / "out-csv").splitlines()]
    for line in (
        "columns:",
        "  events  timestamp    time, in seconds",
        "  users   occupation   left out by the recipe "
        "(else categorical: 21 different whole numbers in 1,050 rows: codes)",
        "  users   zip          hashed: feature 'zip' of the recipe",
        "  users   born         categorical: feature 'born' of the recipe",
        "  users   code         categorical: 20 different whole numbers in 1,050 rows: codes",
        "  items   genres       multi: lists",
        "  items   title        left out by the recipe "
        "(else text: 60 different texts in 60 rows, most of several words)",
    ):
        assert line in told


def test_what_check_prints_of_an_odd_column_is_a_recipe_again(tmp_path: Path) -> None:
    rows = [(f"u{n % 5}", f"i{n}", ["glad", "sad"][n % 2]) for n in range(40)]
    events = pl.DataFrame(rows, ["user_id", "item_id", name := "mood 😀\x7f\n"], orient="row")
    prepare.run(
        DataConfig(split="random", valid_share=0, test_share=0), write(events, tmp_path / "e.parquet"), tmp_path / "set"
    )
    config = check.run(Config(), tmp_path / "set")
    query = tomllib.loads(check.describe(config, tmp_path / "set"))["features"]["query"]
    assert name in [feature.get("column") for feature in query.values()]


def test_texts_that_look_like_lists_say_so(tmp_path: Path) -> None:
    words = ["red wine", "dry", "french", "oak", "young"]
    tags = [", ".join([words[n % 5], words[n // 5 % 5], f"no. {n}"]) for n in range(100)]
    ids = [f"i{n}" for n in range(100)]
    pl.DataFrame({"item_id": ids, "tags": tags}).write_csv(tmp_path / "i.csv")
    events = pl.DataFrame({"user_id": [f"u{n % 9}" for n in range(100)], "item_id": ids})
    config = DataConfig(split="random", valid_share=0, test_share=0)
    prepare.run(config, write(events, tmp_path / "e.parquet"), tmp_path / "set", items=tmp_path / "i.csv")
    (told,) = (line for line in column_lines(Dataset.open(tmp_path / "set")) if " tags " in line)
    assert told.endswith("most of several words; they look like lists separated by ',' (see data.lists)")


def test_a_time_without_an_order_and_a_type_are_told(tmp_path: Path) -> None:
    events = frames()["events"].with_columns(action=pl.lit("buy"))
    prepared(tmp_path, "csv", DataConfig(split="random"), events=events)
    told = column_lines(Dataset.open(tmp_path / "out-csv"))
    assert "  events  timestamp    time, not kept: split 'random' has no order" in told
    assert "  events  action       type of the event: buy" in told
    assert [visible(name) for name in ("buy", " buy", "buy now")] == ["buy", "' buy'", "buy now"]
    assert visible("b\x1b[1m") == r"'b\x1b[1m'"
    kinds = pl.Series("action", [f"type {row % 7}" for row in range(events.height)])
    prepared(tmp_path, "jsonl", DataConfig(split="random"), events=events.with_columns(kinds))
    told = column_lines(Dataset.open(tmp_path / "out-jsonl"))
    names = ", ".join(f"type {number}" for number in range(5))
    kept = "data.duplicates = 'first' kept one event of each user and item, whatever its type"
    assert f"  events  action       type of the event: {names} and 2 more; {kept}" in told
    many = pl.Series("action", [f"key {row}" for row in range(events.height)])
    prepared(tmp_path, "parquet", DataConfig(split="random"), events=events.with_columns(many))
    told = column_lines(Dataset.open(tmp_path / "out-parquet"))
    assert "  events  action       type of the event: only data.event_types reads it" in told


def test_no_name_of_the_data_is_a_command_of_the_terminal_or_a_line_of_its_own(tmp_path: Path) -> None:
    items = frames()["items"].with_columns(pl.lit("\x1b").alias("mood\x1b[31m\n  users   age"))
    prepared(tmp_path, "parquet", items=items)
    told = column_lines(Dataset.open(tmp_path / "out-parquet"))
    assert [line for line in told if not line.isprintable()] == []
    assert len([line for line in told if line.startswith("  items   mood\\x1b[31m\\n  users   age ")]) == 1


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("['de', 'en']", ["de", "en"]),
        ('["a, b","c"]', ["a, b", "c"]),
        (r"""["it's", 'b']""", ["it's", "b"]),
        (" [1, 2] ", ["1", "2"]),
        ("['a', 5, None]", ["a", "5"]),
        (r"""["5\" disc", "\u00e9t\u00e9", null]""", ['5" disc', "été"]),
        ("[live]|[remix]", ["[live]|[remix]"]),
        ("[Rec], [Saw]", ["[Rec]", "[Saw]"]),
        ("[de, en]", ["de", "en"]),
        ("[live]", ["[live]"]),
        ("['de' 'en']", ["de", "en"]),
        (r"""['it\'s' "x"]""", ["it's", "x"]),
        ("['a', ' ', 3]", ["a", "3"]),
        (r"""['it\'s', ' ', 'x']""", ["it's", "x"]),
        ("""['say "hi" "ho"', 3]""", ['say "hi" "ho"', "3"]),
        ("[{{0}}]", ["[{{0}}]"]),
        ("['a', nan]", ["a", "nan"]),
        ("[007, 012]", ["007", "012"]),
        ("[12345678901234567890123, 1.50, true]", ["12345678901234567890123", "1.50", "true"]),
        (r"""["\ud83d"]""", [r'["\ud83d"]']),
        ("[[1, 2], [3]]", ["[[1", "2]", "[3]]"]),
        ("[]", []),
        (" x , ,y", ["x", "y"]),
        ("rock [live], pop", ["rock [live]", "pop"]),
        (None, None),
    ],
)
def test_a_list_that_python_wrote_has_its_own_parts(text: str | None, parts: list[str] | None) -> None:
    frame = pl.DataFrame({"text": [text]}, schema={"text": pl.String})
    assert frame.select(split_text(pl.col("text"), ",")).to_series().to_list() == [parts]


@pytest.mark.parametrize("form", ["{},{:02}", "{},{:02} €", "1.{:03},{:02}", "$1,{:03}.{:02}", "{}.{:02} EUR"])
def test_amounts_that_are_no_plain_numbers_are_told_how_to_be_written(tmp_path: Path, form: str) -> None:
    items = frames()["items"]
    prices = pl.Series([form.format(100 + 7 * row, row % 100) for row in range(items.height)])
    prepared(tmp_path, "parquet", items=items.with_columns(prices.alias("price")))
    (told,) = (line for line in column_lines(Dataset.open(tmp_path / "out-parquet")) if "  price" in line)
    assert f"they look like numbers, such as '{prices.min()}': write them like 1234.5, without a currency" in told


@pytest.mark.parametrize(
    ("text", "separator", "parts"),
    [
        ("[Smith, John; Doe, Jane]", ";", ["Smith, John", "Doe, Jane"]),
        ("[Remastered, 2011]", "|", ["[Remastered, 2011]"]),
        ("[1, 2]", "|", ["1", "2"]),
    ],
)
def test_words_in_brackets_are_parted_by_the_column_s_separator(text: str, separator: str, parts: list[str]) -> None:
    frame = pl.DataFrame({"text": [text]})
    assert frame.select(split_text(pl.col("text"), separator)).to_series().to_list() == [parts]


def test_numbers_of_sixteen_bits_keep_their_fractions(tmp_path: Path) -> None:
    items = frames()["items"]
    halves = pl.Series("halves", [row % 4 / 2 for row in range(items.height)]).cast(pl.Float16)
    prepared(tmp_path, "parquet", items=items.with_columns(halves))
    (told,) = (line for line in column_lines(Dataset.open(tmp_path / "out-parquet")) if "halves" in line)
    assert "numbers with fractions" in told


def test_names_too_long_for_a_file_are_cut_and_told_apart(tmp_path: Path) -> None:
    long, users = "Which of these did you buy? " * 12, frames()["users"]
    answers = pl.Series([str(row % 3) + "x" for row in range(users.height)])
    prepared(tmp_path, "parquet", users=users.with_columns(answers.alias(f"{long}{end}") for end in "ab"))
    data = Dataset.open(tmp_path / "out-parquet")
    resolved = check.check_recipe(Config(), data).features
    names = {each.column: name for name, each in (resolved.query or {}).items() if (each.column or "").startswith("Wh")}
    assert names.keys() == {f"{long}a", f"{long}b"} and len({*names.values()}) == 2
    assert max(map(len, names.values())) < 110


@pytest.mark.parametrize(
    ("column", "kind"),
    [("", "csv"), ("", "jsonl"), ("__index_level_0__", "csv"), ("Unnamed: 0", "csv"), ("Unnamed: 0.1", "csv")],
)
def test_the_row_numbers_of_pandas_become_no_feature(tmp_path: Path, column: str, kind: str) -> None:
    prepared(tmp_path, kind, **{name: frame.with_row_index(column) for name, frame in frames().items()})
    data = Dataset.open(tmp_path / f"out-{kind}")
    why = "row numbers that pandas wrote" if column else "it has no name, like the row numbers that pandas writes"
    told = [" ".join(line.split()) for line in column_lines(data)]
    hints = dict.fromkeys(("events", "users", "items"), "")
    if column:
        name = {"__index_level_0__": "f___index_level_0__"}.get(column, re.sub(r"\W", "_", column))
        hints |= {
            "users": f"; --set features.query.{name}.kind=hashed includes it",
            "items": f"; --set features.candidate.{name}.kind=hashed includes it",
        }
    for file, hint in hints.items():
        assert " ".join(f"{file} {column} left out: {why}{hint}".split()) in told
    resolved = check.check_recipe(Config(), data).features
    assert {each.column for side in (resolved.query, resolved.candidate) for each in (side or {}).values()} == {
        *(None, "occupation", "born", "visits", "income", "code", "device", "hour of day"),
        *("genres", "moods", "title", "rare"),
    }
    if column:
        wanted = parse_config({"features": {"query": {"derive": True, name: {"kind": "hashed"}}}})
        query = check.check_recipe(wanted, data).features.query or {}
        assert query[name].column == column


def test_texts_in_a_column_that_pandas_calls_so_are_no_row_numbers(tmp_path: Path) -> None:
    column = pl.Series("Unnamed: 0", [f"p{n % 3}" for n in range(USERS)])
    prepared(tmp_path, "csv", users=frames()["users"].with_columns(column))
    assert choices(Dataset.open(tmp_path / "out-csv"), "query")["Unnamed: 0"].kind == "categorical"


KEPT = {"_price": "f__price", "Ähnlich": "f__hnlich", "self": "f_self", "class": "f_class", "x y": "x_y", "x_": "x_"}


def test_each_derived_name_is_one_that_a_saved_model_keeps_for_an_input(tmp_path: Path) -> None:
    numbers = pl.Series([n % 21 for n in range(USERS)])
    users = frames()["users"].with_columns([numbers.alias(name) for name in (*KEPT, "Age", "USER_ID")])
    events = frames()["events"].with_columns(age=pl.col("timestamp") % 7)
    prepared(tmp_path, "parquet", users=users, events=events)
    query = check.check_recipe(Config(), Dataset.open(tmp_path / "out-parquet")).features.query or {}
    names = {each.column: name for name, each in query.items()}
    assert {column: names[column] for column in KEPT} == KEPT
    assert {names["Age"], names["age"]} == {"Age", "age_2"} and names["USER_ID"] == "USER_ID_2"

    def both(**given: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"embeddings": tf.add_n(list(given.values()))}

    module = tf.Module()
    signature = tf.function(both).get_concrete_function(**{name: tf.TensorSpec([None], name=name) for name in query})
    tf.saved_model.save(module, str(tmp_path / "model"), {"serving_default": signature})
    kept = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"].structured_input_signature[1]
    assert set(kept) == set(query)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (
            {"_price": {"kind": "numeric"}},
            r"features\.query\._price: .*_ \(not first\).*call it 'f__price'",
        ),
        ({"self": {"kind": "numeric"}}, r"not 'self'; call it 'f_self'"),
        (
            {"Born": {"kind": "numeric"}, "born": {"kind": "hashed"}},
            r"query: 'Born' and 'born' differ only in case; give",
        ),
        (
            {"past": {"kind": "sequence", "time_gaps": True}, "Past_times": {"kind": "numeric", "column": "born"}},
            r"query\.Past_times: is the input of the times of 'past'; give this feature another name",
        ),
    ],
)
def test_a_name_that_a_saved_model_does_not_keep_is_refused(made: Path, features: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check.check_recipe(parse_config({"features": {"query": features}}), Dataset.open(made / "out-parquet"))


@pytest.mark.parametrize("suffix", FORMATS)
def test_data_lists_says_what_is_a_list_in_every_format(tmp_path: Path, suffix: str) -> None:
    data = DataConfig(lists={"moods": ";", "genres": "", "device": ""})
    manifest = prepared(tmp_path, suffix, data)
    assert manifest.item_columns == {"genres": "string", "moods": "list", "title": "string", "rare": "number"}
    assert manifest.event_columns["device"] == "string"
    items = Dataset.open(tmp_path / f"out-{suffix}").items
    # Without the blanks around a part.
    assert {row["item_id"]: list(row["moods"]) for row in items.to_dicts()} == {
        f"i{n}": genres(n).split("|") for n in range(ITEMS)
    }


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize(
    ("lists", "message"),
    [
        (
            {"genre": "|"},
            r"data\.lists\.genre: no column of that name besides ids, time, type and weight; there are genres",
        ),
        ({"timestamp": "|"}, r"data\.lists\.timestamp: no column of that name"),
    ],
)
def test_data_lists_of_a_column_that_is_not_there_is_refused(
    tmp_path: Path, suffix: str, lists: dict[str, str], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        prepared(tmp_path, suffix, DataConfig(lists=lists))
    assert not (tmp_path / f"out-{suffix}").exists()


def test_data_lists_of_typed_numbers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.lists\.born: a list is made of text, and 'born' holds numbers"):
        prepared(tmp_path, "parquet", DataConfig(lists={"born": "|"}))


@pytest.mark.parametrize(
    ("texts", "separator"),
    [
        (["a|b", "b|a", "a"], "|"),
        (["a|b", "c|d", "a|c"], None),  # four parts in six places
        (["a|b", "b|a", "a", "b"], None),  # half of them, not more
        (["a, b", "b, a"], ","),
        (["a|b"] * 9, None),  # one text however often
        (["||", "|"], None),
        ([None, "x/y", "y/x", None], "/"),
        ([None], None),
        ([], None),
    ],
)
def test_texts_that_look_like_lists(texts: list[str | None], separator: str | None) -> None:
    assert separator_of(pl.Series(texts, dtype=pl.String)) == separator


PART = st.text("ab", min_size=1, max_size=1)


@pytest.mark.long
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lists=st.lists(st.lists(PART, max_size=3), min_size=2, max_size=8),
    separator=st.sampled_from(["|", ";"]),
    said=st.booleans(),
)
def test_lists_written_as_text_come_back_from_every_format(
    tmp_path: Path, lists: list[list[str]], separator: str, said: bool
) -> None:
    names = [f"i{n}" for n in range(len(lists))]
    texts = [separator.join(each) or None for each in lists]
    items = pl.DataFrame({"item_id": names, "tags": texts}, schema_overrides={"tags": pl.String})
    events = pl.DataFrame({"user_id": ["u"] * len(names), "item_id": names, "place": items["tags"]})
    different = set(texts) - {None}
    holding = sum(separator in str(text) for text in different)
    places = Counter(part for text in different for part in set(str(text).split(separator)))
    looks = holding > len(different) / 2 and sum(places.values()) >= 2 * len(places)
    said_lists = {"tags": separator, "place": separator} if said else {}
    config = DataConfig(split="random", valid_share=0, test_share=0, lists=said_lists)
    for suffix in FORMATS:
        source = write(events, tmp_path / f"e.{suffix}")
        prepare.run(config, source, tmp_path / "out", items=write(items, tmp_path / f"i.{suffix}"), overwrite=True)
        data = Dataset.open(tmp_path / "out")
        is_list = said or (looks and separator == "|")
        assert data.manifest.item_columns == {"tags": "list" if is_list else "string"}
        assert data.manifest.event_columns == {"place": "list" if is_list else "string"}
        found = {row["item_id"]: row["tags"] for row in data.items.to_dicts()}
        assert found == dict(zip(names, [each or None for each in lists] if is_list else texts, strict=True))


def derived(made: Path, *overrides: str) -> dict[str, Any]:
    (made / "empty.toml").touch()
    resolved = check.check_recipe(load_config(made / "empty.toml", overrides), Dataset.open(made / "out-csv")).features
    assert resolved.changes is None
    return {name: each.model_dump(exclude_unset=True) for name, each in (resolved.query or {}).items()}


def test_an_override_changes_one_derived_feature_and_keeps_the_others(made: Path) -> None:
    before = derived(made)
    device = {"kind": "multi", "column": "device", "mask_share": 0.5}
    assert before["device"] == device
    for overrides, name, feature in (
        (["features.query.device.max_length=3"], "device", {**device, "max_length": 3}),
        (["features.query.history.max_length=7"], "history", {"kind": "history", "max_length": 7}),
        (["features.query.born.kind=categorical"], "born", {"kind": "categorical", "column": "born"}),
        (["features.query.zip.kind=hashed"], "zip", {"kind": "hashed", "column": "zip"}),
        (
            ["features.query.job.kind=hashed", "features.query.job.column=zip"],
            "job",
            {"kind": "hashed", "column": "zip"},
        ),
    ):
        after = derived(made, *overrides)
        assert after == {**before, name: feature}
    without = derived(made, "features.query.born=", "features.query.history=")
    assert without == {name: each for name, each in before.items() if name not in ("born", "history")}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "features.query.brn.log=true",
            r"features\.query\.brn: no derived feature has this name; .*did you mean 'born'",
        ),
        ("features.query.zip=", r"features\.query\.zip: no derived feature has this name; there are user_id, history"),
        ("features.query.born.buckets=3", r"features\.query\.born\.buckets: no such key"),
        ("features.query.genres.kind=multi", r"features\.query\.genres: the data set has no column 'genres'"),
        ("features.query.born.dimension=3", r"features\.query\.born\.dimension: model\.combine = 'sum'"),
    ],
)
def test_a_change_that_the_data_set_cannot_follow_is_refused(made: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        derived(made, override)


PER_USER = ("loss.name=full_softmax", "loss.per_user=true")


def test_of_a_whole_user_no_feature_is_derived_that_differs_from_event_to_event(made: Path) -> None:
    of_events = {"history", "device", "hour_of_day"}  # the last two are the events' own columns
    assert derived(made).keys() - derived(made, *PER_USER).keys() == of_events


def test_a_feature_that_differs_from_event_to_event_is_refused_of_a_whole_user(made: Path) -> None:
    wrong = {
        "past": {"kind": "history"},
        "attended": {"kind": "sequence"},
        "hour": {"kind": "hour"},
        "earlier": {"kind": "neighbours", "window": "earlier"},
        "device": {"kind": "multi"},
    }
    right = {"born": {"kind": "numeric"}, "taken": {"kind": "neighbours", "window": "all"}}
    loss = {"loss": {"name": "full_softmax", "per_user": True}}
    data = Dataset.open(made / "out-csv")
    with pytest.raises(ConfigError) as error:
        check.check_recipe(parse_config(loss | {"features": {"query": wrong | right}}), data)
    names, _, _ = str(error.value).partition(": ")
    assert names == ", ".join(f"features.query.{name}" for name in wrong)
    assert check.check_recipe(parse_config(loss | {"features": {"query": right}}), data).features.query is not None


def test_an_error_lists_the_derived_features_alone_and_advises_on_kinds_only_for_a_new_one(made: Path) -> None:
    there = ", ".join(derived(made))
    # The recipe's own additions come first, and are none of the derived.
    added = "features.query.boss.kind=hashed", "features.query.boss.column=zip"
    for override, said in (("boni=", ""), ("boni.log=true", "; a new one needs its kind")):
        with pytest.raises(ConfigError) as error:
            derived(made, *added, f"features.query.{override}")
        listed = f"features.query.boni: no derived feature has this name; there are {there}"
        assert str(error.value) == f"{listed}; did you mean 'born'?{said}"


def test_a_column_that_only_impressions_fill_is_a_feature(tmp_path: Path) -> None:
    rows = "".join(f"u{n % 3},i{n},{n},{n % 2},{'' if n % 2 else 'tv'}\n" for n in range(30))
    (tmp_path / "e.csv").write_text("user,item,time,rating,device\n" + rows)
    prepare.run(DataConfig(valid_share=0, test_share=0), tmp_path / "e.csv", tmp_path / "set")
    found = choices(Dataset.open(tmp_path / "set"), "query")["device"]
    assert (found.kind, found.reason) == ("categorical", "1 different text in 15 rows")


def test_a_column_of_the_events_that_each_item_has_one_value_of_is_warned_of(tmp_path: Path) -> None:
    items = [n % 120 for n in range(600)]
    users = [f"u{n // 12}" for n in range(600)]
    columns = {
        "brand": [f"b{item % 7}" for item in items],
        "sku": [item * 1_000 for item in items],
        "two": [["no", "yes"][item % 120 < 30] for item in items],  # three quarters have one value
        "rare": [["no", "yes"][item % 120 < 10] for item in items],  # most events have it
        "device": [["tv", "phone"][n // 120 % 2] for n in range(600)],
        "country": [f"c{int(user[1:]) % 3}" for user in users],
        "half": [f"b{item % 7}" if n % 11 else "other" for n, item in enumerate(items)],
        "tags": [[f"t{item % 7}"] for item in items],
        "look": [[item % 5 + 0.5, 1.0] for item in items],
        "cart": [[f"t{n // 60}"] for n in range(600)],
        "variant": [f"v{item} {n // 120 // 2}" for n, item in enumerate(items)],  # several of an item, each of one
    }
    events = pl.DataFrame({"user_id": users, "item_id": [f"i{item}" for item in items], **columns})
    config = DataConfig(split="random", valid_share=0, test_share=0)
    prepare.run(config, write(events, tmp_path / "e.parquet"), tmp_path / "set")
    data = Dataset.open(tmp_path / "set")
    told = [line.split(maxsplit=2)[1:] for line in column_lines(data) if "gives the answer away" in line]
    assert [column for column, _ in told] == ["brand", "sku", "two", "tags", "look", "variant"]
    assert told[0][1].endswith(
        "; warning: each item has one value of it, so that it gives the answer away in training: move it to the items "
        "file; --set features.query.brand= leaves it out"
    )
    # An items file has one row per item, so it has no place for several values of one.
    assert told[5][1].endswith(
        "; warning: each value of it belongs to one item, so that it gives the answer away in training; --set "
        "features.query.variant= leaves it out"
    )
    query = {"user_id": {"kind": "id"}, "make": {"kind": "hashed", "column": "two"}}
    spelt = parse_config({"features": {"query": query}})
    told = [line.split(maxsplit=2)[1:] for line in column_lines(data, spelt) if "gives the answer away" in line]
    assert [column for column, _ in told] == ["two"]
    assert told[0][1].endswith("; --set features.query.make= leaves it out")
    few = events.drop("variant").filter(pl.col("item_id").is_in([f"i{n}" for n in range(99)]))
    prepare.run(
        DataConfig(split="random", valid_share=0, test_share=0), write(few, tmp_path / "f.parquet"), tmp_path / "few"
    )
    assert "gives the answer away" not in "".join(column_lines(Dataset.open(tmp_path / "few")))


def test_a_column_that_each_user_has_one_value_of_too_is_not_warned_of(tmp_path: Path) -> None:
    """Each item is sold in one country, and a user lives in one."""
    rows = [(f"u{n % 150}", f"i{n % 3}-{n // 150 + n % 150 // 3}", f"c{n % 3}") for n in range(1_500)]
    events = pl.DataFrame(rows, ["user_id", "item_id", "country"], orient="row")
    for name, each in (("one", events), ("by item", events.with_columns(user_id=pl.Series(range(1_500)) // 10))):
        config = DataConfig(split="random", valid_share=0, test_share=0)
        prepare.run(config, write(each, tmp_path / f"{name}.parquet"), tmp_path / name)
        told = "gives the answer away" in "".join(column_lines(Dataset.open(tmp_path / name)))
        assert told == (name == "by item")


def test_rows_without_a_value_count_in_no_share(tmp_path: Path) -> None:
    some = [n if n < 27 else None for n in range(60)]
    texts = [None if n is None else f"film number {n}" for n in some]
    keys = [None if n is None else f"sku{n}" for n in some]
    vectors = [None if n < 30 else [1.5, 2.5] for n in range(60)]
    events = pl.DataFrame({"user_id": [f"u{n % 3}" for n in range(60)], "item_id": [f"i{n}" for n in range(60)]})
    events = events.with_columns(film=pl.Series(texts), key=pl.Series(keys), look=pl.Series(vectors))
    config = DataConfig(split="random", valid_share=0, test_share=0)
    prepare.run(config, write(events, tmp_path / "e.parquet"), tmp_path / "set")
    found = choices(Dataset.open(tmp_path / "set"), "query")
    assert {name: (each.kind, each.reason) for name, each in found.items()} == {
        "film": ("text", "27 different texts in 27 rows, most of several words"),
        "key": (None, "27 different words in 27 rows: a key"),
        "look": ("vector", "vectors of 2 numbers"),
    }


def test_a_column_of_numbers_but_for_a_few_words_says_so(tmp_path: Path) -> None:
    prices = ["NA" if n % 7 == 3 else f"{n}.5" for n in range(60)]
    sizes = ["XL" if n < 40 else str(n % 3) for n in range(60)]
    rows = "".join(f"u{n % 3},i{n},{prices[n]},{sizes[n]},0{n % 3}\n" for n in range(60))
    (tmp_path / "e.csv").write_text("user,item,price,size,shelf\n" + rows)
    config = DataConfig(split="random", valid_share=0, test_share=0)
    prepare.run(config, tmp_path / "e.csv", tmp_path / "set")
    found = {name: each.reason for name, each in choices(Dataset.open(tmp_path / "set"), "query").items()}
    assert found == {
        # 3, 10, ... 59
        "price": "52 different words in 60 rows: a key; all but 9 rows hold numbers, not 'NA'",
        "size": "4 different texts in 60 rows",
        "shelf": "3 different texts in 60 rows",
    }


def test_a_column_that_no_single_word_makes_text_of_has_no_such_hint(tmp_path: Path) -> None:
    columns: dict[str, list[str | int]] = {
        "size": ["SM"[n % 2] if n % 5 == 0 else 38 + n % 4 for n in range(60)],
        "yes": ["yes" if n % 7 == 0 else n % 2 for n in range(60)],
        "isbn": [f"{97800 + n}X" if n == 7 else 97800 + n for n in range(60)],
        "hex": [f"{10 + n:02x}" for n in range(60)],
        "zip": ["NA" if n % 9 == 0 else f"{n % 20 + 1:02}12" for n in range(60)],
        "one_zip": ["0112" if n == 8 else n % 20 + 1000 for n in range(60)],
        "late": ["SM"[n % 2] if n > 40 else n for n in range(60)],  # which its first rows do not show
    }
    rows = "".join(f"u{n % 3},i{n},{','.join(str(cells[n]) for cells in columns.values())}\n" for n in range(60))
    (tmp_path / "e.csv").write_text(f"user,item,{','.join(columns)}\n{rows}")
    prepare.run(DataConfig(split="random", valid_share=0, test_share=0), tmp_path / "e.csv", tmp_path / "set")
    found = {name: each.reason for name, each in choices(Dataset.open(tmp_path / "set"), "query").items()}
    assert set(found) == set(columns)
    assert not [reason for reason in found.values() if "hold numbers" in reason]


def test_a_long_word_among_numbers_is_cut(tmp_path: Path) -> None:
    rows = "".join(f"u{n % 3},i{n},{'missing ' * 500 if n == 7 else n}\n" for n in range(60))
    (tmp_path / "e.csv").write_text("user,item,price\n" + rows)
    prepare.run(DataConfig(split="random", valid_share=0, test_share=0), tmp_path / "e.csv", tmp_path / "set")
    reason = choices(Dataset.open(tmp_path / "set"), "query")["price"].reason
    assert reason.endswith("; all but 1 row hold numbers, not 'missing missing missing missi…'")


def test_all_rows_are_read_for_the_word_only_if_the_first_ones_show_at_most_one() -> None:
    read: list[int] = []

    def rows(first: list[str], rest: list[str]) -> tuple[pl.DataFrame, pl.LazyFrame]:
        frame = pl.DataFrame({"a": first + rest})

        def counted(some: pl.DataFrame) -> pl.DataFrame:
            read.append(some.height)
            return some

        return frame.head(FIRST), frame.lazy().map_batches(counted, schema=frame.schema)

    assert word_among_numbers(*rows(["1", "S", "M"] * FIRST, ["2"])) is None
    assert not read
    assert word_among_numbers(*rows(["1", "2.5", "-"] * FIRST, ["NA"])) is None
    assert word_among_numbers(*rows(["1"] * FIRST, ["NA", "2", "NA"])) == ("NA", 2)
    assert read


def test_a_column_of_the_events_that_the_users_have_too_is_told(tmp_path: Path) -> None:
    rows = "".join(f"u{n % 3},i{n},{'ab'[n % 2]},{'xy'[n % 2]}\n" for n in range(30))
    (tmp_path / "e.csv").write_text("user,item,country,device\n" + rows)
    (tmp_path / "u.csv").write_text("user,country\nu0,FR\nu1,DE\nu2,FR\n")
    config = DataConfig(split="random", valid_share=0, test_share=0)
    prepare.run(config, tmp_path / "e.csv", tmp_path / "set", users=tmp_path / "u.csv")
    told = column_lines(Dataset.open(tmp_path / "set"))
    assert [line for line in told if " country " in line] == [
        "  events  country  left out: the users have a column of this name, which features read; rename one",
        "  users   country  categorical: 2 different texts in 3 rows",
    ]
    assert "  events  device   categorical: 2 different texts in 30 rows" in told
    similarity = parse_config({"task": "similarity", "similarity": {"column": "kind"}, "loss": {"name": "am_softmax"}})
    told = column_lines(Dataset.open(tmp_path / "set"), similarity)
    alone = "left out: task = 'similarity' trains the item tower alone"
    assert [line.split(maxsplit=2)[2] for line in told if " country " in line or " device " in line] == [alone] * 3
