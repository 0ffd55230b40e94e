"""Timed data against the strongest baseline: how questions are pooled, what is claimed, what parts share."""

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from benchmarks.harness.pool import estimates
from benchmarks.harness.resumable import Store
from benchmarks.quality import knobs, timed
from benchmarks.readme import quality_rows
from towers.config.recipe import load_config


def run_with(users: list[str], strongest: str, **figures: list[float]) -> dict[str, Any]:
    return {
        "user": users,
        "strongest": strongest,
        "figures": {ranker: {"recall@20": values, "ndcg@50": values[::-1]} for ranker, values in figures.items()},
    }


EARLY = run_with(["a", "b"], "item_knn", exact=[0.5, 0.3], popularity=[0.1, 0.2], item_knn=[0.4, 0.4], ease=[0.0, 0.1])
LATE = run_with(["b", "c", "d"], "popularity", exact=[0.2, 0.8, 0.0], popularity=[0.6, 0.7, 0.1], item_knn=[0.0] * 3)


def test_questions_of_all_places_are_pooled_and_each_place_has_its_own_strongest_baseline() -> None:
    users, columns = timed.pooled({"0.5": EARLY, "0.6": LATE}, same_users=True)
    assert users == ["a", "b", "b", "c", "d"]
    assert {ranker: column.tolist() for ranker, column in columns["recall@20"].items()} == {
        "model": [0.5, 0.3, 0.2, 0.8, 0.0],
        "strongest baseline": [0.4, 0.4, 0.6, 0.7, 0.1],
        "popularity": [0.1, 0.2, 0.6, 0.7, 0.1],
        "item_knn": [0.4, 0.4, 0.0, 0.0, 0.0],  # ease was left out in one place, so it has no pooled figure
    }
    assert columns["ndcg@50"]["strongest baseline"].tolist() == [0.4, 0.4, 0.1, 0.7, 0.6]


def test_the_same_id_in_another_world_is_another_user() -> None:
    users, _ = timed.pooled({"seed 0": EARLY, "seed 1": LATE}, same_users=False)
    assert users == ["seed 0, a", "seed 0, b", "seed 1, b", "seed 1, c", "seed 1, d"]


def test_the_model_is_compared_question_by_question_and_users_are_resampled() -> None:
    found = timed.compared(*timed.pooled({"0.5": EARLY, "0.6": LATE}, same_users=True))["recall@20"]
    assert (found["questions"], found["users"]) == (5, 4)
    assert found["model"]["value"] == pytest.approx((0.5 + 0.3 + 0.2 + 0.8 + 0.0) / 5)
    assert found[timed.AHEAD]["value"] == pytest.approx((0.1 - 0.1 - 0.4 + 0.1 - 0.1) / 5)


def test_a_resample_takes_a_user_with_all_of_their_questions() -> None:
    # Two users, three questions of one: a resample is one user twice, or both.
    found = estimates(["a", "b", "a", "a"], {"x": np.array([0.0, 1.0, 0.3, 0.6])})
    assert found["x"]["value"] == pytest.approx(1.9 / 4)
    assert (found["x"]["low"], found["x"]["high"]) == (pytest.approx(0.3), pytest.approx(1.0))


def test_the_default_may_be_a_little_below_and_the_tuned_recipe_must_be_above() -> None:
    def figure(low: float) -> dict[str, Any]:
        return {timed.AHEAD: {"value": 1.0, "low": low, "high": 2.0}}

    figures = {
        "ml-100k": {
            "default": {"recall@20": figure(-0.0029), "ndcg@20": figure(-0.003)},
            "tune": {"recall@20": figure(0.0001), "ndcg@20": figure(0.0)},
        }
    }
    assert timed.claims_of(figures) == {
        "ml-100k, default, recall@20: at most 0.003 below the strongest baseline": True,
        "ml-100k, default, ndcg@20: at most 0.003 below the strongest baseline": False,
        "ml-100k, tune, recall@20: above the strongest baseline": True,
        "ml-100k, tune, ndcg@20: above the strongest baseline": False,
    }


def test_figures_are_read_from_the_columns_of_the_report() -> None:
    rows = pl.DataFrame({f"ease_{m}@{k}": [k / 100, len(m) / 10] for m in ("recall", "ndcg") for k in (10, 20, 50)})
    assert timed.figures_of("ease", rows) == {
        "recall@20": [0.2, 0.6],
        "recall@50": [0.5, 0.6],
        "ndcg@20": [0.2, 0.4],
        "ndcg@50": [0.5, 0.4],
    }


class Finished:
    """Stands for what trains: counts what is asked for, and answers with a run in which tune is better."""

    def __init__(self) -> None:
        self.made: list[tuple[str, str]] = []

    def __call__(self, model: str, place: str) -> dict[str, Any]:
        self.made.append((model, place))
        users = [f"u{number}" for number in range(40)]
        baseline = [0.01 * (number % 5) for number in range(40)]
        ahead = 0.1 if model == "tune" else 0.0
        figures = {"exact": [each + ahead for each in baseline], "popularity": baseline}
        return {
            "user": users,
            "strongest": "popularity",
            "validation": {"popularity": {"recall@20": 0.5}},
            "figures": {ranker: dict.fromkeys(timed.FIGURES, values) for ranker, values in figures.items()},
            "epochs": 3,
            "settings": {},
        }


def test_parts_run_alone_and_the_last_call_makes_one_result_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished, written = Finished(), {}
    places = {"ml-100k": {"0.5": "cut", "0.6": "later cut"}, "world": {"seed 0": "world"}}
    monkeypatch.setattr(timed, "SETS", {name: lambda data, work, name=name: places[name] for name in places})
    monkeypatch.setattr(
        timed,
        "run_of",
        lambda model, dataset, store, work, minutes: store.run(
            {"model": model, "dataset": dataset}, lambda: finished(model, dataset)
        ),
    )
    monkeypatch.setattr(timed, "write", lambda script, name, result: written.update({name: result}))
    for model in timed.MODELS:
        for name in places:
            assert timed.main(tmp_path, tmp_path, [model], [name], 20.0) == 0
    for models, sets in ((["tune"], list(places)), (timed.MODELS, ["world"])):
        assert timed.main(tmp_path, tmp_path, models, sets, 20.0) == 0
    assert written == {} and len(finished.made) == 6
    assert timed.main(tmp_path, tmp_path, timed.MODELS, list(places), 20.0) == 0
    assert len(finished.made) == 6, "all was there"
    result = written["timed"]
    assert len(result["claims"]) == 2 * 2 * 4 and all(result["claims"].values())
    assert result["figures"]["ml-100k"]["tune"]["ndcg@50"]["questions"] == 80
    assert result["figures"]["ml-100k"]["tune"]["ndcg@50"]["users"] == 40
    assert result["figures"]["world"]["tune"]["ndcg@50"][timed.AHEAD]["low"] == pytest.approx(0.1)
    assert list(result["runs"]["ml-100k"]["default"]) == ["0.5", "0.6"]


def test_a_search_that_is_complete_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[dict[str, Any]] = []

    def search(dataset: Path, out: Path, **words: Any) -> None:
        searches.append(words)
        out.write_text("[train]\nepochs = 7\n")

    monkeypatch.setattr(timed.tune, "run", search)
    monkeypatch.setattr(timed, "questions", lambda config, dataset, work: {"epochs": config.train.epochs})
    dataset: Any = type("Stub", (), {"path": tmp_path})()
    for _ in range(2):
        assert timed.tuned(dataset, tmp_path / "search", tmp_path, 3.0) == {"epochs": 7}
    assert searches == [{"budget_minutes": 3.0, "overwrite": True}]


def test_one_process_at_a_time_prepares_the_data_sets(tmp_path: Path) -> None:
    order: list[str] = []
    inside = threading.Event()

    def second() -> None:
        inside.wait()
        with timed.locked(tmp_path / "lock"):
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with timed.locked(tmp_path / "lock"):
        inside.set()
        time.sleep(0.1)  # long enough for the other to come in, if it could
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


@pytest.mark.parametrize("name", knobs.KNOBS)
def test_every_knob_is_a_recipe(name: str) -> None:
    config, plain = load_config(timed.RECIPE, list(knobs.KNOBS[name])), load_config(timed.RECIPE)
    assert (config == plain) == (name == knobs.UNCHANGED)


def test_a_knob_is_paired_with_the_unchanged_recipe_and_the_table_tells_the_change() -> None:
    def of(*values: float) -> dict[str, Any]:
        return {"user": ["a", "b"], "recall@20": list(values), "ndcg@20": list(values)}

    name = "train.balance = 1"
    runs = {
        knobs.UNCHANGED: {"0.5": of(0.1, 0.2), "0.6": of(0.3, 0.4)},
        name: {"0.5": of(0.2, 0.3), "0.6": of(0.4, 0.5)},
    }
    found = knobs.compared(runs, same_users=True)
    assert (found["recall@20"]["questions"], found["recall@20"]["users"]) == (4, 2)
    assert knobs.table({"ml-100k": found}).splitlines() == [
        "| setting | ml-100k, recall@20 | ml-100k, ndcg@20 |",
        "|---|---|---|",
        "| unchanged | 0.2500 | 0.2500 |",
        f"| `{name}` | +0.1000 (+0.1000 to +0.1000) | +0.1000 (+0.1000 to +0.1000) |",
    ]
    assert knobs.compared(runs, same_users=False)["recall@20"]["users"] == 4


def test_a_knob_that_halves_a_figure_breaks_the_claim() -> None:
    def found(value: float) -> dict[str, Any]:
        return {knobs.UNCHANGED: {"value": 0.4}, "data.refit = false": {"value": value}, "questions": 3}

    assert knobs.claims_of({"world": {"recall@20": found(0.2), "ndcg@20": found(0.199)}}) == {
        "world, recall@20: every setting keeps at least half": True,
        "world, ndcg@20: every setting keeps at least half": False,
    }


@pytest.mark.long
def test_a_world_is_made_once_and_differs_by_its_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed, "WORLD", {"users": 50, "items": 1_000, "events": 1_000, "fashion": 1.0})
    first = timed.worlds((0, 1), tmp_path)
    assert list(first) == ["seed 0", "seed 1"]
    assert first["seed 0"].manifest.fingerprint != first["seed 1"].manifest.fingerprint
    monkeypatch.setattr(timed.synth, "run", lambda *_, **__: pytest.fail("made again"))
    again = timed.worlds((0, 1), tmp_path)
    assert [each.manifest for each in again.values()] == [each.manifest for each in first.values()]


def test_runs_are_named_by_model_data_and_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed, "questions", lambda config, dataset, work: {"epochs": config.train.epochs})
    monkeypatch.setattr(
        timed, "tuned", lambda dataset, folder, work, minutes: {"folder": folder.name, "minutes": minutes}
    )
    manifest = type("Manifest", (), {"fingerprint": "f00"})()
    dataset: Any = type("Stub", (), {"manifest": manifest, "path": tmp_path})()
    store = Store(tmp_path / "runs")
    assert timed.run_of("default", dataset, store, tmp_path, 1.0) == {"epochs": load_config(timed.RECIPE).train.epochs}
    short, long = (timed.run_of("tune", dataset, store, tmp_path, minutes) for minutes in (1.0, 2.0))
    assert (short["minutes"], long["minutes"]) == (1.0, 2.0) and short["folder"] != long["folder"]
    assert len(list((tmp_path / "runs").glob("*.json"))) == 3


def test_the_readmes_row_names_model_baseline_and_both_differences() -> None:
    def figure(model: float, baseline: float, ease: float) -> dict[str, Any]:
        values = {timed.MODEL: model, timed.STRONGEST: baseline, timed.AHEAD: model - baseline}
        values |= {"ease": ease, "item_knn": 0.19, "popularity_users": 0.1, "best_attainable": 0.9}
        return {name: {"value": value, "low": value - 0.01, "high": value + 0.01} for name, value in values.items()}

    figures = {"recall@20": figure(0.3, 0.2, 0.15), "ndcg@20": figure(0.5, 0.35, 0.4)}
    rows = quality_rows.timed({"budget_minutes": 20.0, "figures": {"world": {"tune": figures}}})
    assert rows == [
        (
            "Two synthetic worlds with fashion, `towers tune` in 20 min: recall@20 / NDCG@20",
            "0.3000 / 0.5000; the baseline with the best recall@20 on validation 0.2000 / 0.3500; ahead of it by "
            "0.1000 (0.0900 to 0.1100) and 0.1500 (0.1400 to 0.1600); the best single baseline of each figure on the "
            "test item-kNN 0.1900 / EASE 0.4000",
            "quality.timed --work DIR",
        )
    ]
    assert set(quality_rows.TIMED_SETS) == set(timed.SETS)
