"""Only rows that a training example reads may differ from zero, of each feature by its own values."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.impressions import with_weights
from towers.config.features import CategoricalFeature, HistoryFeature, IdFeature, NumericFeature
from towers.config.recipe import parse_config
from towers.data.bags import MISSING
from towers.data.events import Events
from towers.data.feature_tables import FeatureTables, HistoryTable
from towers.data.history import history_ends
from towers.data.impressions import Impressions
from towers.features.encoder import FeatureSpec
from towers.model.two_tower import TwoTower
from towers.model.untrained_rows import scored_items, zero_untrained_rows


def test_each_context_feature_keeps_the_rows_that_its_own_values_read() -> None:
    device, place = CategoricalFeature(kind="categorical"), CategoricalFeature(kind="categorical")
    query = [
        FeatureSpec("device", device, size=2, table="device"),
        FeatureSpec("place", place, size=4, table="place"),
        FeatureSpec("price", NumericFeature(kind="numeric"), table="price"),
    ]
    items = [FeatureSpec("item_id", IdFeature(kind="id"), size=1, table="item")]
    towers = TwoTower(query, items, parse_config({"model": {"dimension": 3}}))
    tables = [encoder.table for encoder in towers.query_tower.encoders[:2]]
    for table in tables:
        table.assign(tf.ones(table.shape))
    context = {
        "device": np.array([1, 1, 0], np.int32),
        "place": np.array([5, 2, 2], np.int32),
        "price": np.array([[0.5, 0], [1.5, 0], [0, 1]], np.float32),
    }
    events = Events(np.zeros(3, np.int32), np.zeros(3, np.int32), np.array([0, 3]))
    zero_untrained_rows(towers, FeatureTables({}, {"item_id": np.ones(1, np.int32)}, context), events)
    read = [np.flatnonzero(table.numpy().any(axis=1)).tolist() for table in tables]
    assert read == [[0, 1], [2, 5]]


def test_a_history_of_a_type_reads_the_items_of_its_events_alone() -> None:
    spec = FeatureSpec("past", HistoryFeature(kind="history", share_item_table=False), size=4, table="past")
    items = [FeatureSpec("item_id", IdFeature(kind="id"), size=4, table="item")]
    towers = TwoTower([spec], items, parse_config({"model": {"dimension": 3}}))
    rows = np.arange(1, 5, dtype=np.int32)
    events = Events(
        np.zeros(4, np.int32),
        np.array([0, 1, 2, 1], np.int32),
        np.array([0, 4]),
        type=np.array([1, 0, -1, 1], np.int16),
    )
    tables = FeatureTables({}, {"item_id": rows}, histories={"past": HistoryTable(rows, 5, types=(1,))})
    zero_untrained_rows(towers, tables, events)
    tables_read = [tower.encoders[0].table for tower in (towers.query_tower, towers.candidate_tower)]
    assert [np.flatnonzero(table.numpy().any(axis=1)).tolist() for table in tables_read] == [[1, 2], [1, 2, 3]]


@pytest.mark.parametrize("types", [(), (1,)])
@pytest.mark.parametrize("positives", [1, 3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("window", ["earlier", "others", "list"])
def test_a_history_reads_what_the_examples_see(
    window: str, weighted: bool, positives: int, types: tuple[int, ...]
) -> None:
    """Not what is always a target, or taken last or at the same time as the last; marks of a loop over examples."""
    generator = np.random.default_rng(0)
    counts = generator.integers(0, 5, 40)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    size = int(offsets[-1])
    time = np.concatenate([np.sort(generator.integers(0, 4, count)) for count in counts])
    item = generator.permutation(size).astype(np.int32)
    events = Events(
        np.repeat(np.arange(40, dtype=np.int32), counts),
        item,
        offsets,
        None if window == "list" else time,
        None if window == "list" else history_ends(offsets, time),
        type=generator.integers(-1, 2, size).astype(np.int16),
    )
    if weighted:
        events = with_weights(events, generator.integers(0, 3, size).astype(np.float32))
    rows = np.arange(1, size + 1, dtype=np.int32)
    history = HistoryTable(rows, 5, types=types, others=window == "others")
    tables = FeatureTables({}, {"item_id": rows}, histories={"past": history})
    seen = set(tables.of_examples(events, np.arange(size), positives)["past"].ravel().tolist()) - {MISSING}
    assert 0 < len(seen) < size
    spec = FeatureSpec("past", HistoryFeature(kind="history", share_item_table=False), size=size, table="past")
    ids = [FeatureSpec("item_id", IdFeature(kind="id"), size=size, table="item")]
    towers = TwoTower([spec], ids, parse_config({"model": {"dimension": 3}}))
    zero_untrained_rows(towers, tables, events, positives)
    table = towers.query_tower.encoders[0].table.numpy()
    assert set(np.flatnonzero(table.any(axis=1)).tolist()) == seen


DRAWN = {"name": "unigram", "negatives": 8}
EVERY = {"name": "uniform", "negatives": 8}


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({}, [1]),
        ({"sampler": EVERY}, None),
        ({"sampler": DRAWN}, [1]),
        ({"sampler": DRAWN | {"power": 0.0}}, None),
        ({"sampler": {"name": "mixed", "parts": [{"name": "in_batch"}, DRAWN]}}, [1]),
        ({"sampler": {"name": "mixed", "parts": [{"name": "in_batch"}, EVERY]}}, None),
        ({"loss": {"name": "bce"}}, [1]),
        ({"loss": {"name": "full_softmax"}}, None),
        ({"contrast": {"weight": 0.1}}, [0, 1]),
        ({"loss": {"name": "sampled_softmax", "impressions": 2}}, [1, 3]),
        ({"contrast": {"weight": 0.1}, "loss": {"name": "sampled_softmax", "impressions": 2}}, [0, 1, 3]),
    ],
)
def test_where_first_events_are_no_examples_only_what_an_example_scores_is_learnt(
    sections: dict[str, Any], expected: list[int] | None
) -> None:
    # Item 1 is the only example, after item 0. Items 2 and 3 are taken by users of one event; 3 and 4 are shown.
    events = Events(np.array([0, 0, 1, 2], np.int32), np.arange(4, dtype=np.int32), np.array([0, 2, 3, 4]))
    shown = np.array([3, 4], np.int32)
    impressions = Impressions(shown, np.zeros(2, np.int64), np.zeros(4, np.int64), np.full(4, 2), True, 2)
    config = parse_config(sections)
    counts = np.array([0, 1, 0, 0, 0])
    wanted = impressions if "impressions" in sections.get("loss", {}) else None
    scored = scored_items(config, events, counts, wanted)
    assert (None if scored is None else np.flatnonzero(scored).tolist()) == expected
    assert scored_items(config, events, None, wanted) is None
