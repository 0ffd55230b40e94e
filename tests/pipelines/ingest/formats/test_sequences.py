"""Files of `user item item …` lines in time order: the order is kept, and every line that is no sequence is named."""

import csv
import gzip
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.dataset.dataset import Dataset
from pipelines.errors import DataError
from pipelines.ingest import prepare
from pipelines.ingest.formats import table
from tests.support.paths import ROOT
from towers.config.sections import DataConfig

ALL_TRAIN = DataConfig(valid_share=0, test_share=0, duplicates="keep")
LINES = b"ada tea bread jam\nbob\tjam  tea\n"


def opened(tmp_path: Path, events: Path, config: DataConfig = ALL_TRAIN, **options: object) -> Dataset:
    prepare.run(config, events, tmp_path / "out", overwrite=True, **options)
    return Dataset.open(tmp_path / "out")


def lists(data: Dataset, split: str = "train") -> dict[str, list[str]]:
    """The items of each user with events, in stored order."""
    events, items = data.events(split), data.items["item_id"].to_list()
    spans = zip(data.users["user_id"], events.offsets[:-1], events.offsets[1:], strict=True)
    return {user: [items[item] for item in events.item[a:b]] for user, a, b in spans if a < b}


@pytest.mark.parametrize("name", ["sequences.txt", "Sequences.TXT", "sequences.txt.gz"])
@pytest.mark.parametrize("folder", [False, True])
def test_the_name_alone_says_that_lines_are_in_time_order(tmp_path: Path, name: str, folder: bool) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / name).write_bytes(gzip.compress(LINES) if name.endswith(".gz") else b"\xef\xbb\xbf" + LINES)
    (source / "items.csv").write_text("item,title\ntea,Tea\nbread,Bread\njam,Jam\n")
    (source / "more.txt").write_text("is not read")
    items = {} if folder else {"items": source / "items.csv"}
    data = opened(tmp_path, source if folder else source / name, DataConfig(), **items)
    assert data.manifest.source.format == "sequences" and data.manifest.time_unit == "order"
    assert data.manifest.split.kind == "leave_last_out" and data.manifest.timed
    found = [lists(data, split) for split in ("train", "valid", "test")]
    assert found == [{"ada": ["tea"], "bob": ["jam"]}, {"ada": ["bread"]}, {"ada": ["jam"], "bob": ["tea"]}]
    assert sorted(data.items["title"]) == ["Bread", "Jam", "Tea"]


def test_the_example_of_the_page_is_read_as_the_page_says(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "model" / "data.md").read_text(encoding="utf-8")
    example = page.split("\n## Sequences\n")[1].split("```text\n")[1].split("```")[0]
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "sequences.txt").write_text(example)
    data = opened(tmp_path, tmp_path / "events", DataConfig())
    found = [lists(data, split) for split in ("train", "valid", "test")]
    assert found == [
        {"ada": ["tea"], "bob": ["jam"]},
        {"ada": ["bread"], "bob": ["tea"]},
        {"ada": ["jam"], "bob": ["milk"]},
    ]
    assert data.manifest.dropped == {"duplicates": 1}


ID = st.text(st.characters(exclude_categories=("Cs", "Cc", "Z")), min_size=1, max_size=4)
WORD = ID.filter(lambda text: not text.replace(".", "").replace("-", "").isdigit() and "\ufeff" not in text)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    wanted=st.dictionaries(WORD, st.lists(WORD, min_size=1, max_size=5), min_size=1, max_size=6),
    blank=st.sampled_from([" ", "\t", "  \t"]),
    end=st.sampled_from(["\n", "\r\n"]),
    batch=st.sampled_from([1, 2, 1000]),
)
def test_any_lists_come_back_in_their_order(
    tmp_path_factory: pytest.TempPathFactory, wanted: dict[str, list[str]], blank: str, end: str, batch: int
) -> None:
    folder = tmp_path_factory.mktemp("lists")
    text = end.join(blank.join([user, *items]) for user, items in wanted.items())
    (folder / "any.txt").write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "BATCH_ROWS", batch)
        data = opened(folder, folder / "any.txt", format="sequences")
    assert lists(data) == wanted


# Line 3 of a file is bad; then its column, the reason and the value in rejects.csv.
BAD = {
    "an empty line": (b"\n", "line", "an empty line: expected 'user item item …'", ""),
    "a line of blanks": (b" \t \n", "line", "an empty line", " \t "),
    "a user without items": (b"cat\n", "line", "a user without items: expected 'user item item …'", "cat"),
    "a user twice": (b"ada milk\n", "user_id", "a second line of this user", "ada"),
    "not UTF-8": (b"caf\xe9 milk\n", "", "not UTF-8", ""),
    "a user of another form": (b"1.0 milk\n", "user_id", "ids that differ only by type", "1.0"),
}


@pytest.mark.parametrize("batch", [1, 1000])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("case", BAD)
def test_a_bad_line_is_named_or_skipped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, packed: bool, batch: int
) -> None:
    monkeypatch.setattr(table, "BATCH_ROWS", batch)
    line, column, reason, value = BAD[case]
    content = b"1 tea\nada tea bread\n" + line + b"bob jam tea\n"
    path = tmp_path / ("sequences.txt.gz" if packed else "sequences.txt")
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(DataError) as caught:
        opened(tmp_path, path)
    where = f"{path}, row 3" + (f", column {column!r}: " if column else ": ")
    assert str(caught.value).startswith(where) and reason in str(caught.value)
    data = opened(tmp_path, path, on_bad_rows="skip")
    assert lists(data) == {"1": ["tea"], "ada": ["tea", "bread"], "bob": ["jam", "tea"]}
    (row,) = csv.DictReader((data.path / "rejects.csv").read_text(encoding="utf-8").splitlines())
    assert (row["file"], row["row"], row["column"], row["value"]) == (path.name, "3", column, value)
    assert reason in row["reason"] and data.manifest.rejected == 1


def test_an_item_of_another_form_is_left_out_of_its_line(tmp_path: Path) -> None:
    (tmp_path / "sequences.txt").write_text("ada 1 2\nbob 3 1.0 2\n")
    with pytest.raises(DataError, match=r"sequences.txt, row 2, column 'item_id': ids that differ .*, got '1.0'"):
        opened(tmp_path, tmp_path / "sequences.txt")
    data = opened(tmp_path, tmp_path / "sequences.txt", on_bad_rows="skip")
    assert lists(data) == {"ada": ["1", "2"], "bob": ["3", "2"]}


def test_every_second_line_of_a_user_is_refused_wherever_it_stands(tmp_path: Path) -> None:
    text = "a x\nb y\nb z\na y\nc x\nc y\nd z\na z w\n"
    (tmp_path / "sequences.txt").write_text(text)
    data = opened(tmp_path, tmp_path / "sequences.txt", on_bad_rows="skip")
    assert lists(data) == {"a": ["x"], "b": ["y"], "c": ["x"], "d": ["z"]}
    assert pl.read_csv(data.path / "rejects.csv")["row"].to_list() == [3, 4, 6, 8]


def test_parts_are_read_as_one_and_hold_each_user_once(tmp_path: Path) -> None:
    source = tmp_path / "parts"
    source.mkdir()
    (source / "part-0.txt").write_text("ada tea jam\n")
    (source / "part-1.txt.gz").write_bytes(gzip.compress(b"bob jam\ncat tea\n"))
    with pytest.raises(DataError, match=r"cannot tell the format of part-0.txt, part-1.txt.gz"):
        opened(tmp_path, source)
    data = opened(tmp_path, source, format="sequences")
    assert lists(data) == {"ada": ["tea", "jam"], "bob": ["jam"], "cat": ["tea"]}
    (source / "part-2.txt").write_text("dan tea\nada bread\n")
    with pytest.raises(DataError, match=rf"^{source}/part-2.txt, row 2, column 'user_id': a second line of this user"):
        opened(tmp_path, source, format="sequences")
    data = opened(tmp_path, source, format="sequences", on_bad_rows="skip")
    assert pl.read_csv(data.path / "rejects.csv").row(0)[:2] == ("part-2.txt", 2)


def test_a_given_split_has_a_line_of_a_user_in_each_part(tmp_path: Path) -> None:
    source = tmp_path / "given"
    source.mkdir()
    (source / "train.txt").write_text("ada tea jam\nbob jam\n")
    (source / "test.txt").write_text("bob tea milk\nada bread\n")
    data = opened(tmp_path, source, DataConfig(valid_share=0), format="sequences")
    assert data.manifest.split.kind == "given" and data.manifest.timed
    assert lists(data) == {"ada": ["tea", "jam"], "bob": ["jam"]}
    assert lists(data, "test") == {"ada": ["bread"], "bob": ["tea", "milk"]}
    (source / "test.txt").write_text("bob tea milk\nada bread\nbob jam\n")
    with pytest.raises(DataError, match=r"test.txt, row 3, column 'user_id': a second line of this user"):
        opened(tmp_path, source, format="sequences")


def test_a_folder_key_is_a_column_but_never_the_time(tmp_path: Path) -> None:
    for key, line in {"shop=a": "ada tea jam\n", "shop=b": "bob jam\n"}.items():
        (tmp_path / "shops" / key).mkdir(parents=True)
        (tmp_path / "shops" / key / "x.txt").write_text(line)
    data = opened(tmp_path, tmp_path / "shops", format="sequences")
    context = data.context("train")
    assert context is not None and context.collect()["shop"].to_list() == ["a", "a", "b"]
    (tmp_path / "days" / "date=2026-11-01").mkdir(parents=True)
    (tmp_path / "days" / "date=2026-11-01" / "x.txt").write_text("ada tea jam\n")
    with pytest.raises(DataError, match=r"x.txt: 'date' would be the time of its events, but the order of a line is"):
        opened(tmp_path, tmp_path / "days", format="sequences")
