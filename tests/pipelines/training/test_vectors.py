"""A world whose vectors determine what is taken: learnt, exported, asked for by requests and by live items."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from fastapi.testclient import TestClient

from pipelines.bundles import export
from pipelines.bundles.run import load_run
from pipelines.ingest import prepare
from pipelines.training import train
from serving.bundle.encoder import Encoder
from serving.bundle.reader import Bundle
from serving.http.app import create_app
from serving.settings import Settings
from towers.config.recipe import parse_config
from towers.config.sections import DataConfig

GROUPS, USERS, ITEMS, SIZE = 4, 120, 44, 6
# Without standardising, the first number would drown the others.
CENTRES = np.random.default_rng(1).normal(size=(GROUPS, SIZE))
MEAN, SCALE = np.array([5e3, 0, 0, -20, 1, 0]), np.array([1e3, 1, 1e-3, 10, 1, 1])


def vectors(groups: np.ndarray, seed: int) -> np.ndarray:
    """Of each group its centre and a little noise, in units of their own: float32 [n, 6]."""
    noise = 0.2 * np.random.default_rng(seed).normal(size=(len(groups), SIZE))
    return (MEAN + SCALE * (CENTRES[groups] + noise)).astype(np.float32)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Users of group g take items of group g; nobody takes the last four items, and every tenth user has no vector."""
    folder = tmp_path_factory.mktemp("vectors")
    users, items = np.arange(USERS), np.arange(ITEMS)
    taste = pl.Series(vectors(users % GROUPS, 2)).to_list()
    pl.DataFrame(
        {
            "user_id": [f"u{u}" for u in users],
            "taste": pl.Series([None if u % 10 == 9 else taste[u] for u in users], dtype=pl.List(pl.Float32)),
        }
    ).write_parquet(folder / "users.parquet")
    looks = pl.Series(vectors(items % GROUPS, 3))
    pl.DataFrame({"item_id": [f"i{i}" for i in items], "look": looks}).write_parquet(folder / "items.parquet")
    rng = np.random.default_rng(4)
    taken = [(u, u % GROUPS + GROUPS * n) for u in users for n in rng.choice(ITEMS // GROUPS - 1, 7, replace=False)]
    pairs = {"user": [f"u{u}" for u, _ in taken], "item": [f"i{i}" for _, i in taken]}
    pl.DataFrame(pairs).write_csv(folder / "events.csv")
    files = {"items": folder / "items.parquet", "users": folder / "users.parquet"}
    prepare.run(DataConfig(split="random"), folder / "events.csv", folder / "dataset", **files)
    config = parse_config(
        {
            "features": {"query": {"taste": {"kind": "vector"}}, "candidate": {"look": {"kind": "vector"}}},
            "model": {"dimension": 8},
            "optimizer": {"learning_rate": 0.02},
            "train": {"epochs": 12, "batch_size": 64, "metric": "recall@10"},
        }
    )
    train.run(config, folder / "dataset", folder / "run")
    export.run(folder / "run", folder / "bundle")
    return folder


@pytest.fixture(scope="module")
def client(world: Path) -> Iterator[TestClient]:
    with TestClient(create_app(Settings(bundle=world / "bundle", state=world / "state"))) as client:
        yield client


def test_vectors_that_determine_the_items_are_learnt_on_both_sides(world: Path) -> None:
    """Of new vectors the 11 best items are those of their group, also those without an event; by chance a quarter."""
    bundle = Bundle.open(world / "bundle")
    assert bundle.manifest.items == ITEMS
    groups = np.arange(80) % GROUPS
    tastes = vectors(groups, 5)
    queries = Encoder.of_queries(bundle).encode([{"taste": taste} for taste in tastes])
    group_of = np.array([int(item[1:]) % GROUPS for item in bundle.item_ids])
    best = np.argsort(-queries @ np.asarray(bundle.item_vectors).T, axis=1)[:, : ITEMS // GROUPS]
    assert (group_of[best] == groups[:, np.newaxis]).mean() > 0.95
    table = load_run(world / "run").model.query_tower.encoders[0].table.numpy()
    assert table.shape == (SIZE + 1, 8) and np.abs(table[SIZE]).max() > 0, "the vector of a missing one is trained"


def test_the_exported_towers_give_the_vectors_of_training(world: Path) -> None:
    bundle, trained = Bundle.open(world / "bundle"), load_run(world / "run")
    looks = dict(zip(trained.dataset.items["item_id"], trained.dataset.items["look"].to_list(), strict=True))
    encoded = Encoder.of_items(bundle).encode([{"look": looks[item]} for item in bundle.item_ids])
    np.testing.assert_allclose(encoded, bundle.item_vectors, atol=1e-5)
    named = pl.DataFrame({"user_id": bundle.query_ids}).join(trained.dataset.users, on="user_id", maintain_order="left")
    encoded = Encoder.of_queries(bundle).encode([{"taste": taste} for taste in named["taste"].to_list()])
    np.testing.assert_allclose(encoded, bundle.query_vectors, atol=1e-5)
    assert named["taste"].null_count() == USERS // 10


def test_vectors_are_no_columns_for_display(world: Path) -> None:
    assert Bundle.open(world / "bundle").item_attributes.columns == ["item_id"]


def test_requests_send_vectors_and_wrong_ones_name_their_field(client: TestClient) -> None:
    taste = vectors(np.array([2]), 6)[0].tolist()
    answer = client.post("/recall", json={"features": {"taste": taste}, "k": 5}).json()
    assert answer["source"] == "features"
    assert {int(item["id"][1:]) % GROUPS for item in answer["items"]} == {2}
    for missing in ([], None):
        assert client.post("/recall", json={"features": {"taste": missing}, "k": 5}).json()["source"] == "popular"
    refused = client.post("/recall", json={"features": {"taste": taste[:5]}})
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "features.taste")
    assert refused.json()["error"]["message"].endswith("must hold 6 numbers, got 5")
    refused = client.post("/embed", json={"queries": [{"features": {"taste": [*taste[:5], 1e39]}}]})
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "queries.0.features.taste.5")


def test_a_live_item_is_recalled_by_its_vector(client: TestClient) -> None:
    look = (MEAN + SCALE * CENTRES[1]).tolist()
    assert client.put("/items/new", json={"features": {"look": look}}).status_code == 200
    found = client.post("/recall", json={"features": {"taste": look}, "k": 12, "allow": ["new", "i2", "i3", "i0"]})
    assert found.json()["items"][0]["id"] == "new"
    refused = client.put("/items/other", json={"features": {"look": look[:3]}})
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "features.look")
    assert client.put("/items/other", json={"features": {"look": []}}).json()["error"]["code"] == "not_recallable"


def test_the_document_describes_vectors(client: TestClient) -> None:
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    taste = schemas["RecallRequest"]["properties"]["features"]["anyOf"][0]["properties"]["taste"]
    whole, *missing = taste["anyOf"]
    assert (whole["type"], whole["minItems"], whole["maxItems"], whole["items"]["type"]) == ("array", 6, 6, "number")
    assert missing == [{"type": "null"}, {"type": "array", "items": whole["items"], "maxItems": 0}]
    assert "look" in schemas["ItemRequest"]["properties"]["features"]["properties"]
