"""The values that a tower learnt, as the bundle's files list them."""

import shutil
from pathlib import Path

import polars as pl

from serving.bundle.manifest import FeatureSpec
from serving.bundle.reader import Bundle
from serving.bundle.vocabulary import known_values
from tests.support.paths import ROOT
from tests.support.worlds.serving import no_towers, write_world

GOLDEN = ROOT / "tests" / "golden"


def test_the_most_frequent_values_come_first() -> None:
    bundle = Bundle.open(GOLDEN / "bundle", verify=False)
    users = pl.read_parquet(GOLDEN / "dataset" / "users.parquet")
    for column in ("country", "age_group"):
        counts = users[column].drop_nulls().value_counts()
        wanted = counts.sort(["count", column], descending=[True, False])[column].to_list()
        assert len(wanted) > 3
        assert known_values(bundle, column, 100) == wanted
        assert known_values(bundle, column, 2) == wanted[:2]


def test_the_item_tower_has_values_of_its_own() -> None:
    bundle = Bundle.open(GOLDEN / "bundle", verify=False)
    items = pl.read_parquet(GOLDEN / "dataset" / "items.parquet")
    assert known_values(bundle, "category", 100) == []
    found = known_values(bundle, "category", tower="candidate_tower")
    assert len(found) > 3 and {*found} == {*items["category"].drop_nulls()}


def test_a_feature_without_a_vocabulary_has_no_values() -> None:
    bundle = Bundle.open(GOLDEN / "bundle", verify=False)
    assert known_values(bundle, "created", 100) == known_values(bundle, "planet", 100) == []


def write(out: Path, name: str, text: bytes) -> Bundle:
    """A bundle whose query tower has one vocabulary, under a name that the feature need not fit."""

    def towers(directory: Path) -> None:
        no_towers(directory)
        (directory / "query_tower" / "assets").mkdir()
        (directory / "query_tower" / "assets" / name).write_bytes(text)

    features = [FeatureSpec(name="genre", kind="categorical", dtype="string")]
    write_world(out, features=features, write_towers=towers)
    return Bundle.open(out)


def test_only_line_feeds_end_a_value_and_the_item_tower_may_answer_queries(tmp_path: Path) -> None:
    bundle = write(tmp_path / "bundle", "candidate.genre.txt", "a b\r\u2028c\n<i>\nlast".encode())
    assert known_values(bundle, "genre", 100) == ["a b\r\u2028c", "<i>", "last"]


def test_a_name_leads_to_no_file_outside_the_vocabularies(tmp_path: Path) -> None:
    bundle = write(tmp_path / "bundle", "query.genre.txt", b"drama\n")
    (tmp_path / "secret.txt").write_text("secret\n")
    assets = bundle.path / "query_tower" / "assets"
    (assets / "query.x").mkdir()
    outside = "x/../../../../secret"
    assert (assets / f"query.{outside}.txt").read_text() == "secret\n"
    assert known_values(bundle, outside, 100) == []


def test_an_open_bundle_that_was_deleted_has_none(tmp_path: Path) -> None:
    bundle = write(tmp_path / "bundle", "query.genre.txt", b"drama\n")
    assert known_values(bundle, "genre", 100) == ["drama"]
    shutil.rmtree(bundle.path)
    assert known_values(bundle, "genre", 100) == []
