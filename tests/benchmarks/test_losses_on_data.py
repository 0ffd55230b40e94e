"""The comparison of losses on real data: what is tried, how a cell is measured and chosen, how the tables read."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from matplotlib.axes import Axes

from benchmarks.harness.machine import load
from benchmarks.harness.plots import PLOTS
from benchmarks.losses import data_claims, data_tables, on_data, run
from benchmarks.losses.grid import NAMES, ROWS, best_of, graded, grid, loss_name, recipe, samplers
from benchmarks.losses.on_data import Cells
from benchmarks.losses.run import train_and_measure
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import heldout
from pipelines.ingest import prepare
from tests.support.pages.drawings import assert_same_drawing
from towers.config.losses import LOSSES
from towers.config.recipe import parse_config
from towers.config.sections import DataConfig

SMALL: dict[str, int] = {"items": 100, "batch_size": 32, "epochs": 2}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """60 users with 12 of 40 items each, and one of their own that only one split sees; split at random."""
    folder = tmp_path_factory.mktemp("data")
    draw = np.random.default_rng(3)
    pairs = [(f"u{u}", f"i{i}") for u in range(60) for i in draw.choice(40, 12, replace=False)]
    pairs += [(f"u{u}", f"own{u}") for u in range(60)]
    pl.DataFrame(pairs, schema=["user_id", "item_id"], orient="row").write_csv(folder / "events.csv")
    prepare.run(DataConfig(split="random", valid_share=0.2, test_share=0.2), folder / "events.csv", folder / "out")
    return Dataset.open(folder / "out")


def test_every_loss_and_every_sampler_is_tried_and_every_recipe_is_allowed() -> None:
    assert {loss_name(row) for row in ROWS} == {loss.model_fields["name"].annotation.__args__[0] for loss in LOSSES}
    runs = 0
    for row, settings in ROWS.items():
        for values in (settings.small, settings.large):
            tried = [each for name in samplers(row) for each in grid(row, name, values, **SMALL)]
            assert len({json.dumps(each, sort_keys=True) for each in tried}) == len(tried)
            runs += len(tried)
            for each, name in zip(tried, np.repeat(samplers(row), len(values)), strict=True):
                config = parse_config(each)
                assert (config.loss.name, config.sampler.name if config.sampler else "-") == (loss_name(row), name)
    # 12 losses and variants with six samplers, 3 with none; two values each on the small data set, three on the large.
    assert runs == (2 + 3) * (12 * len(NAMES) + 3)


def test_the_losses_of_labelled_impressions_are_those_that_take_no_sampler_but_full_softmax() -> None:
    assert [row for row in ROWS if graded(row)] == ["bce", "graded_hinge"]
    assert [row for row in ROWS if samplers(row) == ("-",)] == ["full_softmax", "bce", "graded_hinge"]


def test_measured_figures_are_those_of_a_slow_loop_over_trained_and_unseen_items(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors: list[np.ndarray] = []

    def kept(*arguments: Any) -> Any:
        vectors.append(embed_all(*arguments))
        return vectors[-1]

    embed_all = run.embed_all
    monkeypatch.setattr(run, "embed_all", kept)
    figures = train_and_measure(recipe("am_softmax", "uniform", 10.0, **SMALL), data, tmp_path)
    counts = data.items["train_count"].to_numpy()
    assert (counts == 0).any()
    for place, split in enumerate(("valid", "test")):
        scores = vectors[2 * place] @ vectors[2 * place + 1].T
        held = heldout(data, split)
        recalls, gains, shown = [], [], []
        for q in range(len(held.users)):
            targets = set(held.target_items[held.target_offsets[q] : held.target_offsets[q + 1]].tolist())
            seen = set(held.seen_items[held.seen_offsets[q] : held.seen_offsets[q + 1]].tolist())
            order = [item for item in np.argsort(-scores[q]).tolist() if counts[item] > 0 and item not in seen]
            first = order[:20]
            recalls.append(len(targets & set(first)) / len(targets))
            gain = sum(1 / np.log2(r + 2) for r, item in enumerate(first) if item in targets)
            gains.append(gain / sum(1 / np.log2(r + 2) for r in range(min(20, len(targets)))))
            shown += first
        assert figures[split]["users"] == len(held.users)
        assert figures[split]["recall@20"] == pytest.approx(np.mean(recalls))
        assert figures[split]["ndcg@20"] == pytest.approx(np.mean(gains))
        assert figures[split]["coverage"] == pytest.approx(len(set(shown)) / data.manifest.items)
        assert figures[split]["mean_popularity"] == pytest.approx(np.mean(counts[shown]))
    # All epochs, and nothing is left behind.
    assert len(figures["epochs"]) == 2
    assert not list(tmp_path.iterdir())


def test_a_cell_keeps_the_setting_of_the_best_validation_figure_whatever_test_says(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = iter([(0.2, 0.9), (0.4, 0.1), (0.3, 0.5)])
    calls = []

    def measured(tried: dict[str, Any], *_: Any) -> dict[str, Any]:
        calls.append(tried)
        valid, test = next(figures)
        return {"valid": {"recall@20": valid}, "test": {"recall@20": test}, "epochs": [{"train_seconds": 10 * valid}]}

    monkeypatch.setattr(on_data, "train_and_measure", measured)
    tried = grid("triplet", "uniform", (0.3, 0.5, 0.7), **SMALL)
    best = Cells(data, tmp_path).best(tried)
    assert best["recipe"] == tried[1]
    assert (best["test"]["recall@20"], best["tried"]) == (0.1, [0.2, 0.4, 0.3])
    assert best["seconds_per_epoch"] == 2
    # Cut off and started again, nothing is trained twice.
    assert Cells(data, tmp_path).best(tried) == best
    assert calls == tried


def test_a_refused_recipe_is_a_cell_that_says_why(data: Dataset, tmp_path: Path) -> None:
    cell = Cells(data, tmp_path).best(grid("bce", "-", (0.1,), **SMALL))
    assert "the data set has no weights" in cell["failed"]
    assert best_of({"-": cell}) is None


def cell(valid: float, test: float, **more: Any) -> dict[str, Any]:
    split = {
        "recall@20 standard error": 0.01,
        "recall@50": 0.5,
        "ndcg@20": 0.25,
        "coverage": 0.5,
        "mean_popularity": 9.0,
    }
    return {
        "valid": split | {"recall@20": valid},
        "test": split | {"recall@20": test},
        "seconds_per_epoch": 1.25,
        "recipe": recipe("am_softmax", "uniform", 10.0, **SMALL),
        **more,
    }


def test_the_matrix_shows_test_figures_and_marks_what_validation_chose() -> None:
    cells = {
        "am_softmax": {"in_batch": cell(0.3, 0.2), "uniform": cell(0.4, 0.1), "mixed": {"failed": "no"}},
        "full_softmax": {"-": cell(0.35, 0.25)},
    }
    lines = data_tables.matrix({"cells": cells}).splitlines()
    assert lines[0] == "| loss | `in_batch` | `uniform` | `log_uniform` | `learned_unigram` | `unigram` | `mixed` |"
    assert lines[2] == "| `am_softmax` | 0.200 | **0.100** | – | – | – | failed |"
    assert lines[3] == "| `full_softmax` | **0.250** (no sampler) | | | | | |"


def test_the_chosen_settings_are_sorted_by_validation() -> None:
    cells = {
        "am_softmax": {"in_batch": cell(0.3, 0.2), "uniform": cell(0.4, 0.1)},
        "pair": {"in_batch": cell(0.5, 0.05, recipe=recipe("pair", "in_batch", 5.0, **SMALL))},
    }
    lines = data_tables.chosen({"cells": cells}).splitlines()
    assert lines[2].startswith(
        "| `pair` | `in_batch` | `loss.scale = 5` | 0.500 | 0.050 ± 0.010 | 0.500 | 0.250 | 1.2 |"
    )
    assert lines[3].startswith("| `am_softmax` | `uniform` | `loss.scale = 10` | 0.400 | 0.100 ± 0.010 |")


def test_the_logq_table_has_a_row_for_each_strength() -> None:
    lines = data_tables.strengths({"runs": [{"correction": 0.25, **cell(0.125, 0.2)}]}).splitlines()
    assert lines[2] == "| 0.25 | 0.1250 | 0.2500 | 0.2000 | 9 | 50.0 % |"


def test_the_plot_shows_every_strength_and_is_reproducible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[list[float], list[float]]] = []
    plot = Axes.plot
    monkeypatch.setattr(Axes, "plot", lambda self, x, y, **style: drawn.append((x, y)) or plot(self, x, y, **style))
    result = {"runs": [{"correction": c, **cell(valid, 0.2)} for c, valid in ((0.0, 0.1), (1.0, 0.3))]}
    for folder in ("a", "b"):
        data_tables.plot_logq(result, tmp_path / folder)
    assert drawn[:3] == [([0.0, 1.0], [0.1, 0.3]), ([0.0, 1.0], [0.25, 0.25]), ([0.0, 1.0], [9.0, 9.0])]
    assert (tmp_path / "a" / "losses_logq.svg").read_bytes() == (tmp_path / "b" / "losses_logq.svg").read_bytes()


def test_claims_hold_where_the_figures_say_so_and_fail_where_not() -> None:
    corrected = {row: {"in_batch": cell(0.3, 0.385), "uniform": cell(0.3, 0.371)} for row in data_claims.CORRECTED}
    bare = {row: {"in_batch": cell(0.1, 0.2), "uniform": cell(0.3, 0.1)} for row in data_claims.UNCORRECTED}
    held = data_claims.of_matrix(corrected | bare)
    assert (len(held), all(held.values())) == (8, True)
    corrected["bsl"]["uniform"] = cell(0.3, 0.359)  # 0.026 of 0.385, a quarter of 0.1 is less
    bare["ccl"]["mixed"] = cell(0.31, 0.0)
    failed = [claim for claim, holds in data_claims.of_matrix(corrected | bare).items() if not holds]
    assert [claim.partition(",")[0] for claim in failed] == ["bsl", "ccl"]


def test_claims_of_the_strengths_compare_the_runs_in_order() -> None:
    rising = [{**cell(0.1, test), "valid": {"mean_popularity": shown}} for test, shown in ((0.1, 5.0), (0.2, 6.0))]
    assert list(data_claims.of_strengths(rising).values()) == [True, True]
    assert list(data_claims.of_strengths(rising[::-1]).values()) == [False, False]


def test_the_claim_of_nce_compares_the_first_start_with_the_worst_other() -> None:
    assert list(data_claims.of_starts([cell(0, each) for each in (0.1, 0.2, 0.3)]).values()) == [True]
    assert list(data_claims.of_starts([cell(0, each) for each in (0.11, 0.3, 0.2)]).values()) == [False]


def test_the_committed_plot_is_drawn_from_the_committed_result(tmp_path: Path) -> None:
    data_tables.plot_logq(load("losses_logq"), tmp_path)
    assert_same_drawing(tmp_path / "losses_logq.svg", PLOTS / "losses_logq.svg")
