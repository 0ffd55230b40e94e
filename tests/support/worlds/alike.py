"""Items of classes or pairs with titles, and a bundle of `task = "similarity"` that no training made."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from pipelines.dataset.dataset import Dataset
from pipelines.ingest import prepare
from pipelines.training.similarity.labels import pairs_digest
from tests.support.worlds.columns import write_bundle_of
from towers.config.sections import DataConfig

ITEMS, USERS, DIMENSION, SHARE = 120, 30, 8, 0.4
HOSTILE = "<script>alert(1)</script>&\"'"
KINDS = ("lamp", HOSTILE, "chair")


def kind(item: int) -> str:
    return KINDS[item % len(KINDS)]


def title(item: int) -> str | None:
    return None if item == 7 else f"{HOSTILE} no. {item}"


def write_dataset(folder: Path) -> Path:
    generator = np.random.default_rng(0)
    taken = [(user, item) for user in range(USERS) for item in generator.choice(ITEMS, 12, replace=False)]
    pl.DataFrame(
        {
            "user_id": [f"u{user}" for user, _ in taken],
            "item_id": [f"i{item}" for _, item in taken],
            "timestamp": generator.permutation(len(taken)) * 1_000 + 1_600_000_000,
            "country": ["DE"] * len(taken),
        }
    ).write_parquet(folder / "events.parquet")
    pl.DataFrame(
        {
            "item_id": [f"i{item}" for item in range(ITEMS)],
            "title": [title(item) for item in range(ITEMS)],
            "kind": [kind(item) for item in range(ITEMS)],
            "price": [float(item) for item in range(ITEMS)],
            "shape": [[float(item), 1.0] for item in range(ITEMS)],
            "maker": [f"m{item % 6}" for item in range(ITEMS)],
        }
    ).write_parquet(folder / "items.parquet")
    prepare.run(
        DataConfig(split="global_time"), folder / "events.parquet", folder / "dataset", items=folder / "items.parquet"
    )
    return folder / "dataset"


def write_bundle(
    dataset: Path, name: str = "bundle", *, noise: float = 0.7, pairs: Path | None = None, **more: Any
) -> Path:
    """Each item lies near the corner of its class, the farther the more noise."""
    data = Dataset.open(dataset)
    numbers = np.array([int(each[1:]) for each in data.items["item_id"]])
    corners = np.eye(DIMENSION)[numbers % len(KINDS)]
    vectors = corners + noise * np.random.default_rng(1).normal(size=corners.shape)
    labels = {"column": "kind"} if pairs is None else {"pairs": str(pairs), "against": "items"}
    config = {
        "task": "similarity",
        "features": {"candidate": {"maker": {"kind": "categorical"}}},
        "similarity": {**labels, "holdout_share": SHARE},
        "loss": {"name": "am_softmax" if pairs is None else "pair"},
    }
    own: dict[str, Any] = {
        "item_vectors": (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32),
        "query_vectors": np.zeros((data.manifest.users, DIMENSION), np.float32),
        "popularity": range(len(numbers)),
        "lineage": {"dataset": data.manifest.fingerprint, "config": config},
        "training": {} if pairs is None else {"pairs": pairs_digest(str(pairs))},
    }
    return write_bundle_of(dataset, DIMENSION, name, **(own | more))
