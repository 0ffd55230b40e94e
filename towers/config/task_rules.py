"""Settings that only one of the two tasks reads."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from towers.config.recipe import Config

SIMILARITY_LOSSES = ("full_softmax", "am_softmax", "distance_softmax", "triplet", "pair", "circle")


def task_rules(config: "Config") -> Iterator[str]:
    """Yields what does not fit `task`."""
    similarity, metric = config.similarity, config.train.metric
    if config.task == "retrieval":
        if similarity.column is not None or similarity.pairs is not None:
            yield "similarity: only task = 'similarity' reads it; set task = 'similarity', or leave the section out"
        for key in ("against", "holdout_share"):
            if similarity.differs(key):
                yield f"similarity.{key}: only task = 'similarity' reads it; leave it out"
        if metric.startswith("precision"):
            yield f"train.metric: {metric} is a metric of task = 'similarity'; take recall@k or ndcg@k"
        return
    if config.loss.name not in SIMILARITY_LOSSES:
        yield f"loss.name: task = 'similarity' takes one of {', '.join(SIMILARITY_LOSSES)}; got '{config.loss.name}'"
    if config.sampler is not None:
        yield "sampler: task = 'similarity' scores all classes, or the batch's own items; leave the section out"
    if (similarity.column is None) == (similarity.pairs is None):
        yield "similarity: name either 'column', the items' class, or 'pairs', a file of similar items"
    if similarity.pairs is not None and similarity.against == "centres":
        yield "similarity.against: pairs have no classes and so no centres; set it to 'items'"
    if similarity.against == "items" and config.train.batch_size < 4:
        yield (
            "train.batch_size: with similarity.against = 'items' it takes 4 to make a negative; got "
            f"{config.train.batch_size}"
        )
    wanted = "precision" if similarity.pairs is None else "recall"
    if "metric" in config.train.model_fields_set and not metric.startswith(wanted):
        labels = "class labels" if similarity.pairs is None else "pairs"
        yield f"train.metric: task = 'similarity' with {labels} is measured by {wanted}@k; got '{metric}'"
    if any(feature.of_events for feature in (config.features.candidate or {}).values()):
        yield (
            "features.candidate: task = 'similarity' has no users, and so no neighbours and no cooccurrence; "
            "leave them out"
        )
    for name, feature in (config.features.candidate or {}).items():
        if feature.kind == "id" and feature.start != "random":
            yield f"features.candidate.{name}.start: task = 'similarity' has no users who take items; leave it out"
    yield from _no_queries(config)


def _no_queries(config: "Config") -> Iterator[str]:
    """Settings of queries, events and samples, which `task = "similarity"` does not have."""
    if config.features.query is not None or "query" in (config.features.changes or {}):
        yield "features.query: task = 'similarity' trains the item tower alone; leave the section out"
    if config.model.norm_exponent is not None:
        yield "model.norm_exponent: task = 'similarity' compares items, which share their vectors; leave it out"
    if config.model.prior != "off":
        yield "model.prior: task = 'similarity' compares items, where fashion plays no part; set it to 'off'"
    if config.model.query_layers:
        yield "model.query_layers: task = 'similarity' trains the item tower alone; leave it empty"
    if config.model.query_dropout:
        yield "model.query_dropout: task = 'similarity' trains the item tower alone; set candidate_dropout"
    if config.data.refit:
        yield "data.refit: task = 'similarity' learns from labels, not from the splits' events; set it to false"
    if not config.train.choose_epoch:
        yield "train.choose_epoch: task = 'similarity' keeps the epoch that its held-out items choose; set it to true"
    if config.train.weighted:
        yield "train.weighted: task = 'similarity' learns from labels, not from weighted events; set it to false"
    if config.train.recency > 1:
        yield "train.recency: task = 'similarity' learns from labels, which have no time; set it to 1"
    if config.train.balance:
        yield "train.balance: task = 'similarity' learns from labels, which have no user; set it to 0"
    fixed = {
        "correction": 0,
        "positives_per_query": 1,
        "label_shares": "equal",
        "known_positives": 0,
        "remove_accidental_hits": True,
        "impressions": 0,
    }
    block = type(config.loss).model_fields.get("block")
    for key, value in (fixed if block is None else {**fixed, "block": block.default}).items():
        if getattr(config.loss, key, value) != value:
            yield f"loss.{key}: task = 'similarity' samples nothing and takes every label; leave it out"
