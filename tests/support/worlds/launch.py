"""Two models of one data set for tests of a launch: the less noise in a model's users, the more targets it finds.

Users like 3 items of the test; a user's vector is the sum of the vectors of these and noise.
"""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from pipelines.dataset.dataset import Dataset
from pipelines.ingest import prepare
from serving.bundle.manifest import FeatureSpec
from serving.bundle.writer import write_bundle
from tests.support.worlds.serving import no_towers
from towers.config.sections import DataConfig

USERS, ITEMS, DIMENSION = 120, 40, 16
KS = (5, 10)
FEATURE = FeatureSpec(name="user_id", kind="id", dtype="string")
ITEM_VECTORS = np.random.default_rng(1).normal(size=(ITEMS, DIMENSION)).astype(np.float32)


@cache
def taken(seed: int = 0) -> dict[str, list[list[int]]]:
    """The items of each user in each split: 5, 1 and 3."""
    draw = np.random.default_rng(seed)
    rows = [draw.permutation(ITEMS)[:9].tolist() for _ in range(USERS)]
    return {
        "train": [row[:5] for row in rows],
        "valid": [row[5:6] for row in rows],
        "test": [row[6:] for row in rows],
    }


def write_dataset(out: Path, seed: int = 0) -> Path:
    lists = out.with_name(f"{out.name}-lists")
    lists.mkdir()
    for split, rows in taken(seed).items():
        lines = [" ".join(map(str, [user, *items])) for user, items in enumerate(rows)]
        (lists / f"{split}.txt").write_text("\n".join(lines) + "\n")
    prepare.run(DataConfig(), lists, out, format="lightgcn")
    return out


@cache
def query_vectors(noise: float) -> np.ndarray:
    draw = np.random.default_rng(2).normal(size=(USERS, DIMENSION))
    return np.array(
        [ITEM_VECTORS[items].sum(axis=0) + noise * draw[user] for user, items in enumerate(taken()["test"])], np.float32
    )


def write_model(out: Path, dataset: Path, noise: float, **changes: Any) -> Path:
    """Writes a bundle; `changes` replaces arguments of `write_bundle`."""
    splits = taken()
    seen = [splits["train"][user] + splits["valid"][user] for user in range(USERS)]
    counts = np.bincount([item for items in seen for item in items], minlength=ITEMS)
    write_bundle(
        out,
        **{
            "model_version": f"noise-{noise:g}",
            "metric": "dot",
            "query_features": [FEATURE],
            "candidate_features": [FEATURE],
            "item_ids": [str(item) for item in range(ITEMS)],
            "item_vectors": ITEM_VECTORS,
            "item_attributes": pl.DataFrame({"item_id": [str(item) for item in range(ITEMS)]}),
            "popularity": counts,
            "query_ids": [str(user) for user in range(USERS)],
            "query_vectors": query_vectors(noise),
            "seen_offsets": np.cumsum([0, *map(len, seen)]),
            "seen_items": [item for items in seen for item in items],
            "write_towers": no_towers,
            "libraries": {},
            "lineage": {"dataset": Dataset.open(dataset).manifest.fingerprint},
            "training": {},
            **changes,
        },
    )
    return out


def first(noise: float, user: int, k: int) -> list[int]:
    """A user's first k items, one dot product at a time."""
    return _ranking(noise, user)[:k]


@cache
def _ranking(noise: float, user: int) -> list[int]:
    splits = taken()
    seen = {*splits["train"][user], *splits["valid"][user]}
    vector = query_vectors(noise)[user]
    scores = {item: float(vector @ ITEM_VECTORS[item]) for item in range(ITEMS) if item not in seen}
    return sorted(scores, key=lambda item: -scores[item])


def recalls(noise: float, k: int) -> list[float]:
    """Recall@k of each user."""
    targets = taken()["test"]
    return [len({*first(noise, user, k)} & {*targets[user]}) / len(targets[user]) for user in range(USERS)]
