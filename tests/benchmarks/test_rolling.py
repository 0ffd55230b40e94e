"""The rolling study on MovieLens-100k: what chance is, what a cut-off holds, how questions are pooled."""

import itertools
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.harness.cut_offs import prepared
from benchmarks.harness.newcomers import chance
from benchmarks.quality import rolling as study
from benchmarks.readme import ml_100k_rows
from pipelines.dataset.heldout import HeldOut, heldout
from pipelines.rankers.baselines import baselines_of
from towers.config.recipe import parse_config


def test_chance_is_the_mean_over_every_order_of_the_candidates() -> None:
    # Item 5 of six has no vector. User 0 has seen item 0 and wants 1, 2 and 5; user 1 wants 0, which is not new.
    held = HeldOut(
        users=np.arange(3, dtype=np.int32),
        target_offsets=np.array([0, 3, 4, 5]),
        target_items=np.array([1, 2, 5, 0, 3], np.int32),
        seen_offsets=np.array([0, 2, 2, 3]),
        seen_items=np.array([0, 0, 5], np.int32),
        dropped_targets=0,
    )
    new = np.array([False, True, True, True, False, True])
    rows = np.array([0, 1, 2, 3, 4, -1])
    k = 2

    def recalled(wanted: set[int], candidates: set[int]) -> float:
        orders = list(itertools.permutations(sorted(candidates)))
        return float(np.mean([len(wanted & set(order[:k])) / len(wanted) for order in orders]))

    expected = [recalled({1, 2, 5}, {1, 2, 3, 4}), 0.0, recalled({3}, {0, 1, 2, 3, 4})]
    np.testing.assert_allclose(chance(held, new, rows, k), expected, rtol=1e-12)
    assert chance(held, new, rows, 50)[2] == 1


def test_a_mean_is_over_questions_and_a_difference_is_paired() -> None:
    users = ["a", "a", "b", "c"]
    rng = np.random.default_rng(0)
    names = (*study.BASELINES, *study.VARIANTS)
    columns = {f"{name} recall@50": rng.random(4) for name in names}
    chosen = np.array([True, True, True, False])
    got = study.compared(users, columns, chosen, "recall@50")
    assert (got["questions"], got["users"]) == (3, 2)
    for name in names:
        assert got[name]["value"] == pytest.approx(columns[f"{name} recall@50"][:3].mean())
    # Of two users a resample is one of them twice, or both: the interval spans the users' own means.
    difference = (columns["history recall@50"] - columns["ids recall@50"])[:3]
    alone = sorted([difference[:2].mean(), difference[2]])
    assert got["history minus ids"]["low"] == pytest.approx(alone[0])
    assert got["history minus ids"]["high"] == pytest.approx(alone[1])


def test_a_variant_has_its_features_its_own_settings_and_everything_else_of_the_recipe() -> None:
    recipe = tomllib.loads(study.RECIPE.read_text(encoding="utf-8"))
    named = {name: study.variant(recipe, name) for name in study.VARIANTS}
    # Nothing but the features says what is in fashion.
    alone = {**recipe, "model": recipe["model"] | {"prior": "off", "norm_exponent": 0.0}}
    assert named["user features"] == alone
    assert {side: list(features) for side, features in named["history"]["features"].items()} == {
        "query": ["user_id", "history"],
        "candidate": ["item_id", "audience"],
    }
    assert named["ids"]["model"] == alone["model"] | {"temperature": 0.2, "norm_exponent": 1.0}
    assert named["ids"]["train"] == recipe["train"] | {"balance": 0.0}
    assert named["ids"]["optimizer"] == recipe["optimizer"]
    # Its prior and norm exponent are chosen on validation, as `towers train` does it.
    assert named["recipe"] == recipe
    assert named["recipe"]["model"]["prior"] == "validation"
    assert list(named["item features"]["features"]["candidate"]) == ["item_id", "release_year", "genres"]
    for config in named.values():
        parse_config(config)


def test_a_goal_is_reached_where_the_whole_interval_is_above_0_for_all_users() -> None:
    baselines = ("popularity", "balanced popularity", "popularity_recent", "item_knn", "ease", "ease_recent")
    variants = ("user features", "recipe")

    def lows(value: float) -> dict[str, Any]:
        return {f"{name} minus {other}": {"value": 0.1, "low": value} for name in variants for other in baselines}

    figures = {part: {f"recall@{k}": lows(0.01) for k in (10, 50)} for part in ("all", "warm", "cold")}
    figures["all"]["recall@10"]["recipe minus ease"]["low"] = -0.001
    figures["all"]["recall@50"]["user features minus popularity_recent"]["low"] = 0.0
    figures["cold"]["recall@50"]["recipe minus item_knn"]["low"] = -1.0
    goals = study.goals_of(figures)
    assert len(goals) == 2 * 2 * 6
    assert {goal for goal, reached in goals.items() if not reached} == {
        "recall@10, all users: recipe above EASE",
        "recall@50, all users: user features without prior above recent popularity",
    }


def test_the_row_of_a_variant_has_its_difference_from_every_baseline() -> None:
    names = ("popularity", "balanced popularity", "popularity_recent", "item_knn", "ease", "ease_recent")
    steps = ("history minus ids", "user features minus history", "user features minus ids")
    figure = {name: {"value": 0.25} for name in ("ids", "history", "user features", "recipe", "balanced popularity")}
    for place, name in enumerate(names):
        figure[f"recipe minus {name}"] = {"value": place / 10, "low": place / 10 - 0.05, "high": place / 10 + 0.05}
        figure[f"user features minus {name}"] = {"value": -1.0, "low": -2.0, "high": 0.0}
    figure |= {step: {"value": 0.0, "low": 0.0, "high": 0.0} for step in steps}
    chance = {name: {"value": 0.1, "low": 0.0, "high": 0.2} for name in ("item features", "chance")}
    parts = {part: {"recall@10": figure, "recall@50": figure} for part in ("all", "warm", "cold")}
    rows = ml_100k_rows.ml_100k_rolling({"figures": parts | {"new items": {"new_recall@50": chance}}})
    told = {what: shown for what, shown, _ in rows}
    assert told["… five cut-offs in time, all users, the recipe with its prior: recall@10; less each baseline's"] == (
        "0.2500; popularity 0.0000 (-0.0500 to 0.0500), popularity that counts users alike 0.1000 (0.0500 to 0.1500), "
        "recent popularity 0.2000 (0.1500 to 0.2500), item-kNN 0.3000 (0.2500 to 0.3500), EASE 0.4000 (0.3500 to "
        "0.4500), EASE with recent popularity 0.5000 (0.4500 to 0.5500)"
    )
    alone = "… five cut-offs in time, all users, user features, without the recipe's prior: recall@50; less each "
    assert told[f"{alone}baseline's"].startswith("0.2500; popularity -1.0000 (-2.0000 to 0.0000), ")


def test_a_cut_off_holds_a_tenth_of_the_events_after_it_and_nothing_later(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    rng = np.random.default_rng(1)
    times = rng.permutation(1000)
    pairs = rng.permutation(1200)[:1000]
    lines = [f"{pair // 40}\t{pair % 40}\t3\t{time}" for pair, time in zip(pairs, times, strict=True)]
    (data / "ml-100k.inter").write_text(
        "user_id:token\titem_id:token\trating:float\ttimestamp:float\n" + "\n".join(lines) + "\n"
    )
    (data / "ml-100k.item").write_text("item_id:token\tclass:token_seq\n" + "".join(f"{i}\ta b\n" for i in range(40)))
    (data / "ml-100k.user").write_text("user_id:token\tage:token\n" + "".join(f"{u}\t{u}\n" for u in range(30)))
    dataset = prepared(data, 0.5, tmp_path)
    boundaries = dataset.manifest.split.boundaries
    assert (boundaries["valid"], boundaries["test"]) == (400, 500)
    time = dataset.events("test").time
    assert time is not None
    assert int(np.max(time)) <= 599
    # What is asked beside the model are the baselines of a report, as it fits them.
    made, held = study.baselines(dataset, 5), heldout(dataset, "test")
    assert list(made) == ["popularity", "balanced popularity", "popularity_recent", "item_knn", "ease", "ease_recent"]
    reported = baselines_of(dataset, ("train", "valid"), 5).rankers
    for name in made:
        wanted = reported["popularity_users" if name == "balanced popularity" else name]
        np.testing.assert_array_equal(made[name](held), wanted(held))
