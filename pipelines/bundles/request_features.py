"""What requests send: the towers' features as the manifest names them, and the profiles of stored users.

A profile is what the query tower learnt of a user from columns, as a request would send it.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from pipelines.dataset.dataset import Dataset
from pipelines.dataset.feature_lookup import raw_values
from pipelines.dataset.resolve_features import column_of
from pipelines.dataset.vocabulary import ROWS
from serving.bundle.manifest import FeatureSpec as RequestFeature
from serving.bundle.request_features import GREATEST_FLOAT32
from towers.data.events import Int32s
from towers.data.feature_tables import FeatureTables
from towers.features.encoder import CLOCK_VALUES, FeatureSpec
from towers.model.two_tower import TwoTower


def request_feature(spec: FeatureSpec, time_zone: str = "UTC") -> RequestFeature:
    """Describes a feature as requests and the bundle's manifest do; `time_zone` is that of the data set."""
    events = getattr(spec.config, "events", ())
    zone = time_zone if spec.config.kind in CLOCK_VALUES and time_zone != "UTC" else None
    return RequestFeature(
        name=spec.name,
        kind=spec.config.kind,
        dtype=spec.dtype.name,
        length=spec.length,
        events=events,
        time_zone=zone,
    )


def query_features(model: TwoTower, task: str, time_zone: str) -> list[RequestFeature]:
    """Returns what a request may send. With task = "similarity" it sends an item, so the id is not a user's."""
    if task == "retrieval":
        return [each for encoder in model.query_tower.encoders for each in _query_inputs(encoder.spec, time_zone)]
    features = [request_feature(encoder.spec) for encoder in model.candidate_tower.encoders]
    return [each.model_copy(update={"kind": "item"}) if each.kind == "id" else each for each in features]


def _query_inputs(spec: FeatureSpec, time_zone: str) -> list[RequestFeature]:
    """Describes a query feature as requests do: neighbours and sequences arrive as a history of items."""
    feature = request_feature(spec, time_zone)
    if feature.kind in ("neighbours", "sequence"):
        feature = feature.model_copy(update={"kind": "history"})
    if spec.times is None:
        return [feature]
    return [feature, RequestFeature(name=spec.times, kind="history_times", dtype="int64", length=spec.length)]


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
    """The raw value; None for "" and NaN, which mean a missing one, and lists without them."""
    if isinstance(value, list):
        return [each for each in value if _present(each) is not None] or None
    if isinstance(value, np.float32) and abs(value) == GREATEST_FLOAT32:
        return float(value)  # in the few digits of a float32 it would be beyond them all
    return None if value == "" or value != value else value
