"""The synthetic world has the properties that its formulas promise, and its truth reaches the data set."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import heldout
from pipelines.dataset.leaks import refuse_leaks
from pipelines.errors import DataError
from pipelines.ingest import prepare
from pipelines.ingest.synthetic import synth
from pipelines.ingest.synthetic.catalogue import LENGTH_S, ZIPF_EXPONENT, Catalogue, topics_for
from pipelines.ingest.synthetic.world import START_S, Population
from towers.config.sections import DataConfig

USERS, ITEMS, EVENTS = 500, 2_000, 30_000


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("synth") / "world"
    synth.run(out, users=USERS, items=ITEMS, events=EVENTS, seed=3)
    return out


@pytest.fixture(scope="module")
def data(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    out = tmp_path_factory.mktemp("synth") / "set"
    prepare.run(DataConfig(), world, out)
    return Dataset.open(out)


def test_the_same_seed_gives_the_same_bytes_and_another_seed_another_world(world: Path, tmp_path: Path) -> None:
    for seed in (3, 4):
        synth.run(tmp_path / str(seed), users=USERS, items=ITEMS, events=EVENTS, seed=seed)
    names = sorted(path.relative_to(world).as_posix() for path in world.rglob("*") if path.is_file())
    assert names == [
        "events.parquet",
        "items.parquet",
        "truth/item_vectors.npy",
        "truth/query_vectors.npy",
        "users.parquet",
    ]
    for name in names:
        assert (tmp_path / "3" / name).read_bytes() == (world / name).read_bytes()
        assert (tmp_path / "4" / name).read_bytes() != (world / name).read_bytes()


def test_the_world_without_fashion_is_what_it_was_before_there_was_any(tmp_path: Path) -> None:
    synth.run(tmp_path / "world", users=60, items=1_000, events=3_000, seed=7, fashion=0.0)
    found = {}
    for path in (tmp_path / "world").rglob("*.*"):
        # The rows of a table, not its file, which another version of the library may write in other bytes.
        rows = path.read_bytes() if path.suffix == ".npy" else pl.read_parquet(path).write_ndjson().encode()
        found[path.name] = hashlib.sha256(rows).hexdigest()
    assert found == {
        "events.parquet": "89deb33a238081acc61c48e27450f1e63f785c0de90d86ae7f376f5f72b92ba2",
        "items.parquet": "95ebca1a85f4ac8230c8ef549bf85b441801674a178e11c9cea77a83190fc4fa",
        "item_vectors.npy": "8cedd21764fc69bc5d66bdd339afb015f9ea4395e9307d350b09b210ab07a275",
        "query_vectors.npy": "3acb69ca41f10c9291ad8ce41709b313fa3a51c9a752032089e9c83893afe6f6",
        "users.parquet": "6e1b2efe5eab81a2d2f6c24eeed29d87a2f39a835adbdff46428e45e11f29139",
    }


def test_the_truth_is_a_probability_over_the_items(world: Path) -> None:
    queries, items = (np.load(world / "truth" / f"{side}_vectors.npy") for side in ("query", "item"))
    assert queries.shape == (USERS, topics_for(ITEMS)) and items.shape == (ITEMS, topics_for(ITEMS))
    probability = queries.astype(np.float64) @ items.T
    assert probability.min() >= 0
    np.testing.assert_allclose(probability.sum(axis=1), 1, atol=1e-5)


def test_popularity_within_each_topic_is_a_zipf_law() -> None:
    catalogue = Catalogue.make(ITEMS, np.random.default_rng(0))
    phi = catalogue.vectors(0, ITEMS)
    for topic in range(phi.shape[1]):
        weights = np.sort(phi[:, topic][phi[:, topic] > 0])[::-1]
        rank = np.arange(1, len(weights) + 1)
        expected = rank**-ZIPF_EXPONENT / np.sum(rank**-ZIPF_EXPONENT)
        np.testing.assert_allclose(weights, expected, rtol=1e-5)
    members = (phi > 0).sum(axis=1)
    assert set(members.tolist()) == {1, 2, 3}


def test_an_item_is_drawn_as_often_as_the_law_says_among_those_born() -> None:
    catalogue = Catalogue.make(1_000, np.random.default_rng(1))
    topic, time, draws = 5, LENGTH_S // 2, 40_000
    u = np.random.default_rng(2).random(draws)
    item = catalogue.draw(np.full(draws, topic), np.full(draws, time), u)
    born = catalogue.birth <= time
    law = np.where(born, catalogue.vectors(0, 1_000)[:, topic], 0).astype(np.float64)
    law /= law.sum()
    assert not born.all() and law[item].min() > 0
    # Six standard deviations of a binomial count for each item.
    assert (
        np.abs(np.bincount(item, minlength=1_000) - draws * law) <= 6 * np.sqrt(draws * law * (1 - law)) + 1e-9
    ).all()


def test_no_topic_is_ever_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.ingest.synthetic.catalogue.LATE_SHARE", 1.0)
    catalogue = Catalogue.make(1_000, np.random.default_rng(5))
    topic = np.arange(topics_for(1_000))
    item = catalogue.draw(topic, np.zeros(len(topic), np.int64), np.full(len(topic), 0.999))
    assert (catalogue.birth == 0).sum() < 0.1 * 1_000
    assert catalogue.birth[item].tolist() == [0] * len(topic)
    assert (catalogue.vectors(0, 1_000)[item, topic] > 0).all()


def test_nobody_takes_an_item_before_its_birth_or_twice(world: Path) -> None:
    events = pl.read_parquet(world / "events.parquet")
    items = pl.read_parquet(world / "items.parquet")
    joined = events.join(items, on="item_id", how="left", validate="m:1")
    assert joined["created"].null_count() == 0
    assert (joined["time"] >= joined["created"]).all()
    assert events.select("user_id", "item_id").is_duplicated().sum() == 0
    assert events["time"].min() >= START_S and events["time"].max() < START_S + LENGTH_S
    late = (items["created"] >= START_S).mean()
    # 2,000 draws of probability 0.1, less the heads of 32 topics: six deviations are 0.04.
    assert abs(float(late) - 0.1) < 0.045


def test_sizes_are_those_asked_for_and_activity_has_a_heavy_tail(world: Path) -> None:
    events, users = pl.read_parquet(world / "events.parquet"), pl.read_parquet(world / "users.parquet")
    assert users.height == USERS and users["user_id"].n_unique() == USERS
    assert abs(events.height - EVENTS) < 0.02 * EVENTS
    counts = events.group_by("user_id").len()["len"]
    assert counts.len() == USERS
    # A log-normal with sigma 1 has mean / median = exp(1/2) = 1.65; an even world has 1.
    assert 1.3 < float(counts.mean()) / float(counts.median()) < 2.2


def test_ids_tell_nothing_about_popularity(data: Dataset) -> None:
    number = data.items["item_id"].str.slice(1).cast(pl.Int64).to_numpy()
    # The correlation of 2,000 independent pairs has deviation 1/sqrt(2000) = 0.022.
    assert abs(np.corrcoef(number, data.items["train_count"].to_numpy())[0, 1]) < 0.12
    assert (
        data.items["item_id"].str.contains(r"^i\d{6}$").all() and data.users["user_id"].str.contains(r"^u\d{6}$").all()
    )


def test_taste_follows_the_attributes_of_the_user(world: Path) -> None:
    theta = np.load(world / "truth" / "query_vectors.npy")
    users = pl.read_parquet(world / "users.parquet")
    group = (users["age_group"] + users["country"]).to_numpy()
    same = group[:, None] == group[None, :]
    np.fill_diagonal(same, False)
    likeness = theta @ theta.T
    different = ~same
    np.fill_diagonal(different, False)
    assert likeness[same].mean() > 1.5 * likeness[different].mean()


def test_categories_are_main_topics(world: Path) -> None:
    items = pl.read_parquet(world / "items.parquet")
    phi = np.load(world / "truth" / "item_vectors.npy")
    single = (phi > 0).sum(axis=1) == 1
    pairs = {
        (category, int(topic))
        for category, topic in zip(items["category"].filter(pl.Series(single)), phi[single].argmax(axis=1), strict=True)
    }
    assert (
        len(pairs)
        == len({category for category, _ in pairs})
        == len({topic for _, topic in pairs})
        == topics_for(ITEMS)
    )
    assert items["tags"].list.len().min() == 2 and items["tags"].list.len().max() == 4
    assert items["title"].str.contains(r"^\w+ \w+ of \w+(, part \d+)?$").all()


def test_the_data_set_carries_the_truth_in_its_own_rows(world: Path, data: Dataset) -> None:
    truth = data.truth()
    assert truth is not None
    files = ("users", "user_id", data.users), ("items", "item_id", data.items)
    for vectors, side, (file, column, rows) in zip(truth, ("query", "item"), files, strict=True):
        source = pl.read_parquet(world / f"{file}.parquet")[column].to_list()
        original = np.load(world / "truth" / f"{side}_vectors.npy")
        for row in range(0, len(source), 37):
            assert vectors[row].tolist() == original[source.index(rows[column][row])].tolist()


@pytest.mark.parametrize("own", [True, False])
def test_a_truth_of_other_form_is_told_and_a_folder_of_ones_own_is_none(world: Path, tmp_path: Path, own: bool) -> None:
    copy = Path(shutil.copytree(world, tmp_path / "world"))
    (copy / "truth" / "labels.csv").touch()
    if own:
        (copy / "truth" / "query_vectors.npy").unlink()
        prepare.run(DataConfig(), copy, tmp_path / "set")
        assert Dataset.open(tmp_path / "set").truth() is None
    else:
        np.save(copy / "truth" / "query_vectors.npy", np.zeros(3, np.float32))
        with pytest.raises(DataError, match=r"query_vectors\.npy: its shape is \(3,\); it must be \[\d+, D\], a row"):
            prepare.run(DataConfig(), copy, tmp_path / "set")


def test_there_are_items_without_training_history_and_the_data_set_is_honest(data: Dataset) -> None:
    assert (data.items["train_count"] == 0).any() and data.items.height == ITEMS
    assert data.manifest.split.kind == "global_time" and data.manifest.timed
    assert data.manifest.event_columns == {"device": "string"}
    assert data.manifest.item_columns == {"title": "string", "category": "string", "tags": "list", "created": "number"}
    created = data.items["created"].to_numpy()
    assert created.max() < data.manifest.split.boundaries["test"], "the truth holds from the last birth on"
    refuse_leaks(data)


def test_ranking_by_truth_beats_popularity_by_far(data: Dataset) -> None:
    truth, held = data.truth(), heldout(data, "test")
    assert truth is not None
    popularity = np.broadcast_to(data.items["train_count"].to_numpy().astype(np.float64), (len(held.users), ITEMS))
    recalls = [recall(scores.copy(), data) for scores in (truth[0][held.users] @ truth[1].T, popularity)]
    assert recalls[0] > 2 * recalls[1] > 0


def recall(scores: np.ndarray, data: Dataset, k: int = 50) -> float:  # type: ignore[type-arg]
    held, shares = heldout(data, "test"), []
    for query in range(len(held.users)):
        scores[query, held.seen_items[held.seen_offsets[query] : held.seen_offsets[query + 1]]] = -1
        targets = held.target_items[held.target_offsets[query] : held.target_offsets[query + 1]]
        top = np.argsort(-scores[query])[:k]
        shares.append(len(set(top.tolist()) & set(targets.tolist())) / len(targets))
    return float(np.mean(shares))


def test_blocks_of_users_have_seeds_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Population, "BLOCK_USERS", 40)
    catalogue = Catalogue.make(1_000, np.random.default_rng(0))
    blocks = list(Population(100, 2_000, catalogue, np.random.SeedSequence(1)).blocks())
    assert [(block.first, len(block.theta)) for block in blocks] == [(0, 40), (40, 40), (80, 20)]
    assert blocks[0].theta.tolist() != blocks[1].theta.tolist()
    np.testing.assert_allclose(np.concatenate([block.theta for block in blocks]).sum(axis=1), 1, atol=1e-5)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"items": 999}, "--items 999: allowed are 1,000 to 10,000,000"),
        ({"users": 0}, "users must be at least 1"),
        ({"seed": -1}, "a seed at least 0"),
        ({"users": 10, "items": 1_000, "events": 5_000}, "--events 5000: allowed are 10 to 1,000"),
        ({"users": 10, "items": 1_000, "events": 5}, "--events 5: allowed are 10 to"),
        ({"fashion": 5.01}, "--fashion 5.01: allowed are 0 to 5"),
        ({"fashion": -0.1}, "--fashion -0.1: allowed are 0 to 5"),
        ({"fashion": float("nan")}, "--fashion nan: allowed are 0 to 5"),
    ],
)
def test_a_size_or_strength_out_of_range_is_refused(tmp_path: Path, sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        synth.run(tmp_path / "w", **sizes)
    assert not (tmp_path / "w").exists()


def test_no_two_items_of_a_demo_sized_world_share_a_title(tmp_path: Path) -> None:
    synth.run(tmp_path / "world", users=20, items=21_000, events=200, seed=0)
    titles = pl.read_parquet(tmp_path / "world" / "items.parquet")["title"]
    assert titles.n_unique() == 21_000
    assert titles.str.contains(", part 2$").any()  # some names did come twice
