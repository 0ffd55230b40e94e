"""Only embedding rows that some example reads keep their first values, each feature by its own values."""

import numpy as np

from tests.support.worlds.training import recipe
from towers.config.features import HashedFeature, IdFeature
from towers.data.events import Events
from towers.data.feature_tables import FeatureTables
from towers.features.encoder import FeatureSpec
from towers.model.two_tower import TwoTower
from towers.model.untrained_rows import zero_untrained_rows


def test_each_column_of_the_events_keeps_the_rows_of_its_own_values() -> None:
    # Three events; the rows of `wide` are beyond the table of `narrow`.
    context = {"narrow": np.array([1, 1, 2], np.int32), "wide": np.array([[9, 4], [9, 0], [9, 9]], np.int32)}
    tables = FeatureTables({}, {"item_id": np.arange(1, 4, dtype=np.int32)}, context)
    events = Events(np.zeros(3, np.int32), np.array([0, 1, 1], np.int32), np.array([0, 3]))
    specs = [
        FeatureSpec("narrow", HashedFeature(kind="hashed", buckets=3), table="narrow"),
        FeatureSpec("wide", HashedFeature(kind="hashed", buckets=9), table="wide"),
    ]
    model = TwoTower(specs, [FeatureSpec("item_id", IdFeature(kind="id"), size=3, table="item")], recipe())
    zero_untrained_rows(model, tables, events)
    encoders = (*model.query_tower.encoders, *model.candidate_tower.encoders)
    kept = {each.spec.name: np.flatnonzero(each.table.numpy().any(axis=1)).tolist() for each in encoders}
    assert kept == {"narrow": [1, 2], "wide": [4, 9], "item_id": [1, 2]}
