"""What `towers tune` searches, what it tries next, when it stops a trial, and how it writes a recipe down."""

import math
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import polars as pl
import pytest
import tensorflow as tf
from optuna.trial import Trial

from pipelines.dataset.dataset import Dataset
from pipelines.dataset.manifest import DatasetManifest
from pipelines.ingest import prepare
from pipelines.training.check import check_recipe
from pipelines.training.stage import EVENT_FILES
from pipelines.tuning import study as studies
from pipelines.tuning import training, tune
from pipelines.tuning.clock import USED, Clock
from pipelines.tuning.finals import Finals
from pipelines.tuning.recipe import text
from pipelines.tuning.search import LARGER_BATCH, SAMPLED, START
from pipelines.tuning.settings import GIVEN, USERS
from pipelines.tuning.space import Family, FixedSettings, families, sections
from pipelines.tuning.starts import ORIGINS, starts
from pipelines.tuning.study import PLACES, PLAN, RUN, Rungs, Tried, ended, open_study, waits
from pipelines.tuning.training import Run, Share, _Ended, _Watch
from pipelines.tuning.traits import Traits, validation
from towers.config.recipe import Config, parse_config
from towers.config.sections import DataConfig
from towers.errors import ConfigError

AGE = {"kind": "categorical", "column": "age"}
TRAITS = [
    Traits(False, False, False, items=40_000, density=18.0, whole_users=False, query={}, candidate={}),
    Traits(False, False, True, items=3_000, density=235.0, whole_users=True, query={}, candidate={}),
    Traits(True, False, True, items=50_000, density=5.0, whole_users=False, query={}, candidate={}),
    Traits(
        timed=True,
        clock=True,
        few_pairs=True,
        items=1_700,
        density=47.0,
        whole_users=False,
        query={"age": AGE},
        candidate={"genre": {"kind": "multi"}},
    ),
]


def run_of(*metrics: float, every: float = 1.0, end: str = "converged", criteria: Sequence[float] = ()) -> Run:
    common = {"cost": every, "train_seconds": 0.5, "seconds": every, "norm_exponent": 0.1}
    chosen_by = zip(metrics, criteria or metrics, strict=True)
    epochs = [common | {"metric": metric, "criterion": criterion} for metric, criterion in chosen_by]
    return Run.model_validate({"epochs": epochs, "end": end, "reason": ""})


def of_family(name: str, traits: Traits, *without: str) -> list[tuple[Any, ...]]:
    """What tells the starts of a family apart: all that `keys` name."""
    keys = ("temperature", "loss", "correction", "negatives", "known_positives", "cooccurrence", "recency")
    return [tuple(point.get(key) for key in keys) for point in starts(name, traits, 64, without)]


def test_the_starts_of_a_data_set_can_be_left_out() -> None:
    sparse, dense, timed, _ = TRAITS
    plain = rich = (0.1, "sampled_softmax", 1.0, 0, 0, None, None)
    less = (0.1, "bsl", 0.5, 0, 0, None, None)
    partial = (0.1, "bsl", 0.4, 1024, 0, None, None)
    of_dense = (0.17, "sampled_softmax", 1.0, 1024, 500, 0.0, None)
    assert of_family("ids", sparse) == of_family("ids", sparse, "ml-1m", "beauty") == [partial, rich]
    assert of_family("ids", sparse, "gowalla") == [rich, less]
    rich, less = (*rich[:5], 1.0, None), (*less[:5], 1.0, None)
    plain = (*plain[:5], 0.0, None)
    assert of_family(USERS, dense) == of_family(USERS, dense, "gowalla") == [(0.17, *plain[1:]), rich]
    assert of_family(USERS, dense, "ml-1m") == [rich, plain]
    assert {(start["neighbours"], start["balance"]) for start in starts(USERS, dense, 64)} == {(0.0, 0.5)}
    assert of_family("ids", dense) == of_family("ids", dense, "gowalla") == [of_dense, rich]
    assert of_family("ids", dense, "ml-1m") == of_family("graph", dense, "ml-1m", "gowalla") == [rich, less]
    assert of_family("history", dense, *ORIGINS) == [rich, less]
    assert [each[1] for each in of_family("graph", dense)] == ["bsl", "bsl"]
    assert of_family("graph", dense, "gowalla") == [rich, less]
    assert of_family("ids", replace(dense, whole_users=False)) == [of_dense, rich]
    assert of_family("ids", replace(dense, whole_users=False), *ORIGINS) == [rich, less]
    plain, rich, less = (*plain[:5], 0.0, 1.0), (*rich[:6], 4.0), (*less[:6], 4.0)
    hop = (0.12, "bsl", 0.3, 0, 0, 6.0, 4.0)
    assert of_family("graph", timed) == [hop, (0.17, "bsl", 0.7, 0, 500, 3.0, 8.0)]
    assert of_family("graph", replace(sparse, few_pairs=True))[0] == (*hop[:5], 3.0, None)
    assert of_family("graph", timed, "ml-1m") == [hop, rich]
    assert of_family("history", timed) == [(0.2, *plain[1:]), rich]
    assert [each[5] for each in of_family("sequence", timed)] == [1.0, 1.0]
    assert all(of_family(each, timed, *ORIGINS) == [rich, less] for each in ("ids", "graph", "history"))
    assert of_family("sequence", timed, *ORIGINS) == [(*rich[:3], 1024, *rich[4:]), plain]
    (graph, _), (ids, _) = (starts(each, timed, 64, ORIGINS) for each in ("graph", "ids"))
    assert (graph["neighbours_recency"], graph["item_rows"]) == (4.0, "cooccurrence")
    assert "neighbours_recency" not in ids
    (many, _) = starts("ids", replace(timed, few_pairs=False), 64, ORIGINS)
    assert many == {name: value for name, value in ids.items() if name != "item_rows"}


@pytest.mark.parametrize(
    ("items", "batch_size", "negatives"), [(50_000, 2048, 1024), (4_095, 1024, 1024), (1_700, 512, 256), (9, 256, 0)]
)
def test_a_start_has_batches_and_negatives_of_at_most_half_of_the_items(
    items: int, batch_size: int, negatives: int
) -> None:
    traits = replace(TRAITS[2], items=items)
    (first, _) = starts("ids", traits, 64)
    assert (first["batch_size"], first["negatives"]) == (batch_size, negatives)
    sizes = {point["batch_size"] for name in ("ids", "graph", "history") for point in starts(name, traits, 64)}
    assert max(sizes) == batch_size


@pytest.mark.parametrize("ordered", [True, False], ids=["in order", "sets"])
@pytest.mark.parametrize("shared", [True, False], ids=["the same items", "items of their own"])
def test_rows_start_from_co_occurrence_where_the_pairs_are_few_enough(
    ordered: bool, shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = tmp_path / "e.csv"
    lengths = (3, 4, 8, 9, 9)
    taken = [(user, item + 100 * user * (not shared)) for user, n in enumerate(lengths) for item in range(n)]
    events.write_text("user_id,item_id\n" + "".join(f"u{user},i{item}\n" for user, item in taken), encoding="utf-8")
    prepare.run(DataConfig(ordered=ordered, split="leave_last_out" if ordered else "random"), events, tmp_path / "data")
    data = Dataset.open(tmp_path / "data")
    by_user = Counter(user for split in ("train", "valid") for user in data.events(split).user.tolist())
    most = sum(10 * count if ordered else count**2 for count in by_user.values())
    assert (most > data.manifest.items**2) == shared
    for name, pairs in (("MOST_COUNTED", most), ("MOST_PAIRS", min(most, data.manifest.items**2))):
        for limit in (pairs - 1, pairs):
            monkeypatch.setattr(f"pipelines.tuning.traits.{name}", limit)
            assert Traits.of(data, Config()).few_pairs == (limit == pairs)


def test_impressions_make_no_data_set_dense_and_no_final_training_longer(tmp_path: Path) -> None:
    """Each of 20 users takes 8 of 10 items; what they left weighs 0, of which training has more than validation."""
    rows = [(f"u{u}", f"i{n}", 100 * n + u, int(n < 8)) for u in range(20) for n in range(10)]
    rows += [(f"u{u}", f"i{n}", 1, 0) for u in range(20) for n in range(2, 10)]
    events = "".join(f"{user},{item},{time},{weight}\n" for user, item, time, weight in rows)
    (tmp_path / "e.csv").write_text("user,item,time,weight\n" + events, encoding="utf-8")
    prepare.run(DataConfig(split="leave_last_out", duplicates="keep"), tmp_path / "e.csv", tmp_path / "data")
    data = Dataset.open(tmp_path / "data")
    assert Traits.of(data, Config()).density == 20 * 6 / 10
    assert data.manifest.events["train"] == 20 * (6 + 8)
    for loss, growth in (("bsl", 1 + 1 / 6), ("bce", 1 + (1 + 0) / (6 + 8))):
        fixed = FixedSettings(parse_config({"data": {"refit": True}, "loss": {"name": loss}}))
        assert tune._growth(data, fixed) == pytest.approx(growth)


@pytest.mark.parametrize("name", ["a b", "a?b", "a%41", "a#[1]", "a{b}{}é"])
def test_a_study_lies_in_its_file_whatever_the_folder_is_called(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    open_study(folder / "study.db", "search").set_user_attr("key", "kept")
    assert [path.name for path in folder.iterdir()] == ["study.db"]
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert open_study(folder / "study.db", "search").user_attrs == {"key": "kept"}


def steps(
    family: Family, best: dict[str, Any], last: tuple[str, int] = ("start", 0), **tries: int
) -> list[tuple[str, Any]]:
    found = list(family.steps(best, last, tries))
    assert all({**point, name: best[name]} == best for name, _, point in found)  # one setting differs
    return [(name, point[name]) for name, _, point in found if point[name] != best[name]]


def test_steps_change_one_setting_and_go_on_in_a_direction_that_was_right() -> None:
    family = Family("f", {"a": (1, 2, 3, 4), "b": ("x", "y")}, ())
    best = {"a": 2, "b": "x", "constant": 7}
    around = [("a", 3), ("a", 1), ("b", "y")]
    assert steps(family, best) == around * 2  # of four values, a wide step is a small one
    assert steps(family, best, ("a", -1)) == [("a", 1), *around * 2]
    assert steps(family, best, ("b", 1)) == [("b", "y"), *around * 2]


def test_steps_begin_with_co_occurrence_contrast_and_correction() -> None:
    for traits in TRAITS:
        for family in families(traits, (64,)):
            counts = (
                ["cooccurrence", *["contrast"] * (family.name != USERS)] if traits.timed or traits.few_pairs else []
            )
            # Of several dimensions the best is found before all else; a single one is not searched.
            first = ["dimension", *counts, "correction", "temperature"]
            assert list(family.settings)[: len(first)] == first


def test_steps_over_many_values_are_wide_first_and_end_at_the_bounds() -> None:
    many = Family("f", {"a": tuple(range(15))}, ())
    assert steps(many, {"a": 7}) == [("a", 10), ("a", 4), ("a", 8), ("a", 6)]
    assert steps(many, {"a": 13}, ("a", 3)) == [("a", 14), ("a", 14), ("a", 10), ("a", 14), ("a", 12)]
    assert steps(many, {"a": 7}, a=1)[:2] == [("a", 10), ("a", 4)]
    assert steps(many, {"a": 7}, a=2)[:2] == [("a", 8), ("a", 6)]


def test_every_setting_has_its_turn_before_one_has_a_second() -> None:
    family = Family("f", dict.fromkeys("abc", (1, 2, 3)), ())
    best = dict.fromkeys("abc", 2)
    for tries, order in (({}, "abc"), ({"a": 1}, "abc"), ({"a": 2}, "bca"), ({"a": 3, "b": 5}, "cab")):
        assert [name for name, _ in steps(family, best, **tries)][:6:2] == list(order), tries


def test_every_dimension_has_its_turn_with_the_first_step() -> None:
    family = Family("f", {"dimension": (64, 32, 128, 16), "a": (1, 2, 3)}, ())
    best = {"dimension": 64, "a": 2}
    for tries in (0, 1, 2):
        found = steps(family, best, dimension=tries)
        assert found[:5] == [("dimension", 32), ("dimension", 128), ("dimension", 16), ("a", 3), ("a", 1)]
    assert steps(family, best, dimension=3)[:3] == [("a", 3), ("a", 1), ("dimension", 32)]
    assert steps(family, {**best, "dimension": 128})[:3] == [("dimension", each) for each in (64, 32, 16)]


def test_a_point_is_where_its_places_say() -> None:
    start = {"a": 2, "b": "x", "constant": 7}
    family = Family("f", {"a": (1, 2, 3, 4), "b": ("x", "y")}, (start,))
    assert family.places(start) == {"a": 1, "b": 0}
    assert family.point({"a": 3, "b": 1}) == {"a": 4, "b": "y", "constant": 7}


@pytest.mark.parametrize("without", [(), ORIGINS], ids=["all", "plain"])
@pytest.mark.parametrize("traits", TRAITS)
def test_every_start_and_every_step_from_it_is_a_recipe(traits: Traits, without: tuple[str, ...]) -> None:
    found = families(traits, (48,), without)
    whole, ordered = [USERS] * traits.whole_users, ["sequence"] * traits.timed
    assert [each.name for each in found] == [*whole, "ids", "graph", "history", *ordered]
    for family in found:
        assert family.starts
        for start in family.starts:
            assert all(start[name] in values for name, values in family.settings.items())
            for point in [start, *(point for _, _, point in family.steps(start, ("", 0), {}))]:
                config = parse_config(sections(family.name, point, traits))
                assert config.model.dimension == 48
                of_users = family.name == USERS
                assert config.train.batch_size == (256 if of_users else point["batch_size"])
                assert config.model.temperature == point["temperature"]
                assert ("age" in (config.features.query or {})) == bool(point.get("attributes"))
                assert config.loss.of_users == of_users
                assert config.optimizer.name == ("adagrad" if of_users else "adam")
                rate, decay = config.optimizer.learning_rate, config.optimizer.weight_decay
                assert rate == point["learning_rate"] * (250 if of_users else 1)
                assert rate * decay == pytest.approx(point["learning_rate"] * point["weight_decay"])
                assert config.train.balance == point["balance"]
                taken = (config.features.query or {}).get("taken")
                assert getattr(taken, "weight", 0) == point.get("neighbours", 0)
                assert getattr(taken, "recency", 1) == point.get("neighbours_recency", 1)
                companions = (config.features.candidate or {}).get("companions")
                assert getattr(companions, "weight", 0) == point.get("cooccurrence", 0)
                assert getattr(companions, "window", 5) == (5 if traits.timed or companions is None else "list")
                contrast = config.contrast
                assert contrast.weight == (0 if of_users else point.get("contrast", 0))
                assert contrast.window == (5 if traits.timed and contrast.weight else "list")
                item = (config.features.candidate or {})["item_id"]
                assert item.start == point.get("item_rows", "random")
                assert item.start_window == (5 if traits.timed or item.start == "random" else "list")
                if taken:
                    assert taken.cooccurrence == point.get("cooccurrence", 0)
                    assert taken.cooccurrence_window == (5 if traits.timed or not taken.cooccurrence else "list")
                known = 0 if of_users or point["loss"] == "full_softmax" else point["known_positives"]
                assert getattr(config.loss, "known_positives", 0) == known


@pytest.mark.parametrize(
    ("fixed", "whole"),
    [
        ({}, True),
        ({"train": {"batch_size": 512, "weighted": False}, "optimizer": {"clip_norm": 5.0}}, True),
        ({"loss": {"name": "bsl"}}, False),
        ({"sampler": {"name": "uniform"}}, False),
        ({"optimizer": {"learning_rate": 0.01}}, False),
        ({"contrast": {"weight": 0.1}}, False),
        ({"features": {"query": {"user_id": {"kind": "id"}}, "candidate": {"item_id": {"kind": "id"}}}}, False),
    ],
)
def test_whole_users_are_searched_where_nothing_of_events_is_fixed(
    fixed: dict[str, Any], whole: bool, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, settings = Dataset.open(dataset), FixedSettings(parse_config(fixed))
    assert not Traits.of(data, settings.config).whole_users
    monkeypatch.setattr("pipelines.tuning.traits.DENSE", 1)
    traits = Traits.of(data, settings.config)
    assert traits.whole_users == whole
    found = settings.families(families(traits, (64,), ORIGINS), traits)
    assert (USERS in {family.name for family in found}) == whole
    for family in found:
        if family.name == USERS:
            assert not {"loss", "correction", "negatives", "known_positives", "batch_size"} & set(family.settings)
        assert len(family.starts) >= 2
        for start in family.starts:
            check_recipe(parse_config(settings.sections(family.name, start, traits)), data)
    assert not Traits.of(data, parse_config({"train": {"weighted": True}})).whole_users


@pytest.mark.parametrize(
    ("columns", "split", "most", "whole"),
    [
        ((), "random", 9, True),
        ((), "random", 8, False),
        ((), "leave_last_out", 9, False),
        (("device",), "random", 9, False),
    ],
)
def test_whole_users_are_for_a_small_catalogue_and_events_without_order_or_context(
    columns: tuple[str, ...], split: str, most: int, whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = [(user, item) for user in range(30) for item in range(9) if (user + item) % 3]
    rows = [f"u{u},i{i},{60 * i},{'phone' if (u + i) % 2 else 'web'}" for u, i in taken]
    events = "user_id,item_id,timestamp,device\n" + "\n".join(rows)
    names = ["user_id", "item_id", "timestamp", *columns]
    pl.read_csv(events.encode()).select(names).write_csv(tmp_path / "e.csv")
    prepare.run(DataConfig(split=split), tmp_path / "e.csv", tmp_path / "data")
    monkeypatch.setattr("pipelines.tuning.traits.DENSE", 1)
    monkeypatch.setattr("pipelines.tuning.traits.SMALL_CATALOGUE", most)
    data = Dataset.open(tmp_path / "data")
    traits = Traits.of(data, Config())
    assert traits.whole_users == whole
    for family in families(traits, (64,), ORIGINS):
        for start in family.starts:
            check_recipe(parse_config(sections(family.name, start, traits)), data)


def test_a_given_recipe_stays_and_takes_its_settings_out_of_the_search() -> None:
    traits = TRAITS[3]
    given = {
        "features": {"query": {"history": {"kind": "history"}}, "candidate": {"item_id": {"kind": "id"}}},
        "loss": {"name": "ccl", "margin": 0.7},
        "model": {"dimension": 32},
        "train": {"batch_size": 512},
    }
    fixed = FixedSettings(parse_config(given))
    (family,) = fixed.families(families(traits, (64,)), traits)
    assert family.name == GIVEN
    assert [(start["recency"], start["temperature"]) for start in family.starts[:2]] == [(4.0, 0.1), (1.0, 0.1)]
    searched = {"learning_rate", "weight_decay", "average", "dropout", "negatives", "recency", "balance"}
    assert set(family.settings) == searched
    raw = fixed.sections(GIVEN, family.starts[0], traits)
    assert raw["features"] == given["features"]
    assert raw["loss"] == given["loss"]
    assert raw["model"]["dimension"] == 32
    assert "temperature" not in raw["model"]
    assert raw["train"]["batch_size"] == 512
    parse_config(raw)
    full = FixedSettings(parse_config({"loss": {"name": "full_softmax"}}))
    for family in full.families(families(traits, (64,)), traits):
        raw = full.sections(family.name, {**family.starts[0], "negatives": 256}, traits)
        assert "sampler" not in raw
        assert not {"negatives", "loss", "correction", "known_positives", "dimension"} & set(family.settings)
        parse_config(raw)


@pytest.mark.parametrize("contrast", [{"weight": 0.0}, {"weight": 0.1, "window": 20}], ids=["none", "some"])
def test_a_given_contrast_is_in_every_trial(contrast: dict[str, Any]) -> None:
    fixed = FixedSettings(parse_config({"contrast": contrast}))
    for traits in (replace(TRAITS[1], whole_users=not contrast["weight"]), TRAITS[3]):
        for family in fixed.families(families(traits, (64,)), traits):
            assert "contrast" not in family.settings
            assert fixed.sections(family.name, {**family.starts[0], "contrast": 0.3}, traits)["contrast"] == contrast


def test_of_whole_users_it_searches_what_fits_them() -> None:
    fixed = FixedSettings(parse_config({"loss": {"name": "full_softmax", "per_user": True}}))
    for traits in (replace(each, whole_users=True) for each in TRAITS):
        (family,) = fixed.families(families(traits, (64,)), traits)
        assert family.name == USERS
        assert not {"recency", "batch_size"} & set(family.settings)
        assert {"neighbours", "learning_rate"} <= set(family.settings)
        assert ("neighbours_recency" in family.settings) == traits.timed
        for start in family.starts:
            config = parse_config(fixed.sections(family.name, start, traits))
            assert (config.optimizer.name, config.train.batch_size) == ("adagrad", 256)
    clipped = {"loss": {"name": "full_softmax", "per_user": True}, "optimizer": {"clip_norm": 1.0}}
    fixed = FixedSettings(parse_config(clipped))
    (family,) = fixed.families(families(TRAITS[1], (64,)), TRAITS[1])
    optimizer = parse_config(fixed.sections(family.name, family.starts[0], TRAITS[1])).optimizer
    assert (optimizer.name, optimizer.learning_rate, optimizer.clip_norm) == ("adagrad", 0.5, 1.0)
    slow = {"loss": {"name": "full_softmax", "per_user": True}, "optimizer": {"learning_rate": 0.001}}
    fixed = FixedSettings(parse_config(slow | {"train": {"batch_size": 64}}))
    for family in fixed.families(families(TRAITS[1], (64,)), TRAITS[1]):
        optimizer = parse_config(fixed.sections(family.name, family.starts[0], TRAITS[1])).optimizer
        assert (optimizer.name, optimizer.learning_rate) == ("adam", 0.001)


def test_changes_of_derived_features_stay_as_the_recipe_has_them() -> None:
    given = {"query": {"derive": True, "age": False, "history": {"max_length": 5}}}
    fixed = FixedSettings(parse_config({"features": given}))
    (family,) = fixed.families(families(TRAITS[3], (64,)), TRAITS[3])
    resolved = parse_config(fixed.sections(family.name, family.starts[0], TRAITS[3]))
    assert resolved.features == parse_config({"features": given}).features
    assert resolved.features.changes == {"query": {"age": False, "history": {"max_length": 5}}}


@pytest.mark.parametrize("loss", ["bce", "graded_hinge"])
@pytest.mark.parametrize("traits", TRAITS)
def test_a_fixed_loss_of_graded_events_leaves_every_start_valid(traits: Traits, loss: str) -> None:
    fixed = FixedSettings(parse_config({"loss": {"name": loss}}))
    for family in fixed.families(families(traits, (64,)), traits):
        assert not {"balance", "recency", "contrast"} & set(family.settings)
        for start in family.starts:
            parse_config(fixed.sections(family.name, start, traits))


def test_with_a_fixed_sampler_every_loss_has_one() -> None:
    fixed = FixedSettings(parse_config({"sampler": {"name": "in_batch"}}))
    traits = replace(TRAITS[1], whole_users=False)
    found = fixed.families(families(traits, (64,)), traits)
    assert {family.settings["loss"] for family in found} == {("sampled_softmax", "bsl")}


SMALL = replace(TRAITS[1], items=300, whole_users=False)  # its batches start small


@pytest.mark.parametrize(
    ("given", "name", "allowed"),
    [
        ({"loss": {"name": "sampled_softmax", "hardest_negatives": 300}}, "batch_size", (512, 1024, 2048, 4096, 8192)),
        ({"optimizer": {"l2": 0.001}}, "weight_decay", ()),
        ({"loss": {"name": "bsl", "positive_group": "batch"}}, "negatives", ()),
        ({"loss": {"name": "full_softmax"}, "model": {"similarity": "dot"}}, "correction", ()),
    ],
)
def test_values_that_the_fixed_settings_refuse_are_neither_searched_nor_start(
    given: dict[str, Any], name: str, allowed: tuple[Any, ...]
) -> None:
    fixed = FixedSettings(parse_config(given))
    for family in fixed.families(families(SMALL, (64,)), SMALL):
        assert family.settings.get(name, ()) == allowed
        for start in family.starts:
            parse_config(fixed.sections(family.name, start, SMALL))
        for key, values in family.settings.items():
            assert set(values) & {start[key] for start in family.starts}


def test_settings_that_refuse_every_trial_are_told_before_the_first_one() -> None:
    fixed = FixedSettings(parse_config({"loss": {"name": "sampled_softmax", "matryoshka": [32]}}))
    with pytest.raises(ConfigError, match=r"^no start of tune fits --config: .*loss\.matryoshka"):
        fixed.families(families(SMALL, (16,)), SMALL)
    for family in fixed.families(families(SMALL, (16, 64, 128)), SMALL):
        assert family.settings["dimension"] == (64, 128)
        assert {start["dimension"] for start in family.starts} == {64}


def test_a_family_that_the_fixed_settings_refuse_leaves_the_others() -> None:
    dense = replace(TRAITS[1], whole_users=True)
    fixed = FixedSettings(parse_config({"model": {"candidate_dropout": 0.1}}))
    found = {family.name for family in fixed.families(families(dense, (64,)), dense)}
    assert found == {family.name for family in families(dense, (64,))} - {USERS}


def test_fixed_features_of_whole_users_leave_what_does_not_depend_on_them() -> None:
    given = {"query": {"user_id": {"kind": "id"}}, "candidate": {"item_id": {"kind": "id"}}}
    fixed = FixedSettings(parse_config({"features": given, "loss": {"name": "full_softmax", "per_user": True}}))
    (family,) = fixed.families(families(TRAITS[1], (64,)), TRAITS[1])
    assert not {"neighbours", "cooccurrence"} & family.settings.keys() and "learning_rate" in family.settings
    for start in family.starts:
        config = parse_config(fixed.sections(family.name, start, TRAITS[1]))
        assert (config.features.query, config.optimizer.name) == (
            parse_config({"features": given}).features.query,
            "adagrad",
        )


def test_no_setting_is_named_as_an_origin() -> None:
    names = {name for traits in TRAITS for family in families(traits, (64,)) for name in family.settings}
    assert not names & {START, SAMPLED, LARGER_BATCH}


def test_several_dimensions_are_searched_from_the_first_one() -> None:
    for family in FixedSettings(None).families(families(TRAITS[0], (32, 128)), TRAITS[0]):
        assert family.settings["dimension"] == (32, 128)
        assert {start["dimension"] for start in family.starts} == {32}


def one_trial(study: optuna.Study, objective: Callable[[Trial], float], point: dict[str, Any] | None = None) -> None:
    plan = {"family": "f", "point": point or {}, "origin": "start", "by": 0}
    study.enqueue_trial({}, {PLAN: plan})
    study.optimize(objective, n_trials=1)


def test_a_trial_below_the_best_quarter_at_equal_cost_is_pruned(tmp_path: Path) -> None:
    study = open_study(tmp_path / "study.db", "search")

    def objective(*runs: Run, pruned: list[bool]) -> Callable[[Trial], float]:
        def train(trial: Trial) -> float:
            rungs = Rungs(trial)
            assert [rungs.report(run, 8.0) for run in runs] == pruned
            trial.set_user_attr(RUN, runs[-1].model_dump())
            if pruned[-1]:
                raise optuna.TrialPruned
            return runs[-1].value

        return train

    # A share of 8 s is compared at each second. The first trial converged after 2 s and stays at 0.1; the third one's
    # epochs are slow: by 4 s it had 0.3.
    for run in (run_of(0.1, 0.1), run_of(*[0.2] * 8), run_of(0.3, 0.4, every=4.0)):
        one_trial(study, objective(run, pruned=[False]))  # nothing to compare it with
    early, late = run_of(0.05, 0.05, end="pruned"), run_of(0.05, 0.05, 0.05, 0.15, end="pruned")
    # At 4 s the others had 0.1, 0.2 and 0.3: their third quartile is 0.25.
    one_trial(study, objective(early, late, pruned=[False, True]))
    one_trial(study, objective(run_of(0.24, 0.24, 0.24, 0.24, end="pruned"), pruned=[True]))
    half, full = run_of(*[0.26] * 4, end="pruned"), run_of(*[0.26] * 4, *[0.35] * 4, end="share")
    one_trial(study, objective(half, full, pruned=[False, False]))
    runs = [studies.run_of(each) for each in ended(study)]
    assert [run.value for run in runs] == [0.1, 0.2, 0.4, 0.15, 0.24, 0.35]
    assert [run.complete for run in runs] == [True, True, True, False, False, True]


def test_a_trial_that_finds_nothing_is_pruned_too(tmp_path: Path) -> None:
    study = open_study(tmp_path / "study.db", "search")
    told = list[bool]()

    def objective(run: Run) -> Callable[[Trial], float]:
        def train(trial: Trial) -> float:
            told.append(Rungs(trial).report(run, 8.0))
            return run.value

        return train

    for run in (run_of(*[0.2] * 8), run_of(*[0.0] * 4, end="pruned"), run_of(0.0, every=7.0, end="pruned")):
        one_trial(study, objective(run))
    assert told == [False, True, True]


def test_a_trial_in_which_the_process_ends_time_and_again_has_failed(tmp_path: Path) -> None:
    for attempt in range(3):
        study = open_study(tmp_path / "study.db", "search")
        assert waits(study) == (attempt > 0)
        if not attempt:
            places = {"a": 2, "b": 70}
            study.enqueue_trial(places, {PLAN: {"family": "f", "origin": "start"}, PLACES: places})
        trial = study.ask()
        assert trial.suggest_int("a", 0, 9) == 2
        # The first processes ended before they had asked for this one.
        assert attempt < 2 or trial.suggest_int("b", 0, 99) == 70
        trial.set_user_attr(RUN, run_of(0.5).model_dump() | {"end": "cut off"})
        assert not ended(study)
    study = open_study(tmp_path / "study.db", "search")
    assert not waits(study)
    (given_up,) = ended(study)
    run = studies.run_of(given_up)
    assert (given_up.user_attrs[PLAN]["family"], run.end, run.complete) == ("f", "cut off", False)


def clock(folder: Path, budget_s: float | None) -> Clock:
    return Clock(budget_s, open_study(folder / "clock.db", "search"), time.monotonic())


def test_a_training_ends_before_an_epoch_for_which_there_is_no_room(tmp_path: Path) -> None:
    ours = clock(tmp_path, 100.0)

    class Unfinished:
        class progress:  # noqa: N801
            finished = False

    def end(run: Run, share: Share) -> str:
        with pytest.raises(_Ended) as ended:
            _Watch(share, run)._end_if_due(Unfinished())  # type: ignore[arg-type]
        return ended.value.end

    def never(run: Run, most: float) -> bool:
        return False

    _Watch(Share(10.0, ours, never), run_of(0.1, 0.2, every=3.0))._end_if_due(Unfinished())  # type: ignore[arg-type]
    assert end(run_of(0.1, 0.2, 0.3, every=3.0), Share(10.0, ours, never)) == "share"
    assert end(run_of(0.1, every=200.0), Share(1_000.0, ours, never)) == "budget"
    assert end(run_of(0.1), Share(10.0, ours, lambda run, most: True)) == "pruned"


def test_an_epoch_has_the_metric_that_is_served_and_the_criterion_that_chose(tmp_path: Path) -> None:
    tower = SimpleNamespace(norm_exponent=0.1234)
    training = SimpleNamespace(task=SimpleNamespace(towers=SimpleNamespace(candidate_tower=tower)), counting=None)
    watch = _Watch(Share(10.0, clock(tmp_path, 100.0), lambda run, most: False), Run())
    record = {"recall@20": 0.3, "criterion": 0.2, "train_seconds": 2.0, "validation_seconds": 1.0}
    watch._add(record, training, "recall@20")  # type: ignore[arg-type]
    (epoch,) = watch.epochs
    assert (epoch.metric, epoch.criterion, epoch.cost, epoch.norm_exponent) == (0.3, 0.2, 3.0, 0.1234)


def test_slow_epochs_get_a_larger_share(tmp_path: Path) -> None:
    share = Share(10.0, clock(tmp_path, None), lambda run, most: False, largest=30.0)
    # Two of 2 s fit as it is, two of 12 s are 24 s, of 20 s the limit holds; one epoch may cost twice that.
    assert [share.of(epoch) for epoch in (2.0, 12.0, 20.0, 50.0, 70.0)] == [10.0, 24.0, 30.0, 50.0, 60.0]


def test_up_to_the_epochs_of_its_familys_best_a_trial_may_train_one_more_than_fits(tmp_path: Path) -> None:
    share = Share(10.0, clock(tmp_path, None), lambda run, most: False, largest=18.0, alike=3)
    # Three of 2 or 4 s, of 6 s one more than fits, of 9 s the limit holds, and beyond it one epoch.
    assert [share.of(epoch) for epoch in (2.0, 4.0, 6.0, 9.0, 20.0)] == [10.0, 12.0, 16.0, 18.0, 20.0]


def test_a_run_promises_what_its_second_half_adds_once_more() -> None:
    assert run_of(0.1, 0.2, 0.25, 0.3, end="share").promise == pytest.approx(0.4)
    assert run_of(0.1, 0.2, 0.25, 0.3).promise == 0.3  # it has converged
    assert run_of(0.2, 0.3, 0.3, 0.1, end="share").promise == pytest.approx(0.3)
    assert run_of(0.2, end="share").promise == pytest.approx(0.4)
    # The half of the epochs, however long one of them took.
    for seconds in ((25.6, 22.4), (22.4, 25.6)):
        epochs = [
            each.model_copy(update={"cost": cost}) for each, cost in zip(run_of(0.1, 0.2).epochs, seconds, strict=True)
        ]
        assert Run(epochs=tuple(epochs), end="share").promise == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("message", "end"),
    [("OOM when allocating tensor", "too large"), ("save/part-0: No space left on device", None)],
)
def test_a_full_disk_is_no_lack_of_memory(
    message: str, end: str | None, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unable(*_: Any, **__: Any) -> None:
        (tmp_path / EVENT_FILES / "events").mkdir(parents=True)
        raise tf.errors.ResourceExhaustedError(None, None, message)

    monkeypatch.setattr(training, "build_trainer", unable)
    share = Share(10.0, clock(tmp_path, None), lambda run, most: False)
    arguments = (parse_config({}), Dataset.open(dataset), tmp_path, share, Run())
    if end is None:
        with pytest.raises(tf.errors.ResourceExhaustedError, match="No space left"):
            training.train(*arguments)
    else:
        assert training.train(*arguments).end == end
    assert not (tmp_path / EVENT_FILES).exists()


def finals_of(work: Path, *trials: Tried, growth: float = 1.0, left: float = math.inf) -> Finals:
    """Finals of a search that has ended with these trials."""
    work.mkdir(exist_ok=True)
    search = SimpleNamespace(work=work, tried=lambda: trials, candidates=lambda: trials, ranked=list)
    search.fixed, search.clock = SimpleNamespace(raw={}), SimpleNamespace(left=lambda: left, timed=left < math.inf)
    return Finals(search, growth)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("best", "most", "left", "epochs"),
    [
        (2, 100, math.inf, []),  # too few for a schedule
        (4, 100, math.inf, [6]),
        (9, 100, math.inf, [13]),
        (9, 10, math.inf, [10]),  # as many as the recipe may train
        (9, 8, math.inf, [8]),
        (9, 100, 14.0, [11]),  # as many as there is time for: 80 % of it, because epochs are not all that takes time
        (9, 100, 11.0, []),  # a constant rate had nine
    ],
)
def test_a_rate_falls_for_half_as_many_epochs_again_if_they_are_enough_and_fit(
    best: int, most: int, left: float, epochs: list[int], tmp_path: Path
) -> None:
    asked = list[int]()
    run = run_of(*(0.1 * (epoch == best) for epoch in range(1, 11)))
    begun = finals_of(tmp_path, Tried(0, run), left=left)
    begun._most_epochs = lambda final: most  # type: ignore[method-assign]
    begun._train = lambda of, cost, *, falling: asked.append(falling)  # type: ignore[method-assign,misc]
    begun._train_with_falling_rate()
    assert asked == epochs


@pytest.mark.parametrize(
    ("left", "trained", "asked"),
    [
        (math.inf, 0, [(0, 13), (1, 13)]),
        (1000.0, 0, [(0, 13), (1, 13), (3, 6), (2, 13)]),
        (1000.0, 4, [(0, 13), (1, 13), (3, 6)]),
        (1000.0, 6, [(0, 13), (1, 13)]),
        (10.0, 0, [(3, 6)]),  # a constant rate has nine of the others
    ],
)
def test_in_the_time_that_is_left_the_rate_of_the_next_best_falls_for_as_long_as_their_familys_best_needs(
    left: float, trained: int, asked: list[tuple[int, int]], tmp_path: Path
) -> None:
    best = Tried(0, run_of(*(0.1 * epoch for epoch in range(1, 10)), end="share"), family="graph")
    second = Tried(1, run_of(0.6, 0.7, end="share"), family="graph")
    slow = Tried(2, run_of(0.1, 0.2, end="share"), family="graph")
    other = Tried(3, run_of(0.1, 0.2, 0.3, 0.5, 0.4), family="ids")
    begun, found = finals_of(tmp_path, slow, other, best, second, left=left), list[tuple[int, int]]()
    begun._most_epochs = lambda final: 100  # type: ignore[method-assign]
    begun._all = lambda: [slow, other, best, second]  # type: ignore[method-assign]
    begun._trained = lambda: [replace(best, number=9)] * (trained + len(found))  # type: ignore[method-assign]
    begun._train = lambda of, cost, *, falling: found.append((of, falling))  # type: ignore[method-assign,misc]
    begun._train_with_falling_rate()
    assert found == asked


def test_the_clock_counts_the_processes_before(tmp_path: Path) -> None:
    study = open_study(tmp_path / "clock.db", "search")
    study.set_user_attr(USED, 40.0)
    ours = clock(tmp_path, 100.0)
    assert 50 < ours.left() <= 60
    ours.save(now=True)
    assert 40 <= study.user_attrs[USED] < 50
    assert math.isinf(Clock(None, study, 0.0).left())


def test_a_final_trains_up_to_its_best_epoch_and_with_a_falling_rate_all_of_them() -> None:
    one = Tried(0, run_of(0.1, 0.5, 0.2))
    assert (one.best_epoch, one.value, one.rising) == (2, 0.5, False)
    assert Tried(0, run_of(0.1, 0.2, end="share")).rising
    assert not Tried(0, run_of(0.2, 0.1, end="share")).rising
    assert not Tried(0, run_of(0.1, 0.2, end="diverged")).rising
    # A falling rate ends where it was to end, better or not.
    falling = Tried(0, run_of(0.1, 0.5, 0.3), falling=3)
    assert (falling.best_epoch, falling.value, falling.rising) == (3, 0.3, False)


@pytest.mark.parametrize(
    ("falling", "run", "value"),
    [
        # A training that went on from the trial tells more than the trial, also if it ended early.
        (0, run_of(0.5, 0.6, 0.7, end="pruned"), 0.7),
        (0, run_of(0.5, 0.9, 0.7, criteria=(0.1, 0.2, 0.3)), 0.7),
        (0, run_of(end="failed"), 0.6),
        (0, run_of(0.5, 0.9, 0.8, end="diverged"), 0.9),
        (0, run_of(0.5, end="pruned"), 0.6),  # it had lost its checkpoint, and began anew
        (3, run_of(0.5, 0.6, 0.7), 0.7),
        (3, run_of(0.5, 0.6, 0.7, end="budget"), 0.6),  # its rate has not fallen
        (3, run_of(0.5, 0.6, 0.7, end="cut off"), 0.6),
        (3, run_of(0.5, 0.5, 0.5), 0.6),
        (3, run_of(0.5, 0.6, 0.7, end="diverged"), 0.6),
    ],
)
def test_the_best_final_has_the_best_run_that_came_to_its_end(
    falling: int, run: Run, value: float, tmp_path: Path
) -> None:
    begun = finals_of(tmp_path, Tried(0, run_of(0.5, 0.6, end="share")))
    begun.study.enqueue_trial({}, {PLAN: {"of": 0, "falling": falling}, RUN: run.model_dump()})
    begun.study.tell(begun.study.ask(), 0.5)
    found = begun.best()
    assert found is not None and found.value == value
    assert finals_of(tmp_path / "none").best() is None


def test_a_final_of_a_trial_that_others_have_overtaken_is_kept(tmp_path: Path) -> None:
    """A search may go on for a trial if the process died just after it had ended."""
    old, new = Tried(0, run_of(0.5)), Tried(1, run_of(0.6))
    begun = finals_of(tmp_path, old, new)
    begun.search.candidates = lambda: [new]  # type: ignore[method-assign]
    begun.study.enqueue_trial({}, {PLAN: {"of": 0, "falling": 0}, RUN: run_of(0.7).model_dump()})
    begun.study.tell(begun.study.ask(), 0.5)
    assert begun.best() == replace(old, run=run_of(0.7))


def test_the_criterion_chooses_the_epoch_and_the_metric_compares() -> None:
    one, other = run_of(0.5, 0.4, 0.3, criteria=(0.1, 0.3, 0.2)), run_of(0.1, 0.2, 0.9, criteria=(0.2, 0.2, 0.1))
    assert (one.best_epoch, one.value) == (2, 0.4)
    assert [one.at(cost) for cost in (0.5, 1.0, 2.0, 3.0)] == [0.0, 0.5, 0.4, 0.4]
    assert (other.best_epoch, other.value) == (1, 0.1)


def test_the_epoch_of_a_recipe_takes_as_long_as_the_median_and_twice_with_a_second_training(tmp_path: Path) -> None:
    def run(*seconds: float) -> Run:
        [epoch] = run_of(0.5).epochs
        times = ({"seconds": each, "train_seconds": each - 1.0} for each in seconds)
        return Run(epochs=tuple(epoch.model_copy(update=each) for each in times), end="converged", reason="")

    final = Tried(0, run(5.0, 9.0, 4.0))
    once, twice = (finals_of(tmp_path / str(growth), growth=growth).epoch_s for growth in (1.0, 1.2))
    assert once(final, validated=True) == pytest.approx(5.0)
    # Trained at once on the validation events, too, which are a fifth of the others.
    assert twice(final, validated=False) == pytest.approx(1.2 * 4.0)
    assert twice(final, validated=True) == pytest.approx(5.0 + 1.2 * 4.0)


def test_a_recipes_text_reads_back_as_its_settings() -> None:
    raw = {
        "train": {"epochs": 3, "choose_epoch": False, "metric": "recall@20"},
        "features": {
            "query": {"user_id": {"kind": "id", "mask_share": 0.5}, "größe": {"kind": "text", "column": 'a "b" \\ c'}},
            "candidate": {"item_id": {"kind": "id"}},
        },
        "optimizer": {"learning_rate": 1e-05, "weight_decay": 0.0},
        "sampler": {"name": "mixed", "parts": [{"name": "in_batch"}, {"name": "uniform", "negatives": 64}]},
        "data": {"columns": {"user": "u"}, "refit": True},
    }
    written = text(raw, ["Found by a search. " * 20, "Second."])
    assert tomllib.loads(written) == raw
    assert max(map(len, written.splitlines())) <= 120
    assert list(tomllib.loads(written)) == ["data", "features", "sampler", "optimizer", "train"]  # as a recipe has them


@pytest.mark.parametrize(
    ("kind", "files", "settings", "said"),
    [
        ("global_time", ["e.csv"], {"valid_share": 0.05}, "the 5% of all events before the test's, by time"),
        ("leave_last_out", ["e.csv"], {}, "each user's last event before the test's"),
        ("random", ["e.csv"], {}, "a random 10% of the events"),
        ("given", ["train.txt", "test.txt"], {}, "a random 10% of the events outside the test"),
        ("given", ["train.txt", "valid.txt", "test.txt"], {}, "those of valid.txt"),
        ("given", ["train.txt", "valid.txt"], {"validation": "given"}, "those of valid.txt"),
        ("given", ["Train.csv", "Valid.csv", "Test.csv"], {}, "those of Valid.csv"),
        ("given", ["valid.csv"], {"validation": "random"}, "a random 10% of the events outside the test"),
        (
            "given",
            ["train.txt", "valid.txt"],
            {"validation": "last", "valid_share": 0.2},
            "the last 20% of each user's events outside the test",
        ),
    ],
)
def test_the_user_learns_which_events_validate(
    kind: str, files: list[str], settings: dict[str, Any], said: str, dataset: Path
) -> None:
    manifest = Dataset.open(dataset).manifest.model_dump()
    manifest |= {
        "split": {"kind": kind, "boundaries": {}},
        "source": {"format": "lightgcn", "files": files},
        "config": settings,
    }
    assert validation(DatasetManifest.model_validate(manifest)) == said


def test_what_cannot_be_fixed_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"train\.choose_epoch"):
        FixedSettings(parse_config({"train": {"choose_epoch": False}}))
    for name, value in (("models", 2), ("ease", 2.0)):
        with pytest.raises(ConfigError, match=rf"distillation\.{name}: tune searches without teachers; add it to the"):
            FixedSettings(parse_config({"distillation": {name: value}}))
    assert FixedSettings(None).raw == {}
