"""Settings that are right by themselves and make no sense together: each is refused, with the reason and a remedy.

In: a `Config`. Out: a ValueError whose message starts with the key, or nothing.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from towers.feature_settings import Feature, NeighboursFeature, SequenceFeature, side_of_ids
from towers.losses.section import Loss
from towers.losses.settings import Bsl, DistanceSoftmax, FullSoftmax, SampledSoftmax, Triplet
from towers.samplers.settings import InBatch, Mixed, Sampler

if TYPE_CHECKING:
    from towers.config import Config

SIMILARITY_LOSSES = ("full_softmax", "am_softmax", "distance_softmax", "triplet", "pair", "circle")
MOST_TRIPLETS = 400  # items of a batch whose triplets are all compared: a tensor of 256 MB


def refuse_combination(config: "Config") -> None:
    """Refuses a recipe whose loss, sampler, model and task do not fit.

    Raises:
        ValueError: every reason, each with its key and what would work.
    """
    checks = (_model_and_loss, _loss_and_sampler, _options, _widths, _optimizer, _task)
    reasons = [reason for check in checks for reason in check(config)]
    if reasons:
        raise ValueError("; ".join(reasons))


def _model_and_loss(config: "Config") -> Iterator[str]:
    model, loss = config.model, config.loss
    name = loss.name
    if loss.own_scale:
        if model.temperature is not None:
            yield (
                f"model.temperature: {name} works on the unscaled similarity; leave the temperature out "
                "(--set model.temperature=) and set the loss's own options"
            )
        if model.temperature_trainable:
            yield f"model.temperature_trainable: {name} has no temperature to train; set it to false"
    if model.similarity == "dot":
        reason = loss.needs_cosine
        if isinstance(loss, Triplet) and loss.on != "similarity":
            reason = f"{loss.on} ranks as the served dot product does only between vectors of length one"
        if reason:
            yield f"model.similarity: {name} needs 'cosine': {reason}"
    if loss.graded and config.train.weighted:
        yield f"train.weighted: {name} learns from the weights, as labels; set it to false"
    if loss.graded and config.train.recency > 1:
        yield f"train.recency: {name} learns from labels, which weighing would distort; set it to 1"
    if loss.graded and config.train.balance:
        yield f"train.balance: {name} learns from labels, which weighing would distort; set it to 0"


def _loss_and_sampler(config: "Config") -> Iterator[str]:
    loss, sampler = config.loss, config.negatives
    if sampler is None:
        return
    if not loss.samples:
        instead = (
            "it learns from the labels of the events; for sampled negatives take neg or nce"
            if loss.graded
            else "it scores the whole catalogue; sampled_softmax is its sampled form"
        )
        yield f"sampler: {loss.name} takes no sampler, so leave the section out (--set sampler=): {instead}"
        return
    if isinstance(loss, SampledSoftmax) and loss.positive == "excluded":
        if any(getattr(part, "distinct", False) for part in parts(sampler)):
            yield "sampler.distinct: positive = 'excluded' needs independent draws; set it to false"
        if loss.hardest_negatives is not None:
            yield "loss.hardest_negatives: positive = 'excluded' counts all its negatives; leave it out"
        if loss.correction != 1:
            yield f"loss.correction: positive = 'excluded' is defined with 1; got {loss.correction:g}"
        if not loss.remove_accidental_hits:
            yield "loss.remove_accidental_hits: positive = 'excluded' is defined without hits; set it to true"
    if isinstance(loss, Bsl) and not loss.remove_accidental_hits:
        yield "loss.remove_accidental_hits: bsl never counts the positive among its negatives; set it to true"
    if isinstance(loss, Bsl) and loss.positive_group == "batch":
        if not isinstance(sampler, InBatch):
            yield "loss.positive_group: 'batch' takes positives from the candidates; it needs sampler.name = 'in_batch'"
        if loss.hardest_negatives is not None:
            yield "loss.hardest_negatives: positive_group = 'batch' needs every item of the batch; leave it out"
        if loss.positives_per_query > 1:
            yield "loss.positives_per_query: positive_group = 'batch' finds the others in the batch; leave it out"


def _options(config: "Config") -> Iterator[str]:
    """Options that another one leaves without a meaning, or would falsify."""
    loss = config.loss
    if isinstance(loss, DistanceSoftmax):
        if loss.margin != "adaptive":
            for key in ("margin_every", "margin_max"):
                if getattr(loss, key) != DistanceSoftmax.model_fields[key].default:
                    yield f"loss.{key}: only margin = 'adaptive' reads it; got margin = {loss.margin:g}"
        elif loss.margin_every > config.train.epochs:
            yield (
                f"loss.margin_every: the margin would stay 0, as training ends after {config.train.epochs} epochs "
                f"(train.epochs); got {loss.margin_every}"
            )
        if loss.hardest_negatives is not None and loss.correction:
            yield "loss.hardest_negatives: with a correction the nearest is not the hardest; leave one of them out"
    if isinstance(loss, Triplet) and not loss.smooth and loss.scale != Triplet.model_fields["scale"].default:
        yield "loss.scale: only smooth = true reads it; leave it out, or set loss.smooth = true"
    if isinstance(loss, FullSoftmax) and config.task == "retrieval":
        for name, feature in (config.features.candidate or {}).items():
            if feature.mask_share:
                yield (
                    f"features.candidate.{name}.mask_share: full_softmax scores every item, and would mask one as a "
                    "positive and not among the others; set it to 0, or take sampled_softmax"
                )
        if config.model.candidate_dropout:
            yield (
                "model.candidate_dropout: full_softmax scores every item, and would drop numbers of one as a positive "
                "and not among the others; set it to 0, or take sampled_softmax"
            )
    for name, feature in (config.features.candidate or {}).items():
        if isinstance(feature, NeighboursFeature) and feature.recency > 1:
            yield f"features.candidate.{name}.recency: an item's users stand in no order of time; leave it out"
        if isinstance(feature, NeighboursFeature) and feature.cooccurrence:
            yield (
                f"features.candidate.{name}.cooccurrence: is of the items that users take; leave it out, or add a "
                "feature of kind = 'cooccurrence'"
            )
    if not config.train.choose_epoch and config.model.norm_exponent == "validation":
        yield "model.norm_exponent: 'validation' needs train.choose_epoch = true; give a number, or leave it out"
    if not config.train.choose_epoch and config.model.prior == "validation":
        yield "model.prior: 'validation' needs train.choose_epoch = true; give its weights, or set it to 'off'"
    hardest = getattr(loss, "hardest_negatives", None)
    if hardest is not None and config.negatives is not None:
        drawn = sum(getattr(part, "negatives", config.train.batch_size) for part in parts(config.negatives))
        if hardest >= drawn:
            yield f"loss.hardest_negatives: there are {drawn} candidates, so fewer than that make sense; got {hardest}"


def _widths(config: "Config") -> Iterator[str]:
    """Widths of features: a sum has one, and so has a table that several features share."""
    tables: dict[str, tuple[str, int]] = {}
    for side, features in (("query", config.features.query), ("candidate", config.features.candidate)):
        for name, feature in (features or {}).items():
            if feature.dimension is None:
                continue
            key = f"features.{side}.{name}.dimension"
            if config.model.combine == "sum":
                yield (
                    f"{key}: model.combine = 'sum' adds vectors of one width, model.dimension; leave it out, or set "
                    "model.combine = 'concat'"
                )
            other, width = tables.setdefault(_table(config, side, name, feature), (key, feature.dimension))
            if width != feature.dimension:
                yield f"{key}: shares the table of {other} = {width}; got {feature.dimension}; name one of them only"
    for name, feature in (config.features.query or {}).items():
        if isinstance(feature, SequenceFeature):
            _, width = tables.get(_table(config, "query", name, feature), ("", config.model.dimension))
            yield from _sequence(config, name, feature, width)


def _sequence(config: "Config", name: str, feature: SequenceFeature, width: int) -> Iterator[str]:
    if width % feature.heads:
        yield f"features.query.{name}.heads: must divide the width of its vector, {width}; got {feature.heads}"
    default = SequenceFeature.model_fields["gap_mask_share"].default
    if not feature.time_gaps and feature.gap_mask_share != default:
        yield f"features.query.{name}.gap_mask_share: only time_gaps = true reads it; leave it out"
    if feature.time_gaps and f"{name}_times" in (config.features.query or {}):
        yield f"features.query.{name}_times: is the input of the times of {name!r}; give this feature another name"


def _table(config: "Config", side: str, name: str, feature: Feature) -> str:
    """Which embedding table a feature reads: its own, or that of the ids it is made of where those are a feature."""
    source = side if feature.kind == "id" else side_of_ids(side, feature)
    if source is None:
        return f"{side}.{name}"
    features: dict[str, Feature] | None = getattr(config.features, source)
    with_ids = features is None or any(each.kind == "id" for each in features.values())
    return f"{source} ids" if with_ids else f"{side}.{name}"


def _optimizer(config: "Config") -> Iterator[str]:
    optimizer = config.optimizer
    if optimizer.schedule == "constant" and optimizer.final_share:
        yield "optimizer.final_share: a constant rate ends where it is; set optimizer.schedule = 'linear' or 'cosine'"
    if optimizer.learning_rate * optimizer.weight_decay >= 1:
        yield (
            "optimizer.weight_decay: a step takes learning_rate * weight_decay of a weight, which must stay below 1; "
            f"got {optimizer.learning_rate:g} * {optimizer.weight_decay:g}"
        )


def _task(config: "Config") -> Iterator[str]:
    similarity, metric = config.similarity, config.train.metric
    if config.task == "retrieval":
        if similarity.column is not None or similarity.pairs is not None:
            yield "similarity: only task = 'similarity' reads it; set task = 'similarity', or leave the section out"
        for key in ("against", "holdout_share"):
            if getattr(similarity, key) != type(similarity).model_fields[key].default:
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
    if similarity.against == "items":
        yield from _without_centres(config.loss, config.train.batch_size)
    wanted = "precision" if similarity.pairs is None else "recall"
    if "metric" in config.train.model_fields_set and not metric.startswith(wanted):
        labels = "class labels" if similarity.pairs is None else "pairs"
        yield f"train.metric: task = 'similarity' with {labels} is measured by {wanted}@k; got '{metric}'"
    if any(feature.kind in ("neighbours", "cooccurrence") for feature in (config.features.candidate or {}).values()):
        yield (
            "features.candidate: task = 'similarity' has no users, and so nobody's neighbours and no cooccurrence; "
            "leave them out"
        )
    yield from _no_queries(config)


def _without_centres(loss: Loss, batch_size: int) -> Iterator[str]:
    """What needs centres, or holds too much where every item of a batch is a candidate."""
    if batch_size < 4:
        yield f"train.batch_size: with similarity.against = 'items' it takes 4 to make a negative; got {batch_size}"
    if isinstance(loss, FullSoftmax):
        yield "similarity.against: full_softmax is a softmax over class centres; set it to 'centres', or take pair"
    if isinstance(loss, DistanceSoftmax) and loss.margin == "adaptive":
        yield "loss.margin: 'adaptive' is the width of classes around their centres; set similarity.against = 'centres'"
    if isinstance(loss, Triplet) and loss.mining != "hardest" and batch_size > MOST_TRIPLETS:
        yield (
            f"train.batch_size: loss.mining = '{loss.mining}' compares all triplets of a batch, batch_size^3 of them; "
            f"with similarity.against = 'items' at most {MOST_TRIPLETS}, or loss.mining = 'hardest'; got {batch_size}"
        )


def _no_queries(config: "Config") -> Iterator[str]:
    """Settings of queries, events and samples: `task = "similarity"` has none of them."""
    if config.features.query is not None or "query" in (config.features.changes or {}):
        yield "features.query: task = 'similarity' trains the item tower alone; leave the section out"
    if config.model.norm_exponent is not None:
        yield "model.norm_exponent: task = 'similarity' asks items with items, whose vectors are one; leave it out"
    if config.model.prior != "off":
        yield "model.prior: task = 'similarity' asks items with items, whose fashion plays no part; set it to 'off'"
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
    block = FullSoftmax.model_fields["block"].default
    fixed = {
        "correction": 0,
        "positives_per_query": 1,
        "known_positives": 0,
        "remove_accidental_hits": True,
        "block": block,
    }
    for key, value in fixed.items():
        if getattr(config.loss, key, value) != value:
            yield f"loss.{key}: task = 'similarity' samples nothing and takes every label; leave it out"


def parts(sampler: Sampler) -> tuple[Sampler, ...]:
    """The samplers that draw: a mixture's parts, or the sampler itself."""
    return sampler.parts if isinstance(sampler, Mixed) else (sampler,)
