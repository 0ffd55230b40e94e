"""The probe: a bundle of plain arithmetic passes; a search or a tower that is wrong in any way does not."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.bundle.manifest import FeatureSpec
from serving.bundle.reader import Bundle
from serving.errors import BundleError
from serving.recall.query import Recalled, RecallQuery
from serving.recall.recaller import Recaller
from serving.recall.self_test import probe
from serving.search.exact import ExactIndex
from serving.search.index import Floats, Rows
from tests.support.worlds.serving import DIMENSION, ITEMS, WITHOUT_HISTORY, ArithmeticEncoder, item_vectors, write_world


class Spoilt:
    """Exact search of which something is changed at the end."""

    def __init__(self, vectors: Floats, change: Callable[[Rows, Floats], tuple[Rows, Floats]]) -> None:
        self.exact, self.change = ExactIndex(vectors), change

    def search(self, queries: Floats, k: int, excluded: Sequence[Rows] | None = None) -> tuple[Rows, Floats]:
        return self.change(*self.exact.search(queries, k, excluded))


class TowerOf:
    """A tower that gives what a formula says."""

    def __init__(self, formula: Callable[[int], np.ndarray]) -> None:
        self.formula, self.asked = formula, []

    def encode(self, requests: Sequence[Mapping[str, Any]]) -> np.ndarray:
        self.asked += [dict(request) for request in requests]
        return self.formula(len(requests)).astype(np.float32)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    path = tmp_path_factory.mktemp("probe") / "bundle"
    write_world(path, items=200, item_vectors=item_vectors(200), item_ids=[f"i{row}" for row in range(200)])
    return Bundle.open(path)


def test_a_whole_bundle_passes_with_and_without_its_tower(bundle: Bundle) -> None:
    probe(Recaller(bundle, ExactIndex(bundle.item_vectors), ArithmeticEncoder(200)))
    probe(Recaller(bundle, ExactIndex(bundle.item_vectors)))


@pytest.mark.parametrize(
    "changes",
    [
        {"users": 0},
        {"users": 0, "item_vectors": np.zeros((ITEMS, DIMENSION), np.float32)},
        {"query_vectors": np.zeros((12, DIMENSION), np.float32)},
        {"features": WITHOUT_HISTORY},
        {"items": 1, "seen_offsets": [0] * 13, "seen_items": []},
        {"item_vectors": np.full((ITEMS, DIMENSION), 1e30, np.float32)},
    ],
    ids=["no users", "all vectors zero", "no user known", "no history", "one item", "all items equal and huge"],
)
def test_an_unusual_bundle_passes_too(tmp_path: Path, changes: dict[str, Any]) -> None:
    write_world(tmp_path / "bundle", **changes)
    bundle = Bundle.open(tmp_path / "bundle")
    probe(Recaller(bundle, ExactIndex(bundle.item_vectors), ArithmeticEncoder(bundle.manifest.items)))


def test_any_hundred_of_a_thousand_equal_items_will_do(tmp_path: Path) -> None:
    write_world(tmp_path / "bundle", items=1_000, item_vectors=np.ones((1_000, DIMENSION), np.float32))
    bundle = Bundle.open(tmp_path / "bundle")
    last = Spoilt(bundle.item_vectors, lambda rows, scores: (999 - rows, scores))
    probe(Recaller(bundle, last))


def nothing(rows: Rows, scores: Floats) -> tuple[Rows, Floats]:
    return np.full_like(rows, -1), np.full_like(scores, -np.inf)


def fails(rows: Rows, scores: Floats) -> tuple[Rows, Floats]:
    raise RuntimeError("no such leaf")


INDEXES: dict[str, tuple[Callable[[Rows, Floats], tuple[Rows, Floats]], str]] = {
    "of other vectors": (lambda rows, scores: (rows, -np.abs(scores) - 1), r"recall@100 .* is 0\.000, must be at"),
    "that finds too little": (nothing, r"recall@100 against exact search is 0\.000"),
    "with NaN": (lambda rows, scores: (rows, scores * np.float32(np.nan)), "a score that is not finite"),
    "of more items": (lambda rows, scores: (rows + 1, scores), "a row beyond its 200 items"),
    "that gives too few": (lambda rows, scores: (rows[:, :7], scores[:, :7]), r"must give \[12, 100\] items, gave"),
    "that fails": (fails, "RuntimeError: no such leaf"),
}


@pytest.mark.parametrize("name", INDEXES)
def test_a_wrong_index_is_refused(bundle: Bundle, name: str) -> None:
    change, reason = INDEXES[name]
    with pytest.raises(BundleError, match=rf"{bundle.path}: probe of its index( failed)?: .*{reason}"):
        probe(Recaller(bundle, Spoilt(bundle.item_vectors, change), ArithmeticEncoder(200)))


def test_the_least_recall_is_a_half(bundle: Bundle) -> None:
    def spoil(share: float) -> Spoilt:
        def change(rows: Rows, scores: Floats) -> tuple[Rows, Floats]:
            lost = np.arange(rows.shape[1]) >= rows.shape[1] - round(share * rows.shape[1])
            return np.where(lost, -1, rows), np.where(lost, -np.inf, scores).astype(np.float32)

        return Spoilt(bundle.item_vectors, change)

    probe(Recaller(bundle, spoil(0.5)))
    with pytest.raises(BundleError, match=r"recall@100 against exact search is 0\.490"):
        probe(Recaller(bundle, spoil(0.51)))


TOWERS: dict[str, tuple[Callable[[int], np.ndarray], str]] = {
    "of another dimension": (lambda count: np.ones((count, 9)), r"must give finite \[2, 8\], gave \[2, 9\]"),
    "with NaN": (lambda count: np.full((count, 8), np.nan), r"must give finite \[2, 8\]"),
    "that joins the batch": (lambda count: np.ones((1, 8)), r"must give finite \[2, 8\], gave \[1, 8\]"),
    "that fails": (lambda count: np.ones(8).reshape(3, 3), " failed: ValueError: cannot reshape"),
}


@pytest.mark.parametrize("name", TOWERS)
def test_a_wrong_tower_is_refused(bundle: Bundle, name: str) -> None:
    formula, reason = TOWERS[name]
    with pytest.raises(BundleError, match=rf"{bundle.path}: probe of its query tower.*{reason}"):
        probe(Recaller(bundle, ExactIndex(bundle.item_vectors), TowerOf(formula)))


def test_the_tower_is_asked_with_nothing_with_a_history_and_with_an_item(tmp_path: Path) -> None:
    features = (
        FeatureSpec(name="past", kind="history", dtype="string", length=2),
        FeatureSpec(name="like", kind="item", dtype="string"),
    )
    write_world(tmp_path / "bundle", features=features)
    bundle = Bundle.open(tmp_path / "bundle")
    tower = TowerOf(lambda count: np.ones((count, DIMENSION)))
    probe(Recaller(bundle, ExactIndex(bundle.item_vectors), tower))
    assert tower.asked[:3] == [{}, {"past": ["i0"]}, {"like": "i0"}]


def test_an_answer_that_is_too_short_is_refused(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    recaller = Recaller(bundle, ExactIndex(bundle.item_vectors), ArithmeticEncoder(200))
    whole = recaller.recall_many
    monkeypatch.setattr(recaller, "recall_many", lambda asked: [a._replace(rows=a.rows[:-1]) for a in whole(asked)])
    with pytest.raises(BundleError, match=r"probe of its answers: must be 100 items .* were 99 from 'popular'"):
        probe(recaller)


def test_a_refusal_names_no_user(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    recaller = Recaller(bundle, ExactIndex(bundle.item_vectors), ArithmeticEncoder(200))
    whole = recaller.recall_many

    def short_for_users(asked: Sequence[RecallQuery]) -> list[Recalled]:
        return [each._replace(rows=each.rows[:7]) if each.source == "user" else each for each in whole(asked)]

    monkeypatch.setattr(recaller, "recall_many", short_for_users)
    with pytest.raises(BundleError, match=r"were 7 from 'user' for a user$"):
        probe(recaller)
