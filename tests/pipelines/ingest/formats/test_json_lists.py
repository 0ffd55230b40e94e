"""Attributes that are one JSON object, id to list of words."""

import csv
import gzip
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.errors import DataError
from tests.support.worlds.prepared import opened

EVENTS = "user,item\nada,1\nada,2\nbob,3\n"


def events(folder: Path) -> Path:
    (folder / "events.csv").write_text(EVENTS)
    return folder / "events.csv"


@pytest.mark.parametrize("name", ["goods.json", "GOODS.JSON", "goods.json.gz"])
def test_ids_and_lists_become_a_column(tmp_path: Path, name: str) -> None:
    content = "\ufeff" + json.dumps({"2": ["tea", "grün"], "1": [7, "7"], "3": []}, ensure_ascii=False, indent=1)
    raw = content.encode()
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    data = opened(tmp_path, events(tmp_path), items=tmp_path / name)
    assert data.manifest.item_columns == {"attributes": "list"}
    found = dict(zip(data.items["item_id"], data.items["attributes"].to_list(), strict=True))
    assert found == {"1": ["7", "7"], "2": ["tea", "grün"], "3": []}


def test_the_folder_of_the_events_may_hold_it(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    events(source)
    (source / "users.json").write_text('{"ada": ["a"], "bob": ["b", "c"]}')
    data = opened(tmp_path, source)
    assert data.manifest.user_columns == {"attributes": "list"}
    assert data.users["attributes"].to_list() == [["a"], ["b", "c"]]


WORDS = st.lists(st.text(st.characters(exclude_categories=("Cs",)), max_size=4) | st.integers(), max_size=4)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.fixed_dictionaries(dict.fromkeys("123", WORDS)), ascii=st.booleans())
def test_any_words_come_back(tmp_path: Path, words: dict[str, list[str | int]], ascii: bool) -> None:
    (tmp_path / "goods.json").write_text(json.dumps(words, ensure_ascii=ascii), encoding="utf-8")
    data = opened(tmp_path, events(tmp_path), items=tmp_path / "goods.json")
    found = dict(zip(data.items["item_id"], data.items["attributes"].to_list(), strict=True))
    assert found == {name: [str(word) for word in some] for name, some in words.items()}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        *((value, value) for value in ("null", '"tea"', "[[1]]", "[1.5]", "[true]", "5")),
        (r'["a", "\ud800"]', r'["a", "\ud800"]'),  # half of a surrogate pair: no UTF-8 holds it
    ],
)
def test_an_entry_that_is_no_list_of_words_is_named_or_skipped(tmp_path: Path, value: str, shown: str) -> None:
    path = tmp_path / "goods.json"
    path.write_text(f'{{"1": ["a"],\n "2": ["b"], "4": {value},\n "3": []}}')
    with pytest.raises(DataError) as caught:
        opened(tmp_path, events(tmp_path), items=path)
    reason = "expected a list of words or whole numbers"
    assert str(caught.value).startswith(f"{path}, row 3, column 'attributes': {reason}, got {shown!r}")
    data = opened(tmp_path, events(tmp_path), items=path, on_bad_rows="skip")
    (row,) = csv.DictReader((data.path / "rejects.csv").read_text(encoding="utf-8").splitlines())
    assert (row["file"], row["row"], row["column"], row["value"]) == ("goods.json", "3", "attributes", shown)
    assert sorted(data.items["item_id"]) == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r": the file is empty$"),
        (b'{"1": ["a"],\n "2": [}', r", row 2: not JSON: Expecting value$"),
        (b'{"1": ["a"]}\n{"2": ["b"]}\n', r": no column of item ids; it has 1, 2; .* rename it to item_id, "),  # lines
        (b'[{"1": ["a"]}]', r": expected one JSON object of ids and lists, got a list$"),
        (b"{}", r": no row to read$"),
        (b'{"1": ["caf\xe9"]}', r", row 1: not UTF-8 \(byte 0xe9\)"),
        (b'{"1": ["a"], "1": ["b"]}', r", row 2, column 'id': a duplicate row of this item"),
        (b'{"": ["a"]}', r", row 1, column 'id': an empty id"),
        (rb'{"1": ["a"], "\ud800": ["b"]}', r", row 2, column 'id': the id holds half of a surrogate pair"),
        (b'{"1": [' + b"7" * 5_000 + b"]}", r": cannot be read: .*digits"),
        (b'{"1": ' + b"[" * 100_000, r": cannot be read: .*recursion"),
    ],
)
def test_a_file_that_is_no_object_of_lists_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "goods.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"^{path}{message}"):
        opened(tmp_path, events(tmp_path), items=path)


@pytest.mark.parametrize("bom", ["", "\ufeff"])
@pytest.mark.parametrize(
    "content",
    ['{"item": "1", "c": "x"}\n', '\n\n{"item": "1", "c": "x"}\n', '{"item": "1", "c": "x"}\n\n{"item": "2"}\n'],
)
def test_json_lines_may_be_one_or_stand_beside_blank_ones(tmp_path: Path, content: str, bom: str) -> None:
    (tmp_path / "events.csv").write_text("user,item\nada,1\n")
    (tmp_path / "goods.json").write_text(bom + content, encoding="utf-8")
    data = opened(tmp_path, tmp_path / "events.csv", items=tmp_path / "goods.json")
    assert dict(zip(data.items["item_id"], data.items["c"], strict=True))["1"] == "x"
    assert data.items.height == content.count("item")


def test_an_object_of_lists_may_have_a_bad_entry_on_its_only_line(tmp_path: Path) -> None:
    (tmp_path / "goods.json").write_text('{"1": ["a"], "2": null, "3": []}')
    data = opened(tmp_path, events(tmp_path), items=tmp_path / "goods.json", on_bad_rows="skip")
    assert dict(zip(data.items["item_id"], data.items["attributes"].to_list(), strict=True)) == {"1": ["a"], "3": []}


@pytest.mark.parametrize("text", ['[{"user": "u", "item": "i"}]', '[\n{"user": "u", "item": "i"}\n]', "[\n {\n"])
def test_an_array_of_events_is_told_how_to_become_lines(tmp_path: Path, text: str) -> None:
    (tmp_path / "events.json").write_text(text)
    with pytest.raises(
        DataError, match=r"row 1: not a JSON object.*; one object per line is read: jq -c '\.\[\]' FILE"
    ):
        opened(tmp_path, tmp_path / "events.json")
