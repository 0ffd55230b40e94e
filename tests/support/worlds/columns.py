"""A data set with columns of users, items and events, and a bundle of random vectors for it."""

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

USERS, ITEMS, DAY = 40, 20, 86_400
COUNTRIES = ["DE", "FR", None]
Event = tuple[str, str, int, str]


def country(user: int) -> str | None:
    return COUNTRIES[user % 3]


def genres(item: int) -> list[str] | None:
    return None if item == 7 else ["drama"] * (item % 2) + ["comedy"] * (item % 3 == 0)


def make_events() -> list[Event]:
    generator = np.random.default_rng(0)
    return [
        (f"u{user}", f"i{item}", 1_700_000_000 + DAY * place + user, ["phone", "web"][int(generator.integers(2))])
        for user in range(USERS)
        for place, item in enumerate(generator.permutation(ITEMS)[: 5 + user % 7])
    ]


def write_dataset(events: list[Event], folder: Path) -> Path:
    pl.DataFrame(events, schema=["user_id", "item_id", "timestamp", "device"], orient="row").write_parquet(
        folder / "events.parquet"
    )
    users = [{"user_id": f"u{user}", "country": country(user), "age": 20.0 + user} for user in range(USERS)]
    pl.DataFrame(users).write_parquet(folder / "users.parquet")
    items = [{"item_id": f"i{item}", "genres": genres(item), "age": float(item)} for item in range(ITEMS)]
    pl.DataFrame(items).write_parquet(folder / "items.parquet")
    config = DataConfig(split="leave_last_out")
    prepare.run(
        config,
        folder / "events.parquet",
        folder / "dataset",
        users=folder / "users.parquet",
        items=folder / "items.parquet",
    )
    return folder / "dataset"


def write_bundle_of(dataset: Path, dimension: int = 4, name: str = "bundle", seed: int = 1, **changes: Any) -> Path:
    """A bundle of random vectors for the data set; `changes` replaces arguments of `write_bundle`."""
    data = Dataset.open(dataset)
    generator = np.random.default_rng(seed)
    row = FeatureSpec(name="user_id", kind="id", dtype="string", length=None)
    arguments: dict[str, Any] = {
        "model_version": f"test-{seed}",
        "metric": "dot",
        "query_features": [row],
        "candidate_features": [row],
        "item_ids": data.items["item_id"].to_list(),
        "item_vectors": generator.normal(size=(data.manifest.items, dimension)).astype(np.float32),
        "item_attributes": data.items.select("item_id"),
        "popularity": [1] * data.manifest.items,
        "query_ids": data.users["user_id"].to_list(),
        "query_vectors": generator.normal(size=(data.manifest.users, dimension)).astype(np.float32),
        "seen_offsets": np.zeros(data.manifest.users + 1, np.int64),
        "seen_items": [],
        "write_towers": no_towers,
        "libraries": {},
        "lineage": {"dataset": data.manifest.fingerprint},
        "training": {},
    }
    out = dataset.parent / name
    write_bundle(out, **(arguments | changes))
    return out
