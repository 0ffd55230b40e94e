"""Maps of item vectors: columns, groups and sample by hand; clusters stay clusters."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pipelines.dataset.dataset import Dataset
from pipelines.errors import DataError
from pipelines.evaluation import item_map, plots
from pipelines.evaluation.item_map import ItemMaps, item_maps, map_columns
from pipelines.ingest import prepare
from pipelines.rankers.ranker import Served
from serving.bundle.reader import Bundle
from serving.recall.loading import open_index
from tests.support.worlds import columns
from towers.config.sections import DataConfig

ITEMS, KINDS = 90, ["_red", "$x$", "blue & <b>"]


def kind(item: int) -> str | None:
    return None if item == 5 else KINDS[item % 3]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("map")
    events = [
        (f"u{user}", f"i{item}", 1 + user + item)
        for user in range(6)
        for item in range(ITEMS)
        if item % (user + 1) == 0
    ]
    pl.DataFrame(events, schema=["user_id", "item_id", "timestamp"], orient="row").write_parquet(folder / "e.parquet")
    items = [
        {
            "item_id": f"i{item}",
            "title": f"t{item}",
            "year": 1990 + item,
            "kind": kind(item),
            "tags": ["a"] * (item % 2),
        }
        for item in range(ITEMS)
    ]
    pl.DataFrame(items).write_parquet(folder / "items.parquet")
    prepare.run(DataConfig(), folder / "e.parquet", folder / "dataset", items=folder / "items.parquet")
    return Dataset.open(folder / "dataset")


def served(data: Dataset, vectors: np.ndarray, name: str) -> Served:
    bundle = Bundle.open(columns.write_bundle_of(data.path, vectors.shape[1], name=name, item_vectors=vectors))
    return Served.match(bundle, open_index(bundle), data)


@pytest.fixture(scope="module")
def clustered(data: Dataset) -> Served:
    """The vectors of a kind lie close to one of three orthogonal directions."""
    numbers = [int(name[1:]) for name in data.items["item_id"].to_list()]
    vectors = np.eye(8)[[number % 3 for number in numbers]] + 0.05 * np.random.default_rng(0).normal(size=(ITEMS, 8))
    return served(data, vectors.astype(np.float32), "clustered")


def test_columns_are_the_given_or_the_first_that_makes_groups(data: Dataset) -> None:
    # Not the title, which is of one item, and no number.
    assert map_columns(data, None) == ["kind"]
    assert map_columns(data, ["year", "popularity", "year"]) == ["year", "popularity"]
    assert map_columns(data, []) == []
    with pytest.raises(
        DataError, match=r"--map colour: no such column of items; allowed are title, year, kind, tags, popu"
    ):
        map_columns(data, ["kind", "colour"])
    with pytest.raises(DataError, match="at most 6 columns, got 7"):
        map_columns(data, ["kind"] * 7)


def test_without_such_a_column_the_map_shows_popularity(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    # Three kinds and one tag of 90 items are too many.
    monkeypatch.setattr(item_map, "MOST_DISTINCT", 2 / ITEMS)
    assert map_columns(data, None) == ["popularity"]


def test_what_the_model_holds_together_lies_together(data: Dataset, clustered: Served) -> None:
    popularity = np.arange(data.manifest.items)
    made = item_maps(clustered, data, popularity, ["kind", "year", "popularity"])
    again = item_maps(clustered, data, popularity, ["kind"])
    assert isinstance(made, ItemMaps) and isinstance(again, ItemMaps)
    assert made.points.shape == (ITEMS, 2) and np.array_equal(made.points, again.points)
    kinds = data.items["kind"].to_list()
    assert {name: mask.tolist() for name, mask in made.groups["kind"].items()} == {
        **{name: [each == name for each in kinds] for name in sorted(KINDS)},
        "missing": [each is None for each in kinds],
    }
    years = data.items["year"].to_numpy()
    for mask in made.groups["year"].values():
        inside = years[mask]
        assert mask.sum() == np.count_nonzero((years >= inside.min()) & (years <= inside.max()))
    assert list(made.groups["popularity"]) == ["0 to 21", "22 to 43", "44 to 65", "66 to 89"]
    # The nearest point of each is of its own kind: three clusters, not one cloud.
    distances = np.linalg.norm(made.points[:, None] - made.points[None], axis=2)
    np.fill_diagonal(distances, np.inf)
    own = np.array([int(name[1:]) % 3 for name in data.items["item_id"].to_list()])
    assert (own[distances.argmin(axis=1)] == own).all()


def test_a_sample_of_many_items_is_seeded(data: Dataset, clustered: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(item_map, "ITEMS", 60)
    popularity = np.arange(ITEMS)
    made = item_maps(clustered, data, popularity, ["popularity"])
    assert isinstance(made, ItemMaps) and len(made.points) == 60
    assert sum(int(mask.sum()) for mask in made.groups["popularity"].values()) == 60


@pytest.mark.parametrize(
    ("vectors", "names", "reason"),
    [
        (np.ones((ITEMS, 8), np.float32), ["kind"], "do not fill two dimensions"),
        (np.vstack([np.eye(8), np.zeros((ITEMS - 8, 8))]).astype(np.float32), ["kind"], "with a vector; got 8"),
        (np.ones((ITEMS, 8), np.float32), [], "--no-map"),
    ],
)
def test_where_there_is_no_map_the_reason_is_given(
    data: Dataset, vectors: np.ndarray, names: list[str], reason: str, tmp_path: Path
) -> None:
    made = item_maps(served(data, vectors, tmp_path.name), data, np.arange(ITEMS), names)
    assert isinstance(made, str) and reason in made


def test_names_of_any_kind_are_in_the_legend() -> None:
    masks = {name: np.arange(30) % 3 == place for place, name in enumerate(KINDS)}
    svg = plots.item_map(np.random.default_rng(0).normal(size=(30, 2)), masks)
    for name in ("_red: 10", "$x$: 10", "blue &amp; &lt;b&gt;: 10"):
        assert name in svg
    assert svg.count("<use ") == 30 + 3  # and one mark each in the legend
