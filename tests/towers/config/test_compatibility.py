"""A combination that makes no sense is refused with the key, the reason and what would work."""

from pathlib import Path
from typing import Any

import pytest

from towers.config.recipe import load_config, parse_config
from towers.errors import ConfigError

REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"loss": {"name": name}, "model": {"temperature": 0.2}}, f"model.temperature: {name} works on the unscaled", "set")
    for name in ("am_softmax", "distance_softmax", "triplet", "pair", "circle", "graded_hinge", "ccl")
]
REFUSED += [
    ({"loss": {"name": name}, "model": {"similarity": "dot"}}, f"model.similarity: {name} needs 'cosine'", "its ")
    for name in ("am_softmax", "distance_softmax", "circle", "ccl")
]
REFUSED += [
    ({"loss": {"name": name}, "sampler": {"name": "uniform"}}, f"sampler: {name} takes no sampler", instead)
    for name, instead in (("full_softmax", "sampled_softmax"), ("bce", "neg or nce"), ("graded_hinge", "neg or nce"))
]
REFUSED += [
    (
        {"loss": {"name": name}, "distillation": {"models": 2}},
        f"distillation.models: {name} {why}",
        "or set it to 0",
    )
    for name, why in (
        ("full_softmax", "scores no sampled"),
        ("bce", "scores no sampled"),
        ("triplet", "works on the unscaled similarity"),
        ("ccl", "works on the unscaled similarity"),
    )
]
REFUSED += [
    ({"distillation": setting}, f"distillation.{key}: only {readers} reads it", "leave it out")
    for key, readers, setting in (
        ("share", "distillation.models or distillation.ease", {"share": 0.7}),
        ("dimension", "distillation.models", {"dimension": 128}),
        ("dimension", "distillation.models", {"dimension": 128, "ease": 2.0}),
        ("ease_penalty", "distillation.ease", {"ease_penalty": 100.0}),
        ("ease_penalty", "distillation.ease", {"ease_penalty": 100.0, "models": 1}),
    )
]
REFUSED += [
    ({"loss": {"name": "full_softmax"}, "distillation": {"ease": 2.0}}, "distillation.ease: full_softmax scores", "or"),
    ({"loss": {"name": "bce"}, "distillation": {"ease": 2.0}}, "distillation.ease: bce scores no sampled", "per_user"),
    ({"loss": {"name": "ccl"}, "distillation": {"ease": 2.0}}, "distillation.ease: ccl works on the", "or bsl"),
]
REFUSED += [
    ({"contrast": {"weight": 0.1}} | sections, f"contrast.weight: {reason}", "leave the section out (--set contrast=)")
    for sections, reason in (
        ({"loss": {"name": "triplet"}}, "triplet is no loss of single items with a temperature"),
        ({"loss": {"name": "ccl"}}, "ccl is no loss of single items"),
        ({"loss": {"name": "bce"}}, "bce is no loss of single items"),
        ({"loss": {"name": "full_softmax", "per_user": True}}, "full_softmax with per_user is no loss of single items"),
        (
            {"task": "similarity", "similarity": {"column": "brand"}, "loss": {"name": "full_softmax"}},
            "task = 'similarity' has no users;",
        ),
    )
]
REFUSED += [
    ({"contrast": {"window": 5}}, "contrast.window: only contrast.weight reads it", "leave it out"),
]
REFUSED += [
    (
        {
            "features": {"query": {"past": {"kind": "sequence", "heads": 4}}, "candidate": {"item_id": {"kind": "id"}}},
            "distillation": {"models": 2, "dimension": 90},
        },
        "distillation.dimension = 90: features.query.past.heads: must divide the width of its vector, 90",
        "got 4",
    ),
    (
        {"loss": {"matryoshka": [16, 32]}, "distillation": {"models": 2, "dimension": 32}},
        "distillation.dimension = 32: loss.matryoshka: must rise and end below model.dimension = 32",
        "got [16, 32]",
    ),
]
REFUSED += [
    ({"loss": {"name": name, "impressions": 2}}, f"loss.impressions: {name} does not sum over its negatives", "or bsl")
    for name in ("nce", "neg", "gbce", "triplet", "ccl")
]
REFUSED += [
    ({"loss": {"name": name, "impressions": 2}}, "loss.impressions: no such key", "loss allows")
    for name in ("full_softmax", "bce", "graded_hinge")
]
REFUSED += [
    ({"loss": {key: value}}, f"loss.{key}: only loss.impressions reads it", "leave it out")
    for key, value in {"impression_weight": 2.0, "impression_request": "page"}.items()
]
EXCLUDED = {"name": "sampled_softmax", "positive": "excluded"}
OPTIMA, DELTAS = {"positive_optimum": 1.0, "negative_optimum": 0.0}, {"positive_delta": 1.0, "negative_delta": 0.0}
CIRCLE = {"name": "circle", **OPTIMA, **DELTAS}
PER_USER = {"name": "full_softmax", "per_user": True}
REFUSED += [
    (
        {"loss": {"name": "triplet"}, "model": {"temperature_trainable": True}},
        "model.temperature_trainable: triplet has no temperature",
        "false",
    ),
    (
        {"loss": {"name": "graded_hinge", "pairs": "batch"}},
        "train.batch_size: loss.pairs = 'batch' compares every two items of a batch's lists; with "
        "loss.list_length = 8 at most 1,024",
        "got 2,048",
    ),
    (
        {"loss": {"name": "graded_hinge", "pairs": "batch", "list_length": 4_097}, "train": {"batch_size": 2}},
        "loss.list_length: with loss.pairs = 'batch' at most 4,096",
        "got 4,097",
    ),
    (
        {"loss": {"name": "triplet", "on": "euclidean"}, "model": {"similarity": "dot"}},
        "model.similarity: triplet needs 'cosine'",
        "euclidean",
    ),
    ({"loss": EXCLUDED, "sampler": {"name": "uniform", "distinct": True}}, "sampler.distinct: positive =", "false"),
    (
        {
            "loss": EXCLUDED,
            "sampler": {"name": "mixed", "parts": [{"name": "in_batch"}, {"name": "uniform", "distinct": True}]},
        },
        "sampler.parts.1.distinct: positive =",
        "false",
    ),
    ({"loss": EXCLUDED | {"hardest_negatives": 5}}, "loss.hardest_negatives: positive = 'excluded'", "leave it out"),
    ({"loss": EXCLUDED | {"known_positives": 5}}, "loss.known_positives: positive = 'excluded'", "leave it out"),
    ({"loss": EXCLUDED | {"impressions": 5}}, "loss.impressions: positive = 'excluded'", "leave one of them out"),
    ({"loss": EXCLUDED | {"correction": 0.5}}, "loss.correction: positive = 'excluded'", "got 0.5"),
    (
        {"loss": {"name": "bsl", "positive_group": "batch"}, "sampler": {"name": "uniform"}},
        "loss.positive_group: 'batch' takes positives from the candidates",
        "in_batch",
    ),
    (
        {"loss": {"name": "bsl", "positive_group": "batch", "hardest_negatives": 5}},
        "loss.hardest_negatives: positive_group = 'batch'",
        "leave it out",
    ),
    (
        {"loss": {"name": "full_softmax", "label_shares": "weight"}},
        "loss.label_shares: one positive has the whole label",
        "set positives_per_query",
    ),
    (
        {"loss": {"name": "full_softmax", "per_user": True, "positives_per_query": 2}},
        "loss.positives_per_query: with loss.per_user",
        "leave it out",
    ),
    ({"loss": PER_USER, "train": {"recency": 2.0}}, "train.recency: with loss.per_user", "leave it out"),
    ({"loss": PER_USER, "train": {"weighted": True}}, "train.weighted: with loss.per_user", "leave it out"),
    (
        {"loss": PER_USER | {"bottleneck": 0.1}},
        "loss.bottleneck: with loss.per_user its softmax has no",
        "leave it out",
    ),
    ({"loss": PER_USER | {"block": 9}}, "loss.block: with loss.per_user the scores are computed", "leave it out"),
    (
        {"task": "similarity", "loss": PER_USER, "similarity": {"column": "g"}},
        "loss.per_user: task = 'similarity' has no users;",
        "leave it out",
    ),
    (
        {"loss": {"name": "bsl", "positive_group": "batch", "positives_per_query": 2}},
        "loss.positives_per_query: positive_group = 'batch'",
        "leave it out",
    ),
    ({"loss": EXCLUDED | {"remove_accidental_hits": False}}, "loss.remove_accidental_hits: positive = 'exc", "true"),
    ({"loss": {"name": "bsl", "remove_accidental_hits": False}}, "loss.remove_accidental_hits: bsl never", "true"),
    (
        {"loss": {"remove_accidental_hits": False}, "sampler": {"name": "in_batch", "distinct": True}},
        "sampler.distinct: of several copies of a query's own item one stays",
        "loss.remove_accidental_hits = true",
    ),
    (
        {
            "loss": {"name": "neg", "remove_accidental_hits": False},
            "sampler": {"name": "mixed", "parts": [{"name": "uniform"}, {"name": "in_batch", "distinct": True}]},
        },
        "sampler.parts.1.distinct: of several copies",
        "leave distinct out",
    ),
    ({"loss": {"name": "distance_softmax", "margin_max": 0.2}}, "loss.margin_max: only margin = 'adaptive'", "0.1"),
    (
        {"loss": {"name": "distance_softmax", "margin": "adaptive", "margin_every": 11}},
        "loss.margin_every: the margin would stay 0, as training ends before: train.epochs = 10",
        "got 11",
    ),
    ({"loss": CIRCLE | {"margin": 0.4}}, "loss.margin: the optima and deltas, all given", "leave one of them out"),
    (
        {"loss": {"name": "distance_softmax", "correction": 1.0, "hardest_negatives": 5}},
        "loss.hardest_negatives: with a correction",
        "leave one",
    ),
    ({"loss": {"name": "triplet", "scale": 5.0}}, "loss.scale: only smooth = true reads it", "leave it out"),
    (
        {"loss": {"hardest_negatives": 100}, "sampler": {"name": "uniform", "negatives": 100}},
        "loss.hardest_negatives: there are 100 candidates",
        "got 100",
    ),
    (
        {
            "loss": {"name": "full_softmax"},
            "features": {"candidate": {"genre": {"kind": "categorical", "mask_share": 0.1}}},
        },
        "features.candidate.genre.mask_share: full_softmax scores every item",
        "sampled_softmax",
    ),
    (
        {"loss": {"name": "full_softmax"}, "model": {"candidate_dropout": 0.1}},
        "model.candidate_dropout: full_softmax scores every item",
        "sampled_softmax",
    ),
    (
        {
            "task": "similarity",
            "loss": {"name": "pair"},
            "similarity": {"column": "g"},
            "model": {"query_dropout": 0.1},
        },
        "model.query_dropout: task = 'similarity' trains the item tower alone",
        "candidate_dropout",
    ),
    (
        {"features": {"query": {"age": {"kind": "categorical", "dimension": 8}}}},
        "features.query.age.dimension: model.combine = 'sum' adds vectors of one width",
        "'concat'",
    ),
    (
        {
            "model": {"combine": "concat"},
            "features": {
                "query": {"past": {"kind": "history", "dimension": 8}},
                "candidate": {"item_id": {"kind": "id", "dimension": 16}},
            },
        },
        "features.candidate.item_id.dimension: shares the table of features.query.past.dimension = 8; got 16",
        "name one of them only",
    ),
    (
        {
            "model": {"combine": "concat"},
            "features": {
                "candidate": {
                    "item_id": {"kind": "id", "dimension": 8},
                    "near": {"kind": "cooccurrence", "dimension": 4},
                }
            },
        },
        "features.candidate.near.dimension: shares the table of features.candidate.item_id.dimension = 8; got 4",
        "name one of them only",
    ),
    ({"model": {"cross_layers": 1}}, "model: cross_layers cross concatenated features", "'concat'"),
    (
        {"features": {"query": {"past": {"kind": "sequence", "heads": 3}}}},
        "features.query.past.heads: must divide the width of its vector, 64",
        "got 3",
    ),
    (
        {
            "model": {"combine": "concat"},
            "features": {
                "query": {"past": {"kind": "sequence", "heads": 4}},
                "candidate": {"item_id": {"kind": "id", "dimension": 6}},
            },
        },
        "features.query.past.heads: must divide the width of its vector, 6",
        "got 4",
    ),
    (
        {"features": {"query": {"past": {"kind": "sequence", "gap_mask_share": 0.5}}}},
        "features.query.past.gap_mask_share: only time_gaps = true reads it",
        "leave it out",
    ),
    (
        {
            "features": {
                "query": {"past": {"kind": "sequence", "time_gaps": True}, "past_times": {"kind": "numeric"}},
            }
        },
        "features.query.past_times: is the input of the times of 'past'",
        "another name",
    ),
    ({"model": {"cross_projection": 4}}, "model: cross_projection is the rank of cross layers", "leave it out"),
    ({"optimizer": {"final_share": 0.1}}, "optimizer.final_share: a constant rate ends where it is", "cosine"),
    (
        {"optimizer": {"learning_rate": 0.1, "weight_decay": 10.0}},
        "optimizer.weight_decay: a step takes learning_rate * weight_decay",
        "got 0.1 * 10",
    ),
    (
        {"optimizer": {"l2": 0.01, "weight_decay": 0.1}},
        "optimizer.l2: shrinks weights through the gradient, optimizer.weight_decay beside it",
        "got 0.01 and 0.1",
    ),
    (
        {"optimizer": {"name": "sgd", "learning_rate": 0.5, "l2": 2.0}},
        "optimizer.l2: a step of sgd takes learning_rate * l2",
        "got 0.5 * 2",
    ),
    ({"similarity": {"against": "items"}}, "similarity.against: only task = 'similarity' reads it", "leave it out"),
    (
        {
            "task": "similarity",
            "loss": {"name": "pair"},
            "similarity": {"column": "g", "against": "items"},
            "train": {"batch_size": 3},
        },
        "train.batch_size: with similarity.against = 'items'",
        "got 3",
    ),
    (
        {"task": "similarity", "loss": {"name": "full_softmax", "block": 7}, "similarity": {"column": "g"}},
        "loss.block: task = 'similarity' samples nothing",
        "leave it out",
    ),
    ({"loss": {"name": "bce"}, "train": {"weighted": True}}, "train.weighted: bce learns from the weights", "false"),
    ({"loss": {"name": "bce"}, "train": {"recency": 2}}, "train.recency: bce learns from labels", "set it to 1"),
    ({"loss": {"name": "bce"}, "train": {"balance": 1}}, "train.balance: bce learns from labels", "set it to 0"),
    (
        {"task": "similarity", "loss": {"name": "nce"}, "similarity": {"column": "genre"}},
        "loss.name: task = 'similarity' takes one of full_softmax",
        "got 'nce'",
    ),
    (
        {"features": {"candidate": {"item_id": {"kind": "id"}, "takers": {"kind": "neighbours", "recency": 2}}}},
        "features.candidate.takers.recency: an item's users have no order",
        "leave it out",
    ),
    (
        {"features": {"candidate": {"item_id": {"kind": "id"}, "takers": {"kind": "neighbours", "cooccurrence": 2}}}},
        "features.candidate.takers.cooccurrence: is about the items that users take",
        "add a feature of kind = 'cooccurrence'",
    ),
    (
        {"features": {"candidate": {"item_id": {"kind": "id"}, "takers": {"kind": "neighbours", "window": "earlier"}}}},
        "features.candidate.takers.window: an item has one vector for all examples",
        "leave it out",
    ),
    ({"task": "similarity", "loss": {"name": "pair"}}, "similarity: name either 'column'", "pairs"),
    (
        {"task": "similarity", "loss": {"name": "pair"}, "similarity": {"pairs": "p.csv"}},
        "similarity.against: pairs have no classes",
        "'items'",
    ),
    (
        {"task": "similarity", "loss": {"name": "full_softmax"}, "similarity": {"column": "g", "against": "items"}},
        "similarity.against: full_softmax",
        "pair",
    ),
    (
        {
            "task": "similarity",
            "loss": {"name": "pair"},
            "similarity": {"column": "g"},
            "sampler": {"name": "uniform"},
        },
        "sampler: task = 'similarity' scores",
        "leave the section out",
    ),
]


SIMILAR = {"task": "similarity", "loss": {"name": "pair"}, "similarity": {"column": "g"}}
REFUSED += [
    (
        {"model": {"norm_exponent": "validation"}, "train": {"choose_epoch": False}},
        "model.norm_exponent: 'validation' needs train.choose_epoch = true",
        "give a number",
    ),
    (SIMILAR | {"train": {"recency": 2}}, "train.recency: task = 'similarity' learns from labels", "set it to 1"),
    (SIMILAR | {"train": {"balance": 1}}, "train.balance: task = 'similarity' learns from labels", "set it to 0"),
    (SIMILAR | {"train": {"choose_epoch": False}}, "train.choose_epoch: task = 'similarity' keeps the epoch", "true"),
    (
        SIMILAR | {"model": {"norm_exponent": 0.5}},
        "model.norm_exponent: task = 'similarity' compares items",
        "leave it out",
    ),
    (
        SIMILAR | {"features": {"candidate": {"near": {"kind": "cooccurrence"}}}},
        "features.candidate: task = 'similarity' has no users",
        "no cooccurrence; leave them out",
    ),
    (
        SIMILAR | {"features": {"candidate": {"takers": {"kind": "neighbours"}}}},
        "features.candidate: task = 'similarity' has no users",
        "leave them out",
    ),
]


@pytest.mark.parametrize(("raw", "start", "hint"), REFUSED)
def test_it_is_refused_with_reason_and_remedy(raw: dict[str, Any], start: str, hint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_config(raw, "my.toml")
    message = str(raised.value)
    assert message.startswith(f"my.toml: {start}")
    assert hint in message


def test_every_reason_is_told_at_once() -> None:
    with pytest.raises(ConfigError, match=r"model\.temperature: .*; model\.temperature_t.*; sampler") as raised:
        parse_config(
            {
                "loss": {"name": "graded_hinge"},
                "model": {"temperature": 1.0, "similarity": "cosine", "temperature_trainable": True},
                "sampler": {"name": "uniform"},
            }
        )
    assert str(raised.value).count("graded_hinge") == 3


@pytest.mark.parametrize(
    "raw",
    [
        {"loss": {"name": "triplet"}, "model": {"similarity": "dot"}},
        {"loss": {"name": "pair"}, "model": {"similarity": "dot"}},
        {"loss": EXCLUDED, "sampler": {"name": "uniform"}},
        {
            "loss": {"name": "pair"},
            "model": {"combine": "concat"},
            "features": {
                "query": {
                    "user_id": {"kind": "id", "dimension": 4},
                    "own": {"kind": "history", "share_item_table": False, "dimension": 8},
                    "past": {"kind": "history", "dimension": 16},
                },
                "candidate": {"item_id": {"kind": "id", "dimension": 16}},
            },
        },
        {"loss": {"name": "bsl", "positive_group": "batch"}},
        # Without an id beside them, what is made of ids has a table of its own.
        {
            "loss": {"name": "pair"},
            "model": {"combine": "concat"},
            "features": {
                "query": {"past": {"kind": "history", "dimension": 16}},
                "candidate": {
                    "near": {"kind": "cooccurrence", "dimension": 4},
                    "far": {"kind": "cooccurrence", "window": 20, "dimension": 8},
                },
            },
        },
        {"task": "similarity", "loss": {"name": "am_softmax"}, "similarity": {"column": "genre"}},
        {
            "task": "similarity",
            "loss": {"name": "full_softmax"},
            "similarity": {"column": "genre"},
            "features": {"candidate": {"item_id": {"kind": "id", "mask_share": 0.5}}},
        },
        {"task": "similarity", "loss": {"name": "pair"}, "similarity": {"pairs": "p.csv", "against": "items"}},
    ],
)
def test_what_makes_sense_is_taken(raw: dict[str, Any]) -> None:
    config = parse_config(raw)
    assert {key: getattr(config.loss, key) for key in raw["loss"]} == raw["loss"]


RUN = """
[features.query]
user_id = { kind = "id" }
taken = { kind = "neighbours", window = "all", cooccurrence = 0.0, cooccurrence_window = "list" }

[features.candidate]
item_id = { kind = "id" }
takers = { kind = "neighbours", window = "all" }
"""


def test_windows_that_nothing_reads_are_taken_as_earlier_runs_have_them(tmp_path: Path) -> None:
    """A finished run is exported, reported and warm-started by its `config.toml`; `cooccurrence=0` switches it off."""
    (tmp_path / "config.toml").write_text(RUN, encoding="utf-8")
    features = load_config(tmp_path / "config.toml").features
    assert features.query["taken"].cooccurrence_window == "list"
    assert features.candidate["takers"].window == "all"
    switched_off = load_config("gowalla", ["features.query.history.cooccurrence=0"])
    assert list(switched_off.features.query["history"].of_order()) == [
        ("recency", 1, 1),
        ("cooccurrence_window", "list", "list"),
    ]
