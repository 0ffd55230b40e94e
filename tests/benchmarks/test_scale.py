"""The benchmarks of size: what is watched of a process, the page of ten million items, the peers' answers. Tiny."""

import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.harness import million
from benchmarks.harness.process_memory import MeasuredProcess
from benchmarks.scale import ten_million
from benchmarks.training import factorized_top_k as peer
from benchmarks.training import full_evaluation
from towers.config.recipe import load_config

STAGE = {"seconds": 61.2, "peak_bytes": 2_500_000_000, "peak_anonymous_bytes": 1_000_000_000}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_watched_process_tells_its_memory_and_how_it_ended() -> None:
    program = "import sys, time; held = b'x' * 50_000_000; time.sleep(1); sys.exit(3)"
    done = MeasuredProcess([sys.executable, "-c", program]).wait()
    assert done["code"] == 3
    assert 50_000_000 < done["peak_anonymous_bytes"] < 90_000_000
    assert done["peak_anonymous_bytes"] < done["peak_bytes"] < 200_000_000
    assert done["seconds"] >= 1


def test_the_table_of_stages_names_time_memory_and_disk() -> None:
    result = {"stages": {"train": STAGE, "serve": STAGE}, "bytes": {"run": 7_000_000_000}}
    assert ten_million.table(result).splitlines()[2:] == [
        "| train | 61 s | 2.5 GB, 1.0 GB | 7.0 GB |",
        "| serve, until ready | 61 s | 2.5 GB, 1.0 GB |  |",
    ]


def test_ten_million_items_have_the_recipe_of_a_million_with_user_ids_for_one_epoch(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(million.RECIPE, encoding="utf-8")
    one, ten = load_config(path), load_config(path, ten_million.CHANGES)
    assert set(ten.features.query) == {"history", "user_id"}
    assert (one.train.epochs, ten.train.epochs) == (2, 1)
    assert (one.model, one.optimizer, one.features.candidate) == (ten.model, ten.optimizer, ten.features.candidate)


def test_the_page_has_its_marks() -> None:
    text = ten_million.PAGE.read_text(encoding="utf-8")
    assert text.count(ten_million.BEGIN) == text.count(ten_million.END) == 1


@pytest.mark.slow
def test_the_peer_finds_what_a_full_sort_finds() -> None:
    rng = np.random.default_rng(0)
    queries, items = rng.normal(size=(6, 4)).astype(np.float32), rng.normal(size=(40, 4)).astype(np.float32)
    seen = [rng.choice(40, size, replace=False).astype(np.int32) for size in (1, 7, 3, 2, 9, 1)]
    offsets = np.concatenate([[0], np.cumsum([len(rows) for rows in seen])])
    scores = queries @ items.T
    for query, rows in enumerate(seen):
        scores[query, rows] = -np.inf
    for find in peer.masked(queries, items, 5, offsets, np.concatenate(seen)).values():
        np.testing.assert_array_equal(find(), np.argsort(-scores, axis=1)[:, :5])


def test_gowalla_is_read_as_lists_and_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_evaluation, "CATALOGUE", 8)
    monkeypatch.setattr(full_evaluation, "DIMENSION", 2)
    (tmp_path / "train.txt").write_text("0 1 2\n1 2 3 4\n2 5\n3 0 7\n", encoding="utf-8")
    (tmp_path / "test.txt").write_text("0 3\n2 1 0\n", encoding="utf-8")
    world = full_evaluation.gowalla(tmp_path, 4)
    assert world.seen[0].tolist() == [0, 2, 5, 6, 8] and world.seen[1].tolist() == [1, 2, 2, 3, 4, 5, 0, 7]
    assert world.targets[0].tolist() == [0, 1, 1, 3, 3] and world.targets[1].tolist() == [3, 0, 1]
    assert world.queries.shape == (4, 2) and world.items.shape == (8, 2)
