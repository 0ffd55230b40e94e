"""`task = "similarity"` from files to answers: what is refused, what is held out, what a bundle recalls and reports."""

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from pipelines.bundles import build_index, export
from pipelines.bundles.bulk import recall
from pipelines.dataset.dataset import Dataset
from pipelines.errors import DataError
from pipelines.evaluation import report
from pipelines.ingest import prepare
from pipelines.training import check, train
from pipelines.training.similarity import training
from pipelines.training.similarity.labels import HELD_OUT, TRAINING, VALIDATION, pairs_digest, read_labels, read_pairs
from pipelines.training.similarity.training import similarity_training
from serving.bundle.reader import Bundle
from serving.recall.loading import open_recaller
from serving.recall.query import RecallQuery
from towers.config.recipe import Config, parse_config
from towers.config.sections import DataConfig
from towers.errors import ConfigError
from towers.evaluation.metrics import METRICS
from towers.tasks.similarity import NeighbourValidation

ITEMS, USERS, CLASSES = 60, 20, 3
FEATURES = {"item_id": {"kind": "id", "mask_share": 0.5}, "maker": {"kind": "categorical", "mask_share": 0.4}}

# Steps so large that the first epoch with every neighbour right, which is the one that is kept, is far along.
LONG = {"epochs": 6, "batch_size": 2, "metric": "precision@12", "patience": 6}
FAST = {"learning_rate": 0.1}


def items(label_of: dict[int, str] | None = None) -> pl.DataFrame:
    """Six makers, two of each class: what an item is can be read off its maker."""
    kinds = [(label_of or {}).get(i, "abc"[i % CLASSES]) for i in range(ITEMS)]
    return pl.DataFrame(
        {
            "item_id": [f"i{i:02d}" for i in range(ITEMS)],
            "kind": kinds,
            "tags": [["x"] if i % 2 else ["x", "y"] for i in range(ITEMS)],
            "shelf": [i % CLASSES for i in range(ITEMS)],
            "price": [0.5 + i for i in range(ITEMS)],
            "same": ["one"] * ITEMS,
            "maker": [f"m{i % 6}" for i in range(ITEMS)],
            "late": [None if i else "z" for i in range(ITEMS)],
        }
    )


def dataset(folder: Path, frame: pl.DataFrame) -> Path:
    rng = np.random.default_rng(0)
    taken = [(u, i) for u in range(USERS) for i in rng.choice(ITEMS, 12, replace=False)]
    pl.DataFrame(
        {
            "user_id": [f"u{u}" for u, _ in taken],
            "item_id": [f"i{i:02d}" for _, i in taken],
            "timestamp": rng.permutation(len(taken)) * 1000 + 1_600_000_000,
        }
    ).write_parquet(folder / "events.parquet")
    frame.write_parquet(folder / "items.parquet")
    prepare.run(
        DataConfig(split="global_time"), folder / "events.parquet", folder / "data", items=folder / "items.parquet"
    )
    return folder / "data"


def recipe(**sections: Any) -> Config:
    own: dict[str, Any] = {
        "task": "similarity",
        "features": {"candidate": FEATURES},
        "similarity": {"column": "kind", "holdout_share": 0.4},
        "loss": {"name": "am_softmax"},
        "model": {"dimension": 8},
        "optimizer": {"learning_rate": 0.02},
        "train": {"epochs": 8, "batch_size": 8},
    }
    return parse_config({**own, **sections})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    dataset(folder, items())
    names = [f"i{i:02d}" for i in range(ITEMS)]
    pl.DataFrame({"item_a": names, "item_b": names[3:] + names[:3]}).write_csv(folder / "pairs.csv")
    return folder


@pytest.fixture(scope="module")
def bundle(world: Path) -> Path:
    train.run(recipe(train=LONG, optimizer=FAST), world / "data", world / "run")
    export.run(world / "run", world / "bundle")
    return world / "bundle"


LOSS = {"name": "pair"}
REFUSED = [
    ({"similarity": {"column": "kinds"}}, ConfigError, "no column 'kinds'; they have .*did you mean 'kind'"),
    ({"similarity": {"column": "price"}}, ConfigError, "similarity.column: 'price' holds numbers that are not whole"),
    ({"similarity": {"column": "same"}}, ConfigError, "all labelled items of 'same' are 'one'; it takes two classes"),
    ({"similarity": {"column": "late"}}, ConfigError, "all labelled items of 'late' are 'z'"),
    (
        {"similarity": {"column": "kind", "holdout_share": 0.01}},
        ConfigError,
        "holdout_share: 0.01 of 60 labelled items leaves none to validate on",
    ),
    (
        {"features": {"candidate": {"brand": {"kind": "categorical", "column": "kind"}}}},
        ConfigError,
        "features.candidate.brand: reads 'kind', the labels",
    ),
    (
        {"features": {"candidate": {"item_id": {"kind": "id"}}}},
        ConfigError,
        "features.candidate: held-out items have no row for their id",
    ),
    (
        {"features": {"candidate": {"item_id": {"kind": "id", "min_count": 2}, "maker": {"kind": "categorical"}}}},
        ConfigError,
        "features.candidate.item_id.min_count: .* got 2",
    ),
    ({"train": {"metric": "precision@50"}}, ConfigError, "train.metric: precision@50 asks for 50 neighbours"),
]


@pytest.mark.parametrize("code", [14695981039346656037.0, 9007199254740993.0])
def test_classes_that_floats_round_are_refused(tmp_path: Path, code: float) -> None:
    data = dataset(tmp_path, items().with_columns(shelf=pl.Series([code if n % 2 else 1.0 for n in range(ITEMS)])))
    with pytest.raises(ConfigError, match=r"similarity\.column: 'shelf' holds numbers of 2\^53 or more, which floats"):
        check.run(recipe(similarity={"column": "shelf"}), data)


@pytest.mark.parametrize(("sections", "error", "message"), REFUSED)
def test_what_cannot_be_learnt_is_refused(
    world: Path, sections: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        check.run(recipe(**sections), world / "data")


BAD_PAIRS = [
    (
        "item_a,item_b\ni00,i01\ni02,x9\nx8,i03\n",
        DataError,
        r"pairs.csv: 2 item ids, '.*' for one, are not in the data",
    ),
    ("item_a,other\ni00,i01\n", DataError, "no column 'item_b'; it has item_a, other"),
    ("item_a,item_b\ni00,i01\ni02,i02\n", DataError, "an item beside itself"),
    ("item_a,item_b\ni00,\n", DataError, "column 'item_b': no id"),
    ("item_a,item_b\n", ConfigError, "similarity.pairs: 0 of 0 labelled items train; it takes at least 2"),
]


def test_triplets_of_more_classes_than_fit_in_memory_are_refused(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "MOST_TRIPLETS", 2)
    loss = {"name": "triplet", "mining": "all"}
    told = (
        r"train\.batch_size: loss\.mining = 'all' compares the classes of each item, up to 1, with all 3: at most 2 "
        r"items, or loss\.mining = 'hardest'; got 8"
    )
    with pytest.raises(ConfigError, match=told):
        check.run(recipe(loss=loss), world / "data")
    check.run(recipe(loss=loss | {"mining": "hardest"}), world / "data")
    check.run(recipe(loss=loss, train={"batch_size": 2}), world / "data")


@pytest.mark.parametrize(("content", "error", "message"), BAD_PAIRS)
def test_a_bad_file_of_pairs_is_refused(
    world: Path, tmp_path: Path, content: str, error: type[Exception], message: str
) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text(content)
    config = recipe(loss=LOSS, similarity={"pairs": str(path), "against": "items"})
    with pytest.raises(error, match=message):
        check.run(config, world / "data")
    path.unlink()
    with pytest.raises(DataError, match=r"pairs\.csv"):
        check.run(config, world / "data")


def test_a_column_of_vectors_holds_no_classes(tmp_path: Path) -> None:
    looks = items().with_columns(pl.Series("look", [[float(i), 1.0] for i in range(ITEMS)]))
    with pytest.raises(ConfigError, match=r"similarity\.column: 'look' holds vectors; a class is a string, a list of"):
        check.run(recipe(similarity={"column": "look"}), dataset(tmp_path, looks))


def test_items_of_all_classes_or_of_none_like_another_are_refused(tmp_path: Path) -> None:
    both = items().with_columns(
        pl.Series("every", [["a", "b"]] * ITEMS), pl.Series("alone", [f"c{i}" for i in range(ITEMS)])
    )
    data = dataset(tmp_path, both.with_columns(pl.lit(None, pl.String).alias("empty")))
    with pytest.raises(ConfigError, match="every training item is of all 2 classes"):
        check.run(recipe(similarity={"column": "every"}), data)
    with pytest.raises(ConfigError, match="no two training items share a class"):
        check.run(recipe(loss=LOSS, similarity={"column": "alone", "against": "items"}), data)
    with pytest.raises(ConfigError, match="holds out no item that is like another one"):
        check.run(recipe(similarity={"column": "alone"}), data)
    with pytest.raises(ConfigError, match="no item has a value in 'empty'"):
        check.run(recipe(similarity={"column": "empty"}), data)


def test_derived_features_leave_the_labels_out_and_mask_the_id(world: Path) -> None:
    config = check.run(recipe(features={}), world / "data")
    features = config.features.candidate or {}
    assert set(features) == {"item_id", "tags", "shelf", "price", "same", "maker", "late"}
    assert features["item_id"].mask_share == 0.5
    assert config.features.query is None
    assert config.train.metric == "precision@10"
    assert "trains the item tower alone" in check.describe(config)


@pytest.mark.parametrize("column", ["kind", "shelf", "tags"])
def test_the_held_out_halves_are_disjoint_and_seeded(world: Path, column: str) -> None:
    data = Dataset.open(world / "data")
    labels = read_labels(check.check_recipe(recipe(similarity={"column": column, "holdout_share": 0.4}), data), data)
    again = read_labels(
        check.check_recipe(recipe(similarity={"column": column, "holdout_share": 0.4}, loss=LOSS), data), data
    )
    np.testing.assert_array_equal(labels.part, again.part)
    assert [int((labels.part == part).sum()) for part in (TRAINING, VALIDATION, HELD_OUT)] == [36, 12, 12]
    values = data.items[column].to_list()
    for a in range(0, ITEMS, 7):
        for b in range(1, ITEMS, 5):
            alike = bool({str(values[a])} & {str(values[b])}) if column != "tags" else bool({*values[a]} & {*values[b]})
            assert labels.relation.alike(np.array([a]), np.array([b]))[0] == alike


def test_a_seeded_sample_of_the_held_out_items_validates(world: Path, tmp_path: Path) -> None:
    data = Dataset.open(world / "data")

    def asked(**train: int) -> list[int]:
        config = check.check_recipe(recipe(train={"batch_size": 8, **train}), data)
        validation = similarity_training(config, data, tmp_path).validation
        assert isinstance(validation, NeighbourValidation) and len(validation.likes) == len(validation.query)
        return [int(item) for item in validation.query]

    every, some = asked(), asked(validation_users=5)
    assert (len(every), len(some)) == (12, 5) and set(some) < set(every)
    assert asked(validation_users=5) == some


def test_labels_of_the_report_half_change_nothing_that_is_trained(world: Path, bundle: Path, tmp_path: Path) -> None:
    """Were a single one of them read, another vector or another epoch would come out."""
    data = Dataset.open(world / "data")
    labels = read_labels(check.check_recipe(recipe(), data), data)
    names = data.items["item_id"].gather(labels.items[labels.places(HELD_OUT)]).to_list()
    turned = {int(name[1:]): "abc"[(int(name[1:]) + 1) % CLASSES] for name in names}
    other = dataset(tmp_path, items(turned))
    assert Dataset.open(other).items["item_id"].to_list() == data.items["item_id"].to_list()
    summary = train.run(recipe(train=LONG, optimizer=FAST), other, tmp_path / "run")
    export.run(tmp_path / "run", tmp_path / "bundle")
    one, two = Bundle.open(bundle), Bundle.open(tmp_path / "bundle")
    np.testing.assert_array_equal(one.item_vectors, two.item_vectors)
    assert summary["stages"][0]["best_metric"] == one.manifest.training["stages"][0]["best_metric"]


def kinds_of(ids: list[str]) -> set[int]:
    return {int(each[1:]) % CLASSES for each in ids}


def test_a_bundle_answers_with_items_of_the_same_class(bundle: Path) -> None:
    assert Bundle.open(bundle).manifest.items == ITEMS  # held-out items have a vector, too
    recaller = open_recaller(bundle)
    same = ITEMS // CLASSES
    for number in (0, 10, 41):
        asked = recaller.recall(RecallQuery(history=[f"i{number:02d}"], k=same - 1))
        assert asked.source == "similar"
        assert kinds_of(asked.ids) == {number % CLASSES}
        assert f"i{number:02d}" not in asked.ids
        by_maker = recaller.recall(RecallQuery(features={"maker": f"m{number % 6}"}, k=same - 5))
        assert (by_maker.source, kinds_of(by_maker.ids)) == ("features", {number % CLASSES})
    both = recaller.recall(RecallQuery(history=["i00", "i03"], k=same - 2))
    assert kinds_of(both.ids) == {0}


def test_an_item_asked_with_is_not_its_own_answer_and_no_user(world: Path, bundle: Path) -> None:
    recaller = open_recaller(bundle)
    data = Dataset.open(world / "data")
    labels = read_labels(check.check_recipe(recipe(), data), data)
    trained, held = (data.items["item_id"][int(labels.items[labels.places(p)[0]])] for p in (TRAINING, HELD_OUT))
    found = recaller.recall(RecallQuery(features={"item_id": trained}, k=5))
    assert found.source == "features"
    assert trained not in found.ids
    assert trained in recaller.recall(RecallQuery(features={"item_id": trained}, k=60, exclude_seen=False)).ids
    # Nothing was learnt of a held-out item's id alone, nor of any user.
    assert recaller.recall(RecallQuery(features={"item_id": held}, k=5)).source == "popular"
    assert recaller.recall(RecallQuery(user_id="u3", k=5)).source == "popular"
    with_user = recaller.recall(RecallQuery(user_id="u3", features={"item_id": trained}, k=5, exclude_seen=False))
    without = recaller.recall(RecallQuery(features={"item_id": trained}, k=5, exclude_seen=False))
    assert with_user.ids == without.ids


def test_an_index_works_on_it_and_bulk_recall_for_users_is_refused(bundle: Path, tmp_path: Path) -> None:
    assert build_index.run(bundle).measured["recall_at_100"] == 1.0
    # Users have zero vectors here: what measures the index are items.
    assert np.any(Bundle.open(bundle).sample_queries(2_000, 0) != 0, axis=1).all()
    with pytest.raises(DataError, match="finds items for items, not for users"):
        recall.run(bundle, 3, tmp_path / "recall.parquet")


def slow_figures(vectors: np.ndarray, likes: np.ndarray, query: int, k: int) -> tuple[int, float]:
    """Hits among the k nearest, and the share of (like, unlike) pairs of which the like one is nearer."""
    others = [i for i in range(len(vectors)) if i != query]
    cosine = {i: round(float(vectors[query].astype(float) @ vectors[i].astype(float)), 6) for i in others}
    order = sorted(others, key=lambda i: (-np.float32(vectors[query].astype(float) @ vectors[i].astype(float)), i))
    shares = [
        1.0 if cosine[a] > cosine[b] else 0.5 if cosine[a] == cosine[b] else 0.0
        for a in others
        if likes[query, a]
        for b in others
        if not likes[query, b]
    ]
    return sum(likes[query, i] for i in order[:k]), float(np.mean(shares))


def test_the_report_says_what_a_slow_loop_finds(world: Path, tmp_path: Path) -> None:
    train.run(recipe(train={"epochs": 1, "batch_size": 8}), world / "data", tmp_path / "run")
    export.run(tmp_path / "run", tmp_path / "bundle")
    content = report.run(tmp_path / "bundle", world / "data", tmp_path / "report", ks=(3, 10, 100), maps=[])
    assert content == json.loads((tmp_path / "report" / "report.json").read_text())
    assert content["ks"] == [3, 10]  # 100 is more than there are
    opened = Bundle.open(tmp_path / "bundle")
    numbers = [int(name[1:]) for name in opened.item_ids]
    likes = np.array([[a % CLASSES == b % CLASSES for b in numbers] for a in numbers])
    rows = pl.read_parquet(tmp_path / "report" / "per_item.parquet")
    data = Dataset.open(world / "data")
    part = read_labels(check.check_recipe(recipe(), data), data).part
    for group, wanted in (("training", TRAINING), ("held_out", HELD_OUT)):
        some = rows.filter(pl.col("group") == group)
        assert some["item_id"].to_list() == data.items["item_id"].filter(pl.Series(part == wanted)).to_list()
        for k in (3, 10):
            slow = [slow_figures(opened.item_vectors, likes, opened.item_rows[name], k) for name in some["item_id"]]
            np.testing.assert_allclose(some[f"exact_precision@{k}"], [hits / k for hits, _ in slow])
            np.testing.assert_allclose(some["within_below_between"], [share for _, share in slow], rtol=1e-9)
            figures = content["metrics"][group]
            assert figures["exact"][f"precision@{k}"]["value"] == pytest.approx(np.mean([h / k for h, _ in slow]))
            assert figures["chance"][f"precision@{k}"]["value"] == pytest.approx(19 / 59)
            assert figures["best_attainable"][f"precision@{k}"]["value"] == 1.0
        nearer = content["within_below_between"][group]
        assert nearer["value"] == pytest.approx(np.mean([share for _, share in slow]))
        assert (nearer["anchors"], nearer["triples"]) == (len(slow), len(slow) * 19 * 40)
        difference = content["differences"][group]["exact_minus_chance"]["precision@3"]
        assert difference["value"] == pytest.approx(
            figures["exact"]["precision@3"]["value"] - figures["chance"]["precision@3"]["value"]
        )
        assert {"item_knn", "popularity"} < set(figures)
    assert content["counts"]["training"] == 36
    assert set(content["metrics"]["held_out"]["exact"]) == {"precision@3", "precision@10"}


def test_the_report_of_what_was_learnt_is_perfect(world: Path, bundle: Path, tmp_path: Path) -> None:
    content = report.run(bundle, world / "data", tmp_path / "report", ks=(10,), maps=[])
    for group in ("training", "held_out"):
        assert content["metrics"][group]["exact"]["precision@10"] == {"value": 1.0, "low": 1.0, "high": 1.0}
        # Validation keeps the first epoch whose ten nearest are right; further away a few pairs may still be wrong.
        assert content["within_below_between"][group]["value"] >= 0.98


def test_pairs_are_read_packed_and_behind_a_url(world: Path, tmp_path: Path) -> None:
    memory = pytest.importorskip("fsspec", reason="needs the extra 'cloud'").filesystem("memory")
    plain = (world / "pairs.csv").read_bytes()
    memory.pipe_file("/listed/pairs.csv.gz", gzip.compress(plain))
    (tmp_path / "pairs.csv.gz").write_bytes(gzip.compress(plain))
    names = Dataset.open(world / "data").items["item_id"]
    expected = read_pairs(world / "pairs.csv", names)
    assert len(expected) == ITEMS
    assert np.array_equal(read_pairs(tmp_path / "pairs.csv.gz", names), expected)
    assert np.array_equal(read_pairs("memory://listed/pairs.csv.gz", names), expected)
    digest = hashlib.sha256((tmp_path / "pairs.csv.gz").read_bytes()).hexdigest()
    assert pairs_digest(str(tmp_path / "pairs.csv.gz")) == pairs_digest("memory://listed/pairs.csv.gz") == digest
    memory.pipe_file("/listed/pairs.csv", plain + b"i00,i00\n")
    with pytest.raises(DataError, match=rf"^memory://listed/pairs\.csv, row {ITEMS + 2}, .*an item beside itself"):
        read_pairs("memory://listed/pairs.csv", names)
    memory.rm("/listed", recursive=True)


def test_pairs_from_file_to_report(world: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.csv"
    pairs.write_bytes((world / "pairs.csv").read_bytes())
    given = {"pairs": str(pairs), "against": "items", "holdout_share": 0.4}
    config = recipe(loss=LOSS, similarity=given, train={"epochs": 2, "batch_size": 8})
    summary = train.run(config, world / "data", tmp_path / "run")
    assert summary["stages"][0]["metric"] == "recall@20"
    data = Dataset.open(world / "data")
    labels = read_labels(config, data)
    train_names = set(data.items["item_id"].gather(labels.items[labels.places(TRAINING)]).to_list())
    both = [(a, (a + 3) % ITEMS) for a in range(ITEMS)]
    inside = [(a, b) for a, b in both if f"i{a:02d}" in train_names and f"i{b:02d}" in train_names]
    assert summary["stages"][0]["examples"] == len(inside)
    export.run(tmp_path / "run", tmp_path / "bundle")
    content = report.run(tmp_path / "bundle", world / "data", tmp_path / "report", ks=(2, 5), maps=[])
    opened = Bundle.open(tmp_path / "bundle")
    numbers = [int(name[1:]) for name in opened.item_ids]
    likes = np.array([[(a, b) in both or (b, a) in both for b in numbers] for a in numbers])
    rows = pl.read_parquet(tmp_path / "report" / "per_item.parquet").filter(pl.col("group") == "held_out")
    assert len(rows) == 12
    for name, got in zip(rows["item_id"], rows["exact_recall@5"], strict=True):
        hits, _ = slow_figures(opened.item_vectors, likes, opened.item_rows[name], 5)
        wanted = METRICS["recall"](np.array([[True] * hits + [False] * (5 - hits)]), np.array([2]), 5)
        assert got == pytest.approx(wanted[0])
    assert content["metrics"]["held_out"]["chance"]["recall@5"]["value"] == pytest.approx(5 / 59)
    with pairs.open("a") as file:
        file.write("i00,i01\n")
    with pytest.raises(DataError, match=r"not the pairs that .* was trained on"):
        report.run(tmp_path / "bundle", world / "data", tmp_path / "again")


def test_without_held_out_items_every_epoch_trains(world: Path, tmp_path: Path) -> None:
    config = recipe(
        similarity={"column": "kind", "holdout_share": 0.0},
        features={"candidate": {"item_id": {"kind": "id"}}},
        train={"epochs": 2, "batch_size": 8},
    )
    summary = train.run(config, world / "data", tmp_path / "run")
    assert (summary["stages"][0]["epochs"], summary["stages"][0]["best_metric"]) == (2, None)
    export.run(tmp_path / "run", tmp_path / "bundle")
    content = report.run(tmp_path / "bundle", world / "data", tmp_path / "report", maps=[])
    assert list(content["metrics"]) == ["training"]
