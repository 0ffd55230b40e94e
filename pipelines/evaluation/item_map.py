"""Projects a sample of the item vectors to two dimensions, and groups the items by a column: a report's maps.

The projection is t-SNE from a start by PCA (van der Maaten & Hinton, JMLR 9, 2008) on vectors of length 1, with fixed
seeds. scikit-learn, which computes it, takes seconds to load, so only a report with a map loads it.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.dataset.dataset import Dataset
from pipelines.errors import DataError
from pipelines.evaluation.examples import TITLES
from pipelines.evaluation.slices import slices_of_values
from pipelines.rankers.ranker import Served

ITEMS, LEAST, SEED = 1_000, 50, 0
ROUNDS = 500  # of the descent: half of scikit-learn's default, in half of the time
MOST_MAPS = 6  # each is 0.1 MB of the page
MOST_DISTINCT = 0.2  # of the items: a column of more values, such as a title, makes no groups
POPULARITY = "popularity"


@dataclass(frozen=True)
class ItemMaps:
    """Vectors of some items, and how each column groups them.

    Attributes:
        vectors: [M, D].
        groups: column -> name -> [M] which items are in it; at most 12 names.
    """

    vectors: NDArray[np.float32]
    groups: dict[str, dict[str, NDArray[np.bool_]]]

    @cached_property
    def points(self) -> NDArray[np.float64]:
        """The projection, [M, 2]."""
        # Its threads would spin while they wait for one another: beside other work that took four times as long.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        from sklearn.manifold import TSNE

        perplexity = min(30.0, len(self.vectors) / 4)
        descent = TSNE(init="pca", max_iter=ROUNDS, perplexity=perplexity, random_state=SEED)
        points: NDArray[np.float64] = descent.fit_transform(self.vectors).astype(np.float64)
        return points


def map_columns(data: Dataset, columns: Sequence[str] | None) -> list[str]:
    """Returns the columns to colour by: the given ones; for None the first that makes groups, else popularity.

    Raises:
        DataError: there is no such column, it holds vectors, or there are too many.
    """
    allowed = [name for name, kind in data.manifest.item_columns.items() if kind != "vector"]
    if columns is None:
        return [next((name for name in allowed if _makes_groups(data.items[name])), POPULARITY)]
    for name in columns:
        if name not in (*allowed, POPULARITY):
            raise DataError(f"--map {name}: no such column of items; allowed are {', '.join([*allowed, POPULARITY])}")
    if len(columns) > MOST_MAPS:
        raise DataError(f"--map: at most {MOST_MAPS} columns, got {len(columns)}")
    return list(dict.fromkeys(columns))


def item_maps(served: Served, data: Dataset, popularity: NDArray[np.int64], columns: Sequence[str]) -> ItemMaps | str:
    """Returns the maps, or why there are none.

    Args:
        served: the bundle.
        data: the data set.
        popularity: [N] events of each item.
        columns: of `map_columns`.
    """
    if not columns:
        return "not asked for (--no-map)"
    known = np.flatnonzero(served.unit_vectors.any(axis=1))
    if len(known) < LEAST:
        return f"a map needs {LEAST} items with a vector; got {len(known)}"
    items = np.sort(np.random.default_rng(SEED).choice(known, min(ITEMS, len(known)), replace=False))
    vectors = served.unit_vectors[items]
    if vectors.shape[1] < 2 or np.allclose(vectors, vectors[0]):
        return "the item vectors do not fill two dimensions"
    return ItemMaps(vectors, {name: _groups(data, name, items, popularity) for name in columns})


def map_content(maps: ItemMaps | str) -> dict[str, Any]:
    """Returns ``map`` of `report.json`: its columns and number of items, or why there is none."""
    return {"left_out": maps} if isinstance(maps, str) else {"columns": list(maps.groups), "items": len(maps.vectors)}


def _makes_groups(values: pl.Series) -> bool:
    if values.dtype.is_numeric() or values.name in TITLES:
        return False
    each = values.explode() if isinstance(values.dtype, pl.List) else values
    return 2 <= each.drop_nulls().n_unique() <= MOST_DISTINCT * len(values)


def _groups(
    data: Dataset, name: str, items: NDArray[np.int64], popularity: NDArray[np.int64]
) -> dict[str, NDArray[np.bool_]]:
    named = name in data.items.columns
    values = data.items[name].gather(items) if named else pl.Series(name, popularity[items])
    parts = slices_of_values(name, values, by_user=False)
    return {part.name.removeprefix(f"{name}: "): part.targets for part in parts if part.targets is not None}
