"""Several workers train as one: the same losses, weights, moments, sampler states and validation as one process."""

import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import tensorflow as tf

from tests.support.worlds.workers import Sections, make_dataset, recipe, train
from towers.config.losses import LOSSES
from towers.config.samplers import SAMPLERS
from towers.data.batch import share
from towers.errors import ConfigError
from towers.ops.replicas import ALONE, Replicas, slices
from towers.ops.row_gradients import RowGradient, sum_workers, summed_rows
from towers.training.workers import Place, connect, place_of

STEPS, BATCH = 20, 64
# Relative to the length of a row. Adam divides by the root of a moment, which amplifies the rounding near 0.
CLOSE, CLOSE_WITH_ADAM = 1e-5, 1e-3

DRAWN: Sections = {
    name: {"name": name} | ({} if name == "in_batch" else {"negatives": 16})
    for name in (get_args(each.model_fields["name"].annotation)[0] for each in SAMPLERS)
    if name != "mixed"
} | {"mixed": {"name": "mixed", "parts": [{"name": "in_batch"}, {"name": "uniform", "negatives": 16}]}}
UNSAMPLED = ("full_softmax", "bce", "graded_hinge")
LOSS_NAMES = [get_args(each.model_fields["name"].annotation)[0] for each in LOSSES]
QUERY = {"user_id": {"kind": "id"}}
ITEM = {"item_id": {"kind": "id"}}
BRANDS = {"brand": {"kind": "categorical"}, "price": {"kind": "numeric"}}
VARIANTS: dict[str, Sections] = {
    "softmax with hits": {"loss": {"name": "sampled_softmax", "remove_accidental_hits": False}},
    "softmax options": {
        "loss": {
            "name": "sampled_softmax",
            "positives_per_query": 3,
            "known_positives": 5,
            "hardest_negatives": 9,
            "label_smoothing": 0.05,
        },
        "sampler": DRAWN["mixed"],
    },
    "known positives": {
        "loss": {"name": "sampled_softmax", "known_positives": 5},
        "train": {"balance": 0.3, "recency": 3.0},
    },
    "impressions": {"loss": {"name": "sampled_softmax", "impressions": 3, "impression_weight": 20.0}},
    "impressions at a margin": {
        "loss": {"name": "am_softmax", "impressions": 3, "positives_per_query": 2},
        "sampler": DRAWN["mixed"],
    },
    "impressions and bsl of the batch": {"loss": {"name": "bsl", "positive_group": "batch", "impressions": 3}},
    "distinct in batch": {"sampler": {"name": "in_batch", "distinct": True, "frequencies": "learned"}},
    "whole users": {"loss": {"name": "full_softmax", "per_user": True}, "train": {"balance": 0.5}},
    "whole users and EASE": {
        "loss": {"name": "full_softmax", "per_user": True},
        "distillation": {"ease": 2.0, "share": 0.6},
    },
    "companions": {"contrast": {"weight": 0.3, "window": 3}, "train": {"balance": 0.5}},
    "log Z per query": {"loss": {"name": "nce", "log_z": "per_query"}, "sampler": DRAWN["learned_unigram"]},
    "adaptive margin": {"loss": {"name": "distance_softmax", "margin": "adaptive"}},
    "bsl of the batch": {"loss": {"name": "bsl", "positive_group": "batch"}},
    "hinge of the batch": {"loss": {"name": "graded_hinge", "pairs": "batch"}},
    "layers": {
        "model": {"combine": "concat", "query_layers": [8], "candidate_layers": [8], "temperature_trainable": True},
        "features": {"query": QUERY, "candidate": ITEM | BRANDS},
        "optimizer": {"clip_norm": 0.01, "weight_decay": 0.1, "average": 0.9},
    },
    "l2 after clipping": {"optimizer": {"l2": 0.5, "clip_norm": 0.01}},
    "sgd in bfloat16": {"optimizer": {"name": "sgd"}, "train": {"precision": "bfloat16"}},
    "history, by sgd": {
        "features": {"query": QUERY | {"history": {"kind": "history", "max_length": 5}}, "candidate": ITEM},
        "optimizer": {"name": "sgd", "learning_rate": 0.5},
    },
    "graph": {
        "features": {
            "query": QUERY | {"history": {"kind": "neighbours", "window": "all", "recency": 32.0, "cooccurrence": 6.0}},
            "candidate": ITEM
            | {"audience": {"kind": "neighbours", "weight": 5.0}, "nearby": {"kind": "cooccurrence", "weight": 3.0}},
        },
        "model": {"norm_exponent": "validation"},
    },
    "earlier neighbours, by adam": {
        "features": {"query": QUERY | {"history": {"kind": "neighbours", "window": "earlier"}}, "candidate": ITEM},
        "optimizer": {"name": "adam", "learning_rate": 0.01},
    },
    # Masks and dropout are drawn by each worker for itself.
    "sequence": {
        "features": {
            "query": {"history": {"kind": "sequence", "max_length": 6, "blocks": 1, "dropout": 0.0}},
            "candidate": ITEM,
        }
    },
    "histories of types": {
        "features": {
            "query": {
                "clicks": {"kind": "history", "max_length": 5, "events": ["click"], "item_features": ["brand"]},
                "bought": {
                    "kind": "sequence",
                    "max_length": 4,
                    "blocks": 1,
                    "dropout": 0.0,
                    "events": ["buy"],
                    "item_features": ["brand", "price"],
                },
            },
            "candidate": ITEM | BRANDS,
        }
    },
    "similar by centres": {
        "task": "similarity",
        "similarity": {"column": "brand"},
        "loss": {"name": "am_softmax"},
        "train": {"batch_size": 16, "metric": "precision@3"},
        # Items that are held out have no row of their own.
        "features": {"candidate": ITEM | {"price": {"kind": "numeric"}}},
    },
    "similar by items": {
        "task": "similarity",
        "similarity": {"column": "brand", "against": "items"},
        "loss": {"name": "am_softmax"},
        "train": {"batch_size": 16, "metric": "precision@3"},
        # Items that are held out have no row of their own.
        "features": {"candidate": ITEM | {"price": {"kind": "numeric"}}},
    },
}
# The hinge of ccl lets go of negatives one by one: long steps amplify its rounding beyond the bound on some processors.
SHORT_STEPS: dict[str, Sections] = {"ccl": {"optimizer": {"learning_rate": 0.01}}}
CELLS = (
    {name: {"loss": {"name": name}} for name in UNSAMPLED}
    | {
        # Each loss, and each sampler several times.
        f"{loss} {sampler}": {"loss": {"name": loss}, "sampler": DRAWN[sampler]} | SHORT_STEPS.get(loss, {})
        for number, loss in enumerate(name for name in LOSS_NAMES if name not in UNSAMPLED)
        for sampler in [list(DRAWN)[number % len(DRAWN)]]
    }
    # The softmax sums over blocks of candidates.
    | {f"sampled_softmax {name}": {"sampler": DRAWN[name]} for name in ("in_batch", "mixed")}
    | VARIANTS
)


# On the devices of one process: each way to draw, each way to exchange, each optimizer, each kind of tower.
ON_DEVICES = (
    "sampled_softmax in_batch",
    "sampled_softmax mixed",
    "companions",
    "adaptive margin",
    "bsl of the batch",
    "impressions",
    "impressions and bsl of the batch",
    "hinge of the batch",
    "log Z per query",
    "layers",
    "sgd in bfloat16",
    "history, by sgd",
    "graph",
    "earlier neighbours, by adam",
    "sequence",
    "histories of types",
    "full_softmax",
    "whole users",
    "whole users and EASE",
    "similar by centres",
    "similar by items",
)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("workers"))


def recipes(names: Any) -> dict[str, Sections]:
    cells = {name: recipe(BATCH, **{key: each for key, each in CELLS[name].items() if key != "task"}) for name in names}
    for name in names:
        if "task" in CELLS[name]:
            cells[name] |= {"task": CELLS[name]["task"], "features": CELLS[name]["features"]}
    return cells


@pytest.fixture(scope="module")
def alone(dataset: Path) -> dict[str, list[Any]]:
    """What one process makes of each cell."""
    return train(dataset, recipes(CELLS), dataset.parent / "alone", 1, STEPS)


def compare(alone: dict[str, list[Any]], several: dict[str, list[Any]]) -> None:
    problems = []
    for name, sections in recipes(several).items():
        first, *others = several[name]
        for other in others:
            problems += [f"{name}: {key} of several workers" for key in first if not same(first[key], other[key])]
        close = CLOSE_WITH_ADAM if sections["optimizer"]["name"] == "adam" else CLOSE
        if sections["train"].get("precision") == "bfloat16":
            # The workers round their parts of a product, one process rounds the sum: a digit of bfloat16 more or less.
            close = 2**-7
        [one] = alone[name]
        assert one.keys() == first.keys()
        problems += [
            f"{name}: {key} by {distance(one[key], first[key]):.1e}"
            for key in one
            if not distance(one[key], first[key]) <= close
        ]
        assert not np.allclose(one["losses"][0], one["losses"][-1]), name
    assert not problems, "\n".join(problems)


def same(one: Any, other: Any) -> bool:
    """NaN, of an item that no user has, is equal to itself."""
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def distance(one: Any, other: Any) -> float:
    """The largest distance of two rows, relative to the length of the first, of a thousandth of the longest or 0.001.

    The last, because the bias of attention's keys has no gradient: what it holds is rounding.
    """
    if one.dtype.kind != "f":
        return 0.0 if np.array_equal(one, other) else np.inf
    one, other = (each.astype(np.float64).reshape(len(each) if each.ndim > 1 else 1, -1) for each in (one, other))
    length = np.linalg.norm(one, axis=1)
    length = np.maximum(length, 1e-3 * max(1.0, length.max(initial=0.0)))
    return float(np.max(np.linalg.norm(one - other, axis=1) / length, initial=0.0))


@pytest.mark.long
def test_two_workers_train_every_loss_sampler_optimizer_and_tower_as_one_process(
    dataset: Path, alone: dict[str, list[Any]], tmp_path: Path
) -> None:
    compare(alone, train(dataset, recipes(CELLS), tmp_path / "two", 2, STEPS))


@pytest.mark.long
def test_four_workers_train_as_one_process(dataset: Path, alone: dict[str, list[Any]], tmp_path: Path) -> None:
    names = ("softmax options", "bsl of the batch")
    compare(alone, train(dataset, recipes(names), tmp_path / "four", 4, STEPS))


@pytest.mark.long
def test_two_devices_train_as_one(dataset: Path, alone: dict[str, list[Any]], tmp_path: Path) -> None:
    compare(alone, train(dataset, recipes(ON_DEVICES), tmp_path / "devices", 1, STEPS, devices=2))


def test_of_a_table_each_row_is_sent_once() -> None:
    """The sum of two workers' gradients by slow loops, and the number of rows that each sends."""
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 9, (2, 12))
    values = rng.normal(size=(2, 12, 3)).astype(np.float32)
    place = tf.Variable(tf.zeros([9], tf.int64))

    class Recorded(Replicas):
        """Sends what is recorded, or else records."""

        count = 2

        def __init__(self, sent: list[tf.Tensor]) -> None:
            self.sent = sent

        def gather_uneven(self, rows: tf.Tensor) -> tf.Tensor:
            self.sent.append(rows)
            return tf.concat(self.sent, 0)

    sent: list[tf.Tensor] = []
    for worker in range(2):
        part = RowGradient(*summed_rows(tf.constant(values[worker]), tf.constant(rows[worker]), place))
        [total] = sum_workers([part], [place], Recorded(sent))
    # And one row more, so that none sends nothing.
    assert [len(each) for each in sent] == [len(set(each.tolist())) + 1 for each in rows]
    expected = np.zeros((9, 3))
    for row, value in zip(rows.ravel(), values.reshape(-1, 3), strict=True):
        expected[row] += value
    assert total is not None and total.rows is not None
    got = np.full((9, 3), np.nan)
    got[total.rows.numpy()] = total.values.numpy()
    touched = np.unique(rows)
    np.testing.assert_allclose(got[touched], expected[touched], rtol=1e-5, atol=1e-6)


def test_the_parts_of_a_batch_are_the_batch() -> None:
    batch = np.arange(12)
    assert np.concatenate([share(batch, worker, 3) for worker in range(3)]).tolist() == batch.tolist()
    with pytest.raises(ConfigError, match=r"train\.batch_size: 5 workers or devices cannot share the 12 examples"):
        share(batch, 0, 5)


@pytest.mark.parametrize(("size", "count"), [(10, 3), (2, 4), (0, 2), (9, 1)])
def test_the_parts_of_the_users_are_all_users(size: int, count: int) -> None:
    parts = [np.arange(size)[each] for each in slices(size, count)]
    assert np.concatenate(parts).tolist() == list(range(size))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_place_counts_the_chief_first() -> None:
    cluster = {"chief": ["a:1"], "worker": ["b:1", "a:2"]}
    at = {
        (kind, index): place_of(json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}}))
        for kind, index in [("chief", 0), ("worker", 0), ("worker", 1)]
    }
    assert at["chief", 0] == Place(0, ["a:1", "b:1", "a:2"])
    assert at["worker", 1] == Place(2, ["a:1", "b:1", "a:2"])
    assert at["worker", 1].on_this_machine() == (1, 2)
    assert at["worker", 0].on_this_machine() == (0, 1)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"cluster": {"worker": ["a:1", "b:1"]}}',
        '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 2}}',
        '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "ps", "index": 0}}',
        '{"cluster": {"worker": ["a", "b"]}, "task": {"type": "worker", "index": 0}}',
        '{"cluster": {"worker": ["a:22222222", "b:1"]}, "task": {"type": "worker", "index": 0}}',
        '{"cluster": {"worker": ["a:0", "b:1"]}, "task": {"type": "worker", "index": 0}}',
        '{"cluster": {"worker": "a:1"}, "task": {"type": "worker", "index": 0}}',
    ],
)
def test_a_wrong_tf_config_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="TF_CONFIG: must be"):
        place_of(text)


@pytest.mark.parametrize("text", ["", "{}", '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}'])
def test_a_single_worker_is_alone(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", text)
    assert connect() is ALONE
