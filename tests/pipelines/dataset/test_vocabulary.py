"""The vocabularies that training learns: which ids and values have a row, the most frequent ones first."""

import json
from pathlib import Path

import numpy as np
import polars as pl

from pipelines.dataset.dataset import Dataset
from pipelines.dataset.vocabulary import (
    LearntFeatures,
    _values,
    by_falling_count,
    learn_features,
    load_features,
    save_features,
)
from pipelines.ingest import prepare
from tests.towers.model.test_two_tower import TITLES, WORDS
from towers.config.features import TextFeature
from towers.config.recipe import parse_config
from towers.config.sections import DataConfig
from towers.data.events import Events
from towers.features.encoder import EARLIER_BREAKS, WORD_BREAKS, FeatureSpec


def test_ids_below_the_smallest_count_have_no_row() -> None:
    ids, numbers = pl.Series(["a", "b", "c"]), np.array([2, 2, 0, 1, 1, 1], np.int32)
    assert by_falling_count(ids, numbers, 1).to_list() == ["b", "c", "a"]
    assert by_falling_count(ids, numbers, 2).to_list() == ["b", "c"]


def test_each_kind_learns_as_many_values_as_the_recipe_allows(tmp_path: Path) -> None:
    events = {"user": ["x", "y", "z"] * 4, "item": ["p", "q", "r", "s"] * 3, "time": range(12)}
    items = {
        "item_id": ["p", "q", "r", "s"],
        "colour": ["red", "blue", "red", "green"],
        "tags": [["new", "old"], ["old"], ["cheap", "old", "new"], []],
        "title": ["The Sea", "a sea, the", "Sea!", "On"],
    }
    for name, columns in (("events", events), ("items", items)):
        pl.DataFrame(columns).write_parquet(tmp_path / f"{name}.parquet")
    prepare.run(DataConfig(), tmp_path / "events.parquet", tmp_path / "set", items=tmp_path / "items.parquet")
    data = Dataset.open(tmp_path / "set")
    users, item = np.array([0, 1, 1, 1, 2, 2], np.int32), np.array([3, 3, 3, 0, 0, 1], np.int32)

    def learnt(most: int, least: int) -> dict[str, list[str]]:
        ids = {"kind": "id", "min_count": least}
        kinds = {"colour": "categorical", "tags": "multi", "title": "text"}
        candidate = {name: {"kind": kind, "max_values": most} for name, kind in kinds.items()}
        config = parse_config({"features": {"query": {"user_id": ids}, "candidate": {"item_id": ids, **candidate}}})
        found = learn_features(config, data, Events(users, item, np.array([0, 1, 4, 6])), None, tmp_path)
        specs = [*found.query, *found.candidate]
        values = {spec.name: Path(spec.vocabulary).read_text().split() for spec in specs}
        assert {spec.name: spec.size for spec in specs} == {name: len(each) for name, each in values.items()}
        return values

    user_names, item_names = data.users["user_id"], data.items["item_id"]
    assert learnt(most=2, least=2) == {
        "user_id": [user_names[1], user_names[2]],
        "item_id": [item_names[3], item_names[0]],
        "colour": ["red", "blue"],
        "tags": ["old", "new"],
        "title": ["sea", "the"],
    }
    assert [len(values) for values in learnt(most=9, least=1).values()] == [3, 3, 3, 3, 4]


def test_features_of_an_earlier_release_keep_its_words(tmp_path: Path) -> None:
    spec = FeatureSpec("title", TextFeature(kind="text"), table="candidate.title")
    save_features(LearntFeatures([], [spec]), tmp_path)
    assert load_features(tmp_path).candidate[0].word_breaks == WORD_BREAKS
    file = tmp_path / "features.json"
    content = json.loads(file.read_text())
    del content["candidate"][0]["word_breaks"]
    file.write_text(json.dumps(content))
    assert load_features(tmp_path).candidate[0].word_breaks == EARLIER_BREAKS


def test_words_of_titles_are_those_that_the_towers_look_up() -> None:
    assert sorted(_values([pl.Series(TITLES)], "text", 99)) == sorted(WORDS)


def test_a_value_that_would_take_two_lines_of_the_file_has_no_row() -> None:
    column = pl.Series(["a", "a", "b\nc", "b\nc", "d\r", "e"])
    assert _values([column], "categorical", 10).to_list() == ["a", "e"]
