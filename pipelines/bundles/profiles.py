"""Reads the profiles of users: what the query tower learnt of each from columns, as a request would send it."""

from collections.abc import Iterator
from typing import Any

from pipelines.dataset.dataset import Dataset
from pipelines.dataset.feature_lookup import ROWS, raw_values
from pipelines.dataset.resolve_features import column_of
from towers.data.events import Int32s
from towers.data.feature_tables import FeatureTables
from towers.model.two_tower import TwoTower


def profiles(
    model: TwoTower, tables: FeatureTables, dataset: Dataset, users: Int32s
) -> Iterator[dict[str, Any]] | None:
    """Yields the features of each user that come from columns of the users; None if the tower takes no such feature.

    Args:
        model: the model whose query tower reads them.
        tables: its looked-up tables.
        dataset: provides the columns.
        users: [Q] numbers of the users.
    """
    encoders = [
        each for each in model.query_tower.encoders if each.spec.name in tables.users and each.spec.config.kind != "id"
    ]
    if not encoders:
        return None

    def read() -> Iterator[dict[str, Any]]:
        for begin in range(0, len(users), ROWS):
            some = dataset.users[users[begin : begin + ROWS]]
            columns = [raw_values(each, some[column_of(each.spec.name, each.spec.config)]) for each in encoders]
            # float32 scalars stay: as text they need half the digits of a float64.
            lists = [[*column] if column.ndim == 1 else column.tolist() for column in columns]
            for values in zip(*lists, strict=True):
                found = zip(encoders, map(_present, values), strict=True)
                yield {each.spec.name: value for each, value in found if value is not None}

    return read()


def _present(value: Any) -> Any:
    """A raw value without what stands for a missing one: "" and NaN."""
    if isinstance(value, list):
        return [each for each in value if _present(each) is not None] or None
    return None if value == "" or value != value else value
