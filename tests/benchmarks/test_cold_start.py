"""The study of cold starts: what its embeddings hold, what content alone recommends, how figures become claims."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from benchmarks.harness.content import nearest
from benchmarks.quality import cold_start as study
from benchmarks.quality import cold_start_data as made
from benchmarks.readme import ml_100k_rows
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import HeldOut, seen
from towers.config.recipe import parse_config

FILMS = [
    ["1", "Red Moon", "1995", "Drama"],
    ["2", "red Sun", "1996", "Drama War"],
    ["3", "Lake", "", "War"],
    ["4", "Moon", "1998", "Comedy"],
]


def test_a_view_is_linear_in_the_direction_of_the_latent_factors() -> None:
    latent = np.random.default_rng(0).random((80, 8))
    exact = made.view(latent, 0.0, np.random.default_rng(1))
    assert exact.shape == (80, made.NUMBERS)
    # The length of the factors, which is popularity, leaves no trace.
    np.testing.assert_allclose(made.view(latent * np.arange(1, 81)[:, None], 0.0, np.random.default_rng(1)), exact)
    unit = latent / np.linalg.norm(latent, axis=1, keepdims=True)
    back = exact @ np.linalg.lstsq(exact, unit, rcond=None)[0]
    np.testing.assert_allclose(back, unit, atol=1e-4)
    noise = made.view(latent, 3.0, np.random.default_rng(1)) - exact
    assert np.linalg.norm(noise, axis=1).mean() == pytest.approx(3.0, rel=0.05)


def test_the_decomposition_keeps_the_cosines_of_the_weights() -> None:
    texts = [["a", "b"], ["a", "c"], ["b", "c", "c"], ["once", "a"]]
    # Each of a, b, c is in 3, 2 and 2 of four texts; `once` is in one, and left out.
    a, b = np.log(4 / 3), np.log(4 / 2)
    first, second = np.array([a, b, 0]) / np.hypot(a, b), np.array([a, 0, b]) / np.hypot(a, b)
    reduced = made.reduced(texts, 3)
    assert reduced[0] @ reduced[1] == pytest.approx(first @ second)
    np.testing.assert_allclose(np.linalg.norm(reduced, axis=1), 1)
    assert made.reduced(texts, 2).shape == (4, 2)


def test_a_year_rises_from_edge_to_edge() -> None:
    got = made.steps(np.array([1940.0, 1975.0, 1998.0]), (1960, 1970, 1980, 1990))
    assert got.tolist() == [[0, 0, 0], [1, 0.5, 0], [1, 1, 1]]


def test_films_without_a_year_have_the_typical_one() -> None:
    vectors = made.of_films(FILMS)
    years = len(made.YEARS) - 1
    np.testing.assert_array_equal(vectors[2, -years:], made.steps(np.array([1996.0]), made.YEARS)[0])
    assert np.linalg.norm(vectors[0, :-years] - vectors[1, :-years]) > 0


def test_the_files_of_films_have_a_column_of_vectors(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "ml-100k.inter").write_text("user_id:token\titem_id:token\n1\t2\n")
    rows = "".join("\t".join(row) + "\n" for row in FILMS)
    (data / "ml-100k.item").write_text(f"item_id:token\tmovie_title:token_seq\tyear:token\tclass:token_seq\n{rows}")
    (data / "ml-100k.user").write_text(
        "user_id:token\tage:token\tgender:token\toccupation:token\tzip:token\n1\t30\tF\tnone\t0\n2\t20\tM\twriter\t0\n"
    )
    out = made.films(data, tmp_path)
    first, *lines = (out / "ml-100k.item").read_text().splitlines()
    assert first.endswith(f"\t{made.EMBEDDING}:float_seq")
    got = [[float(x) for x in line.split("\t")[-1].split(" ")] for line in lines]
    np.testing.assert_allclose(got, made.of_films(FILMS), atol=1e-5)
    users = (out / "ml-100k.user").read_text().splitlines()[1:]
    assert [line.split("\t")[-1].split(" ")[-3:] for line in users] == [
        ["1.00000", "1.00000", "0.00000"],
        ["0.00000", "0.00000", "1.00000"],
    ]


def test_content_is_nearest_to_the_mean_of_the_history_and_others_answer_who_has_none() -> None:
    vectors = np.array([[1, 0], [1, 0.1], [-1, 0.1], [0, 1], [-1, -1.2]], np.float32)  # their mean is zero
    held = HeldOut(
        users=np.arange(2, dtype=np.int32),
        target_offsets=np.array([0, 1, 2]),
        target_items=np.array([3, 3], np.int32),
        seen_offsets=np.array([0, 1, 1]),
        seen_items=np.array([0], np.int32),
        dropped_targets=0,
    )
    lists = nearest(vectors, 3, lambda held: np.tile(np.array([4, 3, 2], np.int32), (len(held.users), 1)))(held)
    assert lists.tolist() == [[1, 3, 4], [4, 3, 2]]


def test_a_world_has_new_users_new_items_and_vectors_of_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made, "SIZES", {"users": 1_000, "items": 1_000, "events": 10_000})
    data = made.world(7, tmp_path)
    assert np.asarray(data.items[made.EMBEDDING].to_list()).shape == (1_000, made.NUMBERS)
    assert np.asarray(data.users[made.EMBEDDING].to_list()).shape == (1_000, made.NUMBERS)
    offsets, items = seen(data, ("train", "valid"))
    tested = data.events("test")
    assert np.setdiff1d(tested.item, items).size > 0
    asked = np.flatnonzero(np.diff(tested.offsets))
    assert (np.diff(offsets)[asked] == 0).any()
    assert Dataset.open(tmp_path / "datasets" / "world_7").manifest.fingerprint == data.manifest.fingerprint
    # The embedding of an item is that of its own topics: those of one category are alike.
    frame = data.items.with_columns(pl.col(made.EMBEDDING).cast(pl.Array(pl.Float32, made.NUMBERS)))
    vectors, category = frame[made.EMBEDDING].to_numpy(), frame["category"].to_numpy()
    cosine = np.corrcoef(vectors - vectors.mean(axis=0))
    same = category[:, None] == category
    assert cosine[same & ~np.eye(1_000, dtype=bool)].mean() > cosine[~same].mean() + 0.2


@pytest.mark.parametrize("recipes", [(study.OF_WORLD, study.OF_WORLD), (study.OF_FILMS, study.OF_NEW_FILMS)])
def test_the_models_differ_in_vectors_and_in_the_norm(recipes: study.Recipes) -> None:
    ids, vectors, level = (study.recipe_of(name, recipes) for name in (study.IDS, study.VECTORS, study.LEVEL))
    for each in (ids, vectors, level):
        parse_config(each)
    assert "embedding" not in str(ids)
    assert "mask_share" not in str(ids)
    assert "'kind': 'vector'" in str(vectors["features"]["candidate"]) and "'kind': 'vector'" in str(level["features"])
    assert [each["model"]["norm_exponent"] for each in (ids, vectors, level)] == [0.0, 0.0, 1.0]
    if recipes[0] is recipes[1]:
        assert {**vectors, "model": None} == {**level, "model": None}


def run_with(user: list[str], warm: list[bool], new: list[int], value: float) -> dict[str, Any]:
    columns = {
        f"{name} {metric}@50": [value if name == "exact" else 0.1] * len(user)
        for name in ("exact", *study.BASELINES)
        for metric in ("recall", "new_recall")
    }
    return {"user": user, "warm": warm, "new": new, "chance": [0.1 if each else 0.0 for each in new], **columns}


def test_questions_are_sliced_by_user_and_by_target_and_claims_follow() -> None:
    users = ["a", "b", "c"]
    values = {study.IDS: 0.1, study.VECTORS: 0.3, study.LEVEL: 0.2}
    runs = {name: [run_with(users, [True, False, False], [2, 1, 0], value)] for name, value in values.items()}
    found = study.figures_of(users, runs)
    assert [found[part]["questions"] for part in study.SLICES] == [3, 2, 2]
    assert found["new items"]["targets"] == 3
    assert found["new users"][f"{study.VECTORS} minus {study.USERS_ALIKE}"]["value"] == pytest.approx(0.2)
    assert found["new items"][f"{study.LEVEL} minus {study.CHANCE}"]["low"] == pytest.approx(0.1)
    both = {"world": found, "ml-100k": found}
    assert list(study.claims_of(both).values()) == [True] * 6
    below = study.figures_of(users, runs | {study.LEVEL: [run_with(users, [True] * 3, [2, 1, 0], 0.19)]})
    assert [name for name, holds in study.claims_of({"world": below}).items() if not holds] == [
        "world: recall@50 of new items at least twice chance"
    ]
    assert study.markdown(found).splitlines()[0] == "|  | all | new users | new items |"
    told = ml_100k_rows.cold_start({"figures": both})
    assert [what for what, _, command in told if command == "quality.cold_start --work DIR"] == [
        "Three synthetic worlds, pretrained vectors, x = 1, items without an event: recall@50 / content / chance",
        "… another model, x = 0, users without an event: recall@50 / popularity by users / item-kNN",
        "MovieLens-100k, five cut-offs, pretrained vectors, x = 1, items without an event: recall@50 / content / "
        "chance",
        "… another model, x = 0, users without an event: recall@50 / popularity by users / item-kNN",
    ]
    assert told[0][1].startswith("0.2000 (0.2000 to 0.2000) / 0.1000 / 0.1000")
