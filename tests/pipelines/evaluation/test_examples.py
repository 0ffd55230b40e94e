"""The example users of a report against dot products by hand: history, ranks, hits, titles."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl

from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import heldout
from pipelines.evaluation import examples
from pipelines.rankers.ranker import Served
from serving.bundle.reader import Bundle
from serving.recall.loading import open_index
from tests.support.worlds import columns

K = 14


def test_examples_are_the_best_the_median_the_worst_and_some_by_a_seed(tmp_path: Path) -> None:
    dataset = columns.write_dataset(columns.make_events(), tmp_path)
    bundle, data = Bundle.open(columns.write_bundle_of(dataset)), Dataset.open(dataset)
    held, called = heldout(data, "test"), examples.names(data.items)
    vectors, queries = np.load(bundle.path / "item_vectors.npy"), np.load(bundle.path / "query_vectors.npy")
    by_hand, recall = [], []
    for place, user in enumerate(held.users.tolist()):
        before = held.seen_items[held.seen_offsets[place] : held.seen_offsets[place + 1]].tolist()
        taken = held.target_items[held.target_offsets[place] : held.target_offsets[place + 1]].tolist()
        free = [item for item in range(columns.ITEMS) if item not in before]
        found = sorted(free, key=lambda item: -float(vectors[item] @ queries[user]))[:K]
        recall.append(len({*found} & {*taken}) / len(taken))
        by_hand.append(
            {
                "history": [called[item] for item in before[::-1]][:10],
                "recalled": [
                    {"rank": rank, "name": called[item], "hit": item in taken}
                    for rank, item in enumerate(found, start=1)
                    if rank <= 10 or item in taken
                ],
                "targets": [{"name": called[item], "hit": item in found} for item in taken],
            }
        )
    assert any(each["recalled"][-1]["rank"] > 10 for each in by_hand), "a hit below the first ten"
    shown = examples.users(
        Served.match(bundle, open_index(bundle), data), called, held, np.array(recall, np.float32), K
    )
    assert [each["title"].partition(":")[0] for each in shown] == [
        "best",
        "median",
        "worst",
        *(f"seed 0, {number}" for number in (1, 2, 3)),
    ]
    order = np.argsort(recall, kind="stable")
    for each, place in zip(shown, [order[-1], order[len(order) // 2], order[0]], strict=False):
        title = each.pop("title")
        assert each == by_hand[place] and title.endswith(f"(recall {recall[place]:.2f})")
    for each in shown[3:]:
        each.pop("title")
        assert each in by_hand


def test_items_without_a_vector_are_nobodys_neighbours() -> None:
    angles = np.array([0.0, 0.3, 3.0, 3.5])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    rows = np.array([0, 1, -1, 2, 3])
    unit = np.where(rows[:, np.newaxis] >= 0, vectors[rows], 0)
    served = SimpleNamespace(unit_vectors=unit, item_rows=rows)
    names = pl.Series(["zero", "near", "none", "far", "back"])
    shown = {each["name"]: each["others"] for each in examples.neighbours(served, names, np.arange(5))}
    angle_of = {"zero": 0.0, "near": 0.3, "far": 3.0, "back": 3.5}
    for name, angle in angle_of.items():
        cosines = {other: float(np.cos(angle - own)) for other, own in angle_of.items() if other != name}
        order = sorted(cosines, key=lambda other: -cosines[other])
        assert shown.get(name) == [f"{other}: {cosines[other]:.2f}" for other in order]
