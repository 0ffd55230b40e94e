"""The rows that item ids start from: counts and logarithms against slow loops, factors against numpy's."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from pipelines.dataset.dataset import Dataset
from pipelines.ingest import prepare
from pipelines.training.check import check_recipe
from pipelines.training.stage import build_training
from tests.support.worlds.training import GROUPS, ITEMS, USERS, group_world, recipe
from towers.config.features import IdFeature
from towers.config.recipe import Config, parse_config
from towers.config.sections import DataConfig
from towers.data.events import Events
from towers.data.feature_tables import FeatureTables
from towers.errors import ConfigError
from towers.features.encoder import FeatureSpec
from towers.model.start_rows import factors, start_rows
from towers.model.two_tower import TwoTower
from towers.ops.replicas import Replicas

N, D = 7, 4


def slow_information(lists: list[list[int]], window: int) -> np.ndarray:
    """The positive pointwise mutual information, pair by pair."""
    count = np.zeros((N, N))
    for taken in lists:
        for first, i in enumerate(taken):
            for second, j in enumerate(taken):
                if i != j and abs(first - second) <= window:
                    count[i, j] += 1 / abs(first - second)
    total = count.sum(axis=1)
    found = np.zeros((N, N))
    for i in range(N):
        for j in range(N):
            if count[i, j]:
                found[i, j] = max(0.0, math.log(count[i, j] * total.sum() / (total[i] * total[j])))
    return found


def exact(matrix: np.ndarray, dimension: int) -> np.ndarray:
    """The products of the rows, which do not depend on the signs of the vectors."""
    values, vectors = np.linalg.eigh(matrix)
    values, vectors = np.maximum(values[::-1], 0)[:dimension], vectors[:, ::-1][:, :dimension]
    return (vectors * values) @ vectors.T


def world(lists: list[list[int]]) -> tuple[Events, FeatureTables]:
    """Users of those lists; item i in row i + 1."""
    lengths = [len(each) for each in lists]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    user = np.repeat(np.arange(len(lists), dtype=np.int32), lengths)
    item = np.array([i for each in lists for i in each], np.int32)
    users = np.arange(1, len(lists) + 1, dtype=np.int32)
    return Events(user, item, offsets), FeatureTables(
        {"user_id": users}, {"item_id": np.arange(1, N + 1, dtype=np.int32)}
    )


def towers(feature: IdFeature, users: int, items: int, config: Config) -> TwoTower:
    user = FeatureSpec("user_id", IdFeature(kind="id"), size=users, table="user_id")
    return TwoTower([user], [FeatureSpec("item_id", feature, size=items, table="item_id")], config)


def table_of(model: TwoTower) -> np.ndarray:
    rows: np.ndarray = tf.cast(model.candidate_tower.encoders[0].table, tf.float32).numpy()
    return rows


@pytest.mark.long
@given(st.lists(st.lists(st.integers(0, N - 1), max_size=9), min_size=1, max_size=8), st.integers(1, 4))
def test_rows_are_the_factors_of_the_information_as_long_as_before(lists: list[list[int]], window: int) -> None:
    events, tables = world(lists)
    feature = IdFeature(kind="id", start="cooccurrence", start_window=window)
    model = towers(feature, len(lists), N, recipe(model={"dimension": N}))
    before = table_of(model)
    start_rows(model, tables, events)
    after = table_of(model)
    wanted = exact(slow_information(lists, window), N)
    squares = np.diag(wanted)
    told = squares > 1e-6 * squares.max()
    assume(not ((squares > 1e-9 * squares.max()) & (squares < 1e-4 * squares.max())).any())  # said or not by a hair
    np.testing.assert_array_equal(after[1:][~told], before[1:][~told])
    np.testing.assert_array_equal(after[0], 0)
    if told.any():
        lengths = np.linalg.norm(before[1:], axis=1)
        assert np.linalg.norm(after[1:][told], axis=1).mean() == pytest.approx(lengths.mean(), rel=1e-4)
        products = after[1:][told] @ after[1:][told].T
        ratio = np.trace(products) / np.diag(wanted)[told].sum()
        np.testing.assert_allclose(products, wanted[np.ix_(told, told)] * ratio, atol=1e-5)


def test_factors_are_those_of_an_exact_decomposition_where_eigenvalues_fall_fast() -> None:
    basis, _ = np.linalg.qr(np.random.default_rng(5).standard_normal((200, 200)))
    values = np.where(np.arange(200) % 3 == 1, -1, 1) * 3.0 * 0.8 ** np.arange(200)
    matrix = (basis * values) @ basis.T
    rows = factors(csr_array(matrix.astype(np.float32)), 10)
    np.testing.assert_allclose(rows @ rows.T, exact(matrix, 10), atol=2e-4)
    wide = factors(csr_array(matrix[:3, :3].astype(np.float32)), 5)
    assert wide.shape == (3, 5) and not wide[:, 3:].any()


def test_items_of_one_group_start_alike_and_unknown_ones_as_they_were() -> None:
    events, tables, _ = group_world()
    rows = np.arange(1, ITEMS + 1, dtype=np.int32)
    rows[4] = 0  # below `min_count`: no row, no pair
    model = towers(
        IdFeature(kind="id", start="cooccurrence"),
        USERS,
        ITEMS,
        recipe(model={"dimension": GROUPS, "table_dtype": "float16"}),
    )
    table = model.candidate_tower.encoders[0].table
    table.scatter_update(tf.IndexedSlices(tf.zeros([1, GROUPS], table.dtype), [8]))  # no example trains it
    before = table_of(model)
    start_rows(model, FeatureTables(tables.users, {"item_id": rows}), events)
    after = table_of(model)
    np.testing.assert_array_equal(after[[5, 8]], before[[5, 8]])
    kept = np.delete(np.arange(ITEMS), [4, 7])
    unit = after[1:][kept] / np.linalg.norm(after[1:][kept], axis=1, keepdims=True)
    same = kept[:, None] % GROUPS == kept % GROUPS
    cosine = unit @ unit.T
    assert cosine[same].min() > 0.99 and abs(cosine[~same]).max() < 0.05


def test_every_worker_gets_the_rows_of_the_first() -> None:
    copied: list[tf.Variable] = []

    class Worker(Replicas):
        def copy_first(self, variables: Sequence[tf.Variable]) -> None:
            copied.extend(variables)

    events, tables, _ = group_world()
    model = towers(IdFeature(kind="id", start="cooccurrence"), USERS, ITEMS, recipe())
    start_rows(model, tables, events, Worker())
    assert [each.ref() for each in copied] == [model.candidate_tower.encoders[0].table.ref()]


def test_more_pairs_than_can_be_factorised_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("towers.model.start_rows.MOST_PAIRS", 100)
    events, tables, _ = group_world()
    model = towers(IdFeature(kind="id", start="cooccurrence"), USERS, ITEMS, recipe())
    with pytest.raises(ConfigError, match=r"features\.candidate\.item_id\.start: .* at most 100 pairs of items"):
        start_rows(model, tables, events)


def test_lists_of_too_many_pairs_are_refused_by_the_key_of_their_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("towers.features.cooccurrence.MOST_PAIRS", 100)
    events, tables, _ = group_world()
    model = towers(IdFeature(kind="id", start="cooccurrence", start_window="list"), USERS, ITEMS, recipe())
    with pytest.raises(ConfigError, match=r"^features\.candidate\.item_id\.start_window: 'list' counts every pair"):
        start_rows(model, tables, events)


@pytest.mark.parametrize(
    ("side", "settings", "said"),
    [
        ("query", {"start": "cooccurrence"}, r"features\.query\.user_id\.start: is about the items that users take"),
        ("candidate", {"start_window": 3}, r"features\.candidate\.item_id\.start_window: only start = 'cooccurrence'"),
        (
            "candidate",
            {"start": "ease"},
            r"features\.candidate\.item_id\.start: must be one of random, cooccurrence; got 'ease'",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(side: str, settings: dict[str, object], said: str) -> None:
    features = {"query": {"user_id": {"kind": "id"}}, "candidate": {"item_id": {"kind": "id"}}}
    name = "user_id" if side == "query" else "item_id"
    features[side][name] |= settings  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=said):
        parse_config({"features": features})


def small_world(folder: Path, split: str) -> Dataset:
    """Twenty users of each half of the items, in random order."""
    rng = np.random.default_rng(2)
    taken = [(user, rng.permutation(6) + 6 * (user % 2)) for user in range(40)]
    lines = [f"u{user},i{item},{place}" for user, items in taken for place, item in enumerate(items)]
    (folder / "events.csv").write_text("\n".join(["user_id,item_id,time", *lines]))
    prepare.run(DataConfig.model_validate({"split": split}), folder / "events.csv", folder / "data")
    return Dataset.open(folder / "data")


def starting(window: int | str, start: str = "cooccurrence") -> Config:
    own = {"start": start} | ({"start_window": window} if start != "random" else {})
    features = {"query": {"user_id": {"kind": "id"}}, "candidate": {"item_id": {"kind": "id", **own}}}
    return parse_config({"features": features, "model": {"dimension": 4}})


def test_a_window_in_places_needs_the_order_of_the_events(tmp_path: Path) -> None:
    data = small_world(tmp_path, "random")
    with pytest.raises(ConfigError, match=r"features\.candidate\.item_id\.start_window: needs the order .* 'list'"):
        check_recipe(starting(5), data)


@pytest.mark.parametrize(("split", "window"), [("random", "list"), ("leave_last_out", 5)])
def test_a_training_starts_from_them(split: str, window: int | str, tmp_path: Path) -> None:
    data, rows = small_world(tmp_path, split), {}
    for start in ("random", "cooccurrence"):
        (tmp_path / start).mkdir()
        config = check_recipe(starting(window, start), data)
        training = build_training(config, data, ("train",), tmp_path / start, tmp_path / start, validated=False)
        rows[start] = table_of(training.task.towers)[1:]
    half = np.array([int(each[1:]) // 6 for each in data.items["item_id"].to_list()])
    same = (half[:, None] == half) & ~np.eye(12, dtype=bool)
    unit = {start: each / np.linalg.norm(each, axis=1, keepdims=True) for start, each in rows.items()}
    apart = {
        start: (each @ each.T)[same].mean() - (each @ each.T)[half[:, None] != half].mean()
        for start, each in unit.items()
    }
    assert apart["cooccurrence"] > 0.9 > 0.3 > apart["random"]


def test_similarity_has_no_items_taken_together() -> None:
    sections = starting(5).model_dump(mode="json")["features"]["candidate"]
    task = {"task": "similarity", "loss": {"name": "triplet"}, "similarity": {"column": "genre"}}
    with pytest.raises(
        ConfigError, match=r"features\.candidate\.item_id\.start: task = 'similarity' has no users who take"
    ):
        parse_config({"features": {"candidate": sections}, **task})
