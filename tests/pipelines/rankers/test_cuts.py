"""The first numbers of served vectors; tests/pipelines/bundles/test_export.py compares a whole report of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import heldout
from pipelines.rankers.cuts import cuts, first_numbers
from pipelines.rankers.ranker import Served
from serving.bundle.manifest import PriorInfo
from serving.bundle.reader import Bundle
from serving.recall.loading import open_index
from tests.support.worlds import columns


@pytest.mark.parametrize("exponent", [-0.5, 0.0, 0.5, 1.0])
def test_first_numbers_of_served_vectors_are_those_of_a_smaller_model(exponent: float) -> None:
    raw = np.random.default_rng(3).normal(size=(20, 6))
    served = np.array([vector / np.linalg.norm(vector) ** exponent for vector in raw], np.float32)
    wanted = [vector[:2] / np.linalg.norm(vector[:2]) ** exponent for vector in raw]
    np.testing.assert_allclose(first_numbers(served, 2, exponent), wanted, rtol=1e-5)
    assert not first_numbers(np.float32([[0, 0, 1], [0, 0, 0]]), 2, exponent).any()


@pytest.mark.parametrize("vectors", ["float32", "int8"])
def test_a_prior_without_weights_leaves_the_cuts_as_they_are(vectors: str, tmp_path: Path) -> None:
    dataset = columns.write_dataset(columns.make_events(), tmp_path)
    data, held = Dataset.open(dataset), heldout(Dataset.open(dataset), "test")
    shares = np.random.default_rng(2).normal(size=(data.manifest.items, 2)).astype(np.float32)
    weightless = PriorInfo(now=0.0, past=0.0, mean_count=1.0, new_item=(0.0, 0.0))
    recalls = []
    for name, changes in (("without", {}), ("with", {"prior": weightless, "item_prior": shares})):
        bundle = Bundle.open(columns.write_bundle_of(dataset, name=name, vectors=vectors, **changes))
        recipe = {"loss": {"matryoshka": [1, 2]}, "model": {"similarity": "dot"}}
        bundle.manifest.lineage.update(config=recipe, norm_exponent=0.0)
        measured = cuts(Served.match(bundle, open_index(bundle), data), held, 5)
        recalls.append([(point["dimension"], point["recall"]) for point in measured["points"]])
    assert recalls[0] == recalls[1] and [width for width, _ in recalls[0]] == [1, 2, 4]


def test_without_a_test_user_who_has_a_vector_nothing_is_measured(tmp_path: Path) -> None:
    dataset = columns.write_dataset(columns.make_events(), tmp_path)
    data, bundle = Dataset.open(dataset), Bundle.open(columns.write_bundle_of(dataset))
    bundle.manifest.lineage["config"] = {"loss": {"matryoshka": [1]}}
    served = replace(Served.match(bundle, open_index(bundle), data), query_rows=np.full(data.manifest.users, -1))
    assert cuts(served, heldout(data, "test"), 5) == {"left_out": "no test user has a stored vector"}
