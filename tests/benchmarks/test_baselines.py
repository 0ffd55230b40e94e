"""The tuned baselines: iALS against a slow loop, its new histories, and the protocol on a tiny set."""

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from benchmarks.baselines import ials as solver
from benchmarks.baselines import task as protocol
from benchmarks.baselines import tuned
from benchmarks.baselines.gf_cf import GraphFilter
from benchmarks.baselines.ials import Ials
from benchmarks.baselines.task import Task, figures_of
from benchmarks.harness.machine import load
from benchmarks.harness.resumable import Store
from benchmarks.readme import baseline_rows, figures
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import HeldOut
from pipelines.ingest import prepare
from towers.config.recipe import parse_config

SETTINGS = Ials(a0=0.2, reg=0.05, dimension=4, deviation=0.5, seed=3, dtype=np.float64)


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmark sets this for itself when it is imported; it must not reach what other tests start."""
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")


def table() -> np.ndarray:
    """[12, 9] who took what; rows of 1 to 8 items, and one without."""
    rng = np.random.default_rng(0)
    taken = np.zeros((12, 9))
    for user in range(12):
        taken[user, rng.permutation(9)[: user % 9]] = 1
    return taken


def side(taken: np.ndarray, vectors: np.ndarray, settings: Ials) -> np.ndarray:
    """Row by row, what makes the loss least: the sums over pairs, written out."""
    found = np.zeros((len(taken), settings.dimension))
    for row, has in enumerate(taken):
        left = settings.reg * (has.sum() + settings.a0 * len(vectors)) * np.eye(settings.dimension)
        right = np.zeros(settings.dimension)
        for column, vector in enumerate(vectors):
            left += settings.a0 * np.outer(vector, vector)
            if has[column]:
                left += np.outer(vector, vector)
                right += vector
        found[row] = np.linalg.solve(left, right)
    return found


def loss(taken: np.ndarray, users: np.ndarray, items: np.ndarray, settings: Ials) -> float:
    total = 0.0
    for user, has in enumerate(taken):
        total += settings.reg * (has.sum() + settings.a0 * len(items)) * users[user] @ users[user]
        for item in range(len(items)):
            score = users[user] @ items[item]
            total += settings.a0 * score**2 + (has[item] and (score - 1) ** 2)
    for item, vector in enumerate(items):
        total += settings.reg * (taken[:, item].sum() + settings.a0 * len(users)) * vector @ vector
    return float(total)


@pytest.mark.parametrize("numbers", [solver.BATCH_NUMBERS, 40])
def test_sweeps_are_those_of_a_slow_loop(numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver, "BATCH_NUMBERS", numbers)  # few: two rows at a time
    taken = table()
    first = np.random.default_rng(3).normal(0, 0.5 / 2, (9, 4))  # 2 is the root of the dimension
    users = side(taken, first, SETTINGS)
    for _, (found_users, found_items) in zip(range(3), SETTINGS.sweeps(sp.csr_array(taken)), strict=False):
        items = side(taken.T, users, SETTINGS)
        users = side(taken, items, SETTINGS)
        np.testing.assert_allclose(found_items, items, atol=1e-9)
        np.testing.assert_allclose(found_users, users, atol=1e-9)


def test_rows_of_a_batch_are_padded_by_little_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = np.array([0, 1, 2, 1_000, 3, 5, 1_250, 0, 1_300, 40])
    found = list(solver.batches(counts, 4))
    assert sorted(np.concatenate(found).tolist()) == [1, 2, 3, 4, 5, 6, 8, 9]
    assert [sorted(counts[batch].tolist()) for batch in found] == [[1, 2, 3, 5], [40], [1_000, 1_250], [1_300]]
    monkeypatch.setattr(solver, "BATCH_NUMBERS", 2 * 4 * 5)
    assert [len(batch) for batch in solver.batches(np.full(9, 4), 4)] == [1] * 9, "its padding counts, too"


def test_the_loss_of_the_paper_falls_with_each_sweep() -> None:
    taken = table()
    sweeps = islice(SETTINGS.sweeps(sp.csr_array(taken)), 8)
    values = [loss(taken, users, items, SETTINGS) for users, items in sweeps]
    assert (np.diff(values) < 0).all()


def test_in_float32_the_vectors_are_nearly_the_same() -> None:
    sparse = sp.csr_array(table())
    exact, rough = (next(each.sweeps(sparse))[0] for each in (SETTINGS, replace(SETTINGS, dtype=np.float32)))
    assert rough.dtype == np.float32
    np.testing.assert_allclose(rough, exact, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("weight", [0.0, 0.3])
def test_scores_of_the_graph_filter_are_those_of_a_slow_loop(weight: float) -> None:
    taken, rank = table(), 3
    users, items = taken.sum(axis=1), taken.sum(axis=0)
    scaled = np.zeros(taken.shape)
    for user, item in zip(*taken.nonzero(), strict=True):
        scaled[user, item] = 1 / np.sqrt(users[user] * items[item])
    directions = np.linalg.svd(scaled)[2][:rank]
    wanted = np.zeros(taken.shape)
    for user, item in np.ndindex(taken.shape):
        for other in np.flatnonzero(taken[user]):
            low_pass = sum(each[other] * each[item] for each in directions) * np.sqrt(items[item] / items[other])
            wanted[user, item] += scaled[:, other] @ scaled[:, item] + weight * low_pass
    found = GraphFilter.of(sp.csr_array(taken), rank).scores(sp.csr_array(taken), weight)
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_a_matrix_that_cannot_be_solved_names_the_setting() -> None:
    with pytest.raises(ValueError, match=r"reg -1: a matrix is not positive definite; use a larger reg"):
        next(replace(SETTINGS, reg=-1.0).sweeps(sp.csr_array(table())))


def test_a_new_history_is_one_more_user_step_and_its_items_are_masked() -> None:
    _, items = next(SETTINGS.sweeps(sp.csr_array(table())))
    histories = [[0, 4, 5], [8], [1, 2, 3, 6, 7]]
    held = HeldOut(
        users=np.arange(3, dtype=np.int32),
        target_offsets=np.arange(4),
        target_items=np.zeros(3, np.int32),
        seen_offsets=np.array([0, 3, 4, 9]),
        seen_items=np.concatenate(histories).astype(np.int32),
        dropped_targets=0,
    )
    taken = np.zeros((3, 9))
    for row, history in enumerate(histories):
        taken[row, history] = 1
    scores = np.where(taken > 0, -np.inf, side(taken, items, SETTINGS) @ items.T)
    expected = [np.argsort(-row)[:3].tolist() for row in scores]
    assert tuned.folded(SETTINGS, items, 3)(held).tolist() == expected


LINES = ["u a b c d", "v b c d a", "w c d a e", "x d c e b", "y a d b c"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Five users of four items: the last is the test, the one before it validation."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "sequences.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    config = parse_config({"data": {"split": "leave_last_out"}}).data
    prepare.run(config, folder / "sequences.txt", folder / "dataset", format="sequences")
    return Dataset.open(folder / "dataset")


@pytest.mark.parametrize(("refit", "kept"), [(False, 2), (True, 3)])
def test_fits_are_on_train_alone_unless_refit_and_the_test_knows_the_validation_item(
    data: Dataset, refit: bool, kept: int
) -> None:
    task = Task.of(data, ("ndcg@2", "hit_rate@2"), refit=refit)
    names, users = data.items["item_id"].to_list(), data.users["user_id"].to_list()
    fitted = tuned.matrix(task, task.fitted_on).toarray()
    for line in LINES:
        user, *items = line.split()
        row = fitted[users.index(user)]
        assert {names[item] for item in np.flatnonzero(row)} == set(items[:kept])
        query = task.test.users.tolist().index(users.index(user))
        known = task.test.seen_items[task.test.seen_offsets[query] : task.test.seen_offsets[query + 1]]
        assert [names[item] for item in known] == items[:3]
        assert names[task.test.target_items[query]] == items[3]
        known = task.valid.seen_items[task.valid.seen_offsets[query] : task.valid.seen_offsets[query + 1]]
        assert [names[item] for item in known] == items[:2]


def test_a_validation_of_many_users_is_a_sample(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "VALIDATION_USERS", 3)
    task = Task.of(data, ("ndcg@2",), refit=False)
    assert (len(task.valid.users), len(task.test.users)) == (3, 5)
    assert sorted(set(task.valid.users.tolist())) == task.valid.users.tolist()


def test_figures_are_counted_as_a_person_counts(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "USERS", 2)  # blocks
    names = data.items["item_id"].to_list()
    order = [names.index(name) for name in "abcde"]
    seen_of = {line.split()[0]: line.split()[1:] for line in LINES}

    def rank(held: HeldOut) -> np.ndarray:
        found = []
        for query in range(len(held.users)):
            seen = held.seen_items[held.seen_offsets[query] : held.seen_offsets[query + 1]].tolist()
            found.append([item for item in order if item not in seen][:2])
        return np.array(found)

    # By the order a b c d e without the first three of each: d e, a e, b e, a b, c e.
    gains = {"u": 1.0, "v": 1.0, "w": 1 / np.log2(3), "x": 1 / np.log2(3), "y": 1.0}
    assert {user: items[3] for user, items in seen_of.items()} == {"u": "d", "v": "a", "w": "e", "x": "b", "y": "c"}
    found = figures_of(rank, Task.of(data, ("ndcg@2",), refit=False).test, ("ndcg@2", "hit_rate@2", "hit_rate@1"))
    assert found["hit_rate@2"] == pytest.approx(1.0)
    assert found["hit_rate@1"] == pytest.approx(3 / 5)
    assert found["ndcg@2"] == pytest.approx(np.mean(list(gains.values())))


def test_each_baseline_is_measured_once_and_resumes(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuned, "LADDERS", {"a0": (0.1, 0.3), "reg": (0.01, 0.03)})
    monkeypatch.setattr(tuned, "START", Ials(a0=0.1, reg=0.01, dimension=2))
    task = Task.of(data, ("ndcg@2", "hit_rate@2"), refit=False)
    made = tuned.baselines(task, Store(tmp_path))
    assert made.keys() == {"popularity", "item_knn", "ease", "gf_cf", "ials", "item_knn_ordered"}
    assert tuned.baselines(task, Store(tmp_path / "alone"), "gf_cf") == {"gf_cf": made["gf_cf"]}
    for baseline in made.values():
        assert baseline["test"].keys() == {"ndcg@2", "hit_rate@2"}
    best = made["ials"]["settings"]
    curve = made["ials"]["curve"]
    assert curve[best["sweeps"] - 1] == made["ials"]["validation"] == max(curve)
    monkeypatch.setattr(tuned, "curve", None)
    monkeypatch.setattr(tuned, "ease_weights", None)
    assert tuned.baselines(task, Store(tmp_path)) == made
    monkeypatch.setattr(tuned, "EASE_ITEMS", 4)
    with pytest.raises(ValueError, match=r"^ease: \d+ items, more than 4$"):
        tuned.baselines(task, Store(tmp_path), "ease")
    assert "ease" not in tuned.baselines(task, Store(tmp_path))


def test_the_sweep_that_counts_is_the_best_and_the_curve_ends_where_it_no_longer_rises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = iter([0.1, 0.3, 0.2, 0.25, 0.9])

    class Stub:
        k = 2

        def validated(self, rank: Any) -> float:
            return next(values)

    monkeypatch.setattr(tuned, "matrix", lambda task, splits: sp.csr_array(table()))
    assert tuned.curve(Stub(), SETTINGS) == {"validation": [0.1, 0.3, 0.2, 0.25]}  # type: ignore[arg-type]
    values = iter([0.1, 0.3, 0.2, 0.25, 0.9])
    assert tuned.curve(Stub(), SETTINGS, 2) == {"validation": [0.1, 0.3]}  # type: ignore[arg-type]


def test_the_best_setting_goes_on_where_its_figure_still_rises(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def curve(task: Task, settings: Ials, most: int = 3) -> dict[str, list[float]]:
        asked.append((settings.a0, most))
        rising = [settings.a0 + sweep / 100 for sweep in range(most)]
        return {"validation": rising[:5]}

    monkeypatch.setattr(tuned, "LADDERS", {"a0": (0.1, 0.3), "reg": (0.01,)})
    monkeypatch.setattr(tuned, "START", Ials(a0=0.1, reg=0.01, dimension=2))
    monkeypatch.setattr(tuned, "MOST_SWEEPS", 3)
    monkeypatch.setattr(tuned, "curve", curve)
    found = tuned.baselines(Task.of(data, ("ndcg@2",), refit=False), Store(tmp_path))["ials"]
    assert asked == [(0.1, 3), (0.3, 3), (0.3, 64)]
    assert (found["settings"]["a0"], found["settings"]["sweeps"]) == (0.3, 5)
    assert found["validation"] == pytest.approx(0.34)


def test_a_climb_ends_where_no_step_rises_and_asks_once_for_each_place() -> None:
    asked = []

    def value(place: Ials) -> float:
        asked.append((place.a0, place.reg))
        return -((place.a0 - 4) ** 2) - (place.reg - place.a0 / 2) ** 2

    ladders = {"a0": (1.0, 2.0, 3.0, 4.0, 5.0), "reg": (0.5, 1.0, 1.5, 2.0, 2.5)}
    best, values = tuned.climb(Ials(a0=1.0, reg=0.5), ladders, value)
    assert (best.a0, best.reg) == (4.0, 2.0), "only after several rounds: they depend on one another"
    assert len(asked) == len(set(asked)) == len(values)


def test_claims_compare_with_the_model_and_with_its_report(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.baselines.run import claims_of

    found = {
        "popularity": {"test": {"recall@20": 0.1}, "as_reported": {"recall@20": 0.12}},
        "item_knn": {"test": {"recall@20": 0.4}, "as_reported": {"recall@20": 0.35}},
        "item_knn_ordered": {"test": {"recall@20": 0.5}},
    }
    reported = {"popularity": {"recall@20": 0.12}, "item_knn": {"recall@20": 0.36}}
    assert claims_of(found, {"recall@20": 0.3}, reported) == {
        "recall@20: our model above popularity": True,
        "recall@20: our model above item_knn": False,
        "popularity within 0.0001 of the committed report": True,
        "item_knn within 0.0001 of the committed report": False,
    }


@pytest.mark.parametrize("name", protocol.SETS)
def test_ours_are_the_means_of_the_committed_result(name: str) -> None:
    chosen = protocol.SETS[name]
    figures = load(chosen.result)["figures"]
    expected = figures["validation"] if name in ("gowalla", "ml-1m-split") else figures
    seeds = {each: float(np.mean(expected[each]["seeds"])) for each in chosen.figures}
    assert protocol.ours(chosen) == pytest.approx(seeds)


@pytest.mark.parametrize("name", protocol.SETS)
def test_the_committed_results_hold_our_figures_of_today(name: str) -> None:
    from benchmarks.baselines.run import above, claims_of

    chosen, result = protocol.SETS[name], load(f"baselines_{name.replace('-', '_')}")
    assert result["ours"]["test"] == protocol.ours(chosen), "run benchmarks.baselines.run with --ours"
    assert result["ours"]["reported"] == protocol.reported_of(chosen, tuple(result["ours"]["reported"]))
    assert result["claims"] == claims_of(result["baselines"], result["ours"]["test"], result["ours"]["reported"])
    in_order = {name: content for name, content in result["baselines"].items() if name == "item_knn_ordered"}
    assert result.get("goals", {}) == above(in_order, result["ours"]["test"])


def test_to_renew_our_figures_leaves_the_baselines_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.baselines import run

    written: dict[str, Any] = {}
    monkeypatch.setattr(run, "ours", lambda _: {"ndcg@10": 0.0, "hit_rate@10": 1.0})
    monkeypatch.setattr(run, "write", lambda _file, _name, result: written.update(result))
    assert run.renew("beauty") == 1
    committed = load("baselines_beauty")
    assert {key for key in committed if committed[key] != written[key]} == {"ours", "claims", "goals"}
    assert written["ours"]["test"] == {"ndcg@10": 0.0, "hit_rate@10": 1.0}
    claims = [written["claims"][f"{figure}: our model above item_knn"] for figure in ("ndcg@10", "hit_rate@10")]
    assert claims == [False, True]


def test_one_baseline_is_measured_beside_the_committed_ones_with_a_stamp_of_its_own(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks.baselines import run

    written: dict[str, Any] = {}
    own = {"test": {"ndcg@10": 1.0, "hit_rate@10": 0.0}}
    monkeypatch.setattr(run, "prepared", lambda *_: data)
    monkeypatch.setattr(run, "baselines", lambda _task, _store, only: {only: own})
    monkeypatch.setattr(run, "write", lambda _file, _name, result: written.update(result))
    assert run.main("beauty", tmp_path, tmp_path, "gf_cf") == 1
    committed = load("baselines_beauty")
    assert {key for key in committed if committed[key] != written[key]} == {"baselines", "claims"}
    others = {name: content for name, content in committed["baselines"].items() if name != "gf_cf"}
    assert written["baselines"].items() >= others.items()
    measured = written["baselines"]["gf_cf"]
    assert measured["test"] == own["test"] and measured["measured"].keys() == {"date", "commit", "dirty", "machine"}
    assert (
        not written["claims"]["ndcg@10: our model above gf_cf"]
        and written["claims"]["hit_rate@10: our model above gf_cf"]
    )


@pytest.mark.parametrize(
    ("gf_cf", "ordered", "best"),
    [
        (0.2, 0.17, ("GF-CF", 0.2, False)),
        (0.12, None, ("item-kNN", 0.15, True)),
        (0.12, 0.17, ("item-kNN in order", 0.17, True)),
    ],
)
def test_the_strongest_cheap_baseline_is_of_the_table_or_of_the_report(
    gf_cf: float, ordered: float | None, best: tuple[str, float, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {"item_knn": {"test": {"recall@20": 0.1}}, "gf_cf": {"test": {"recall@20": gf_cf}}}
    monkeypatch.setattr(figures, "load", lambda name: {"baselines_a_b": {"baselines": table}}[name])
    report = {"metrics": {"item_knn": {"recall@20": {"value": 0.15}}}}
    if ordered is not None:
        report["metrics"]["item_knn_ordered"] = {"recall@20": {"value": ordered}}
    result = {"runs": {"validation": [report]}, "figures": {"validation": {"recall@20": {}}}}
    title, value, own = best
    assert figures.cheap_baseline(result, "a-b") == (title, {"recall@20": value}, own)


def test_a_row_has_every_baseline_our_model_and_what_is_published() -> None:
    def figures(hit: float, gain: float) -> dict[str, float]:
        return {"ndcg@10": gain, "hit_rate@10": hit}

    result = {
        "set": "beauty-s3rec",
        "baselines": {
            "item_knn": {"test": figures(0.07, 0.03), "as_reported": figures(0.075, 0.035)},
            "ials": {"test": figures(0.08, 0.04), "settings": {"dimension": 64}},
            "item_knn_ordered": {"test": figures(0.085, 0.045), "as_reported": figures(0.095, 0.055)},
        },
        "ours": {"test": figures(0.09, 0.05)},
    }
    ((what, told, command),) = baseline_rows.ROWS["baselines_beauty_s3rec"](result)
    assert what.endswith("the Beauty of 12,101 items: HitRate@10 / NDCG@10")
    assert told == (
        "item-kNN 0.0700 / 0.0300; iALS of d = 64 0.0800 / 0.0400; item-kNN in order 0.0850 / 0.0450; "
        "our model 0.0900 / 0.0500; item-kNN, fitted on the validation items, too, 0.0750 / 0.0350; "
        "item-kNN in order, fitted on the validation items, too, 0.0950 / 0.0550; published "
        "TIGER 0.0648 / 0.0384, ActionPiece 0.0775 / 0.0424, HSTU 0.0788 / 0.0439, eSASRec 0.0928 / 0.0523, "
        "SASRec with sampled softmax 0.0921 / 0.0531"
    )
    assert command == "baselines.run beauty-s3rec"
    other = baseline_rows.ROWS["baselines_beauty"](result | {"set": "beauty"})
    assert "published" not in other[0][1]
