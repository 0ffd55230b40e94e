"""Refuses settings that are valid alone but make no sense together, with the reason and a remedy."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, get_args

from towers.config.feature_section import Side
from towers.config.features import Feature, HistoryFeature, SequenceFeature
from towers.config.losses import LOSSES
from towers.config.samplers import InBatch
from towers.config.task_rules import task_rules

if TYPE_CHECKING:
    from towers.config.recipe import Config


def refuse_combination(config: "Config") -> None:
    """Refuses a recipe whose loss, sampler, model and task do not fit together.

    Raises:
        ValueError: every reason, each with its key and a remedy.
    """
    checks = (
        config.loss.conflicts,
        _model_and_loss,
        _loss_and_sampler,
        _impressions,
        _options,
        _widths,
        _optimizer,
        _contrast,
        _teachers,
        _users,
        task_rules,
    )
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
    if model.similarity == "dot" and loss.needs_cosine:
        yield f"model.similarity: {name} needs 'cosine': {loss.needs_cosine}"
    if loss.graded and config.train.weighted:
        yield f"train.weighted: {name} learns from the weights, as labels; set it to false"
    if loss.graded and config.train.recency > 1:
        yield f"train.recency: {name} learns from labels, which weighing would distort; set it to 1"
    if loss.graded and config.train.balance:
        yield f"train.balance: {name} learns from labels, which weighing would distort; set it to 0"


def _loss_and_sampler(config: "Config") -> Iterator[str]:
    loss = config.loss
    if config.negatives is not None and not loss.samples:
        instead = (
            "it learns from the labels of the events; for sampled negatives take neg or nce"
            if loss.graded
            else "it scores the whole catalogue; sampled_softmax is its sampled form"
        )
        yield f"sampler: {loss.name} takes no sampler, so leave the section out (--set sampler=): {instead}"
    if config.negatives is None or loss.sampled is None or loss.sampled.remove_accidental_hits:
        return
    for key, part in config.negatives.by_key.items():
        if isinstance(part, InBatch) and part.distinct:
            yield (
                f"{key}.distinct: of several copies of a query's own item one stays, and would be its negative; set "
                "loss.remove_accidental_hits = true, or leave distinct out"
            )


def _impressions(config: "Config") -> Iterator[str]:
    """Impressions as negatives of a loss that has no place for them, and settings of impressions that are not there."""
    loss = config.loss.sampled
    if loss is None:
        return
    if loss.impressions and not loss.one_sum:
        names = [get_args(each.model_fields["name"].annotation)[0] for each in LOSSES if each.one_sum]
        yield (
            f"loss.impressions: {config.loss.name} does not sum over its negatives in one logarithm; leave it out, or "
            f"take {', '.join(names[:-1])} or {names[-1]}"
        )
    for key in () if loss.impressions else ("impression_weight", "impression_request"):
        if loss.differs(key):
            yield f"loss.{key}: only loss.impressions reads it; set that, too, or leave it out"


def _options(config: "Config") -> Iterator[str]:
    """Options that another one makes meaningless or wrong."""
    loss = config.loss
    for side, features in config.features.named():
        for name, feature in features.items():
            yield from (f"features.{side}.{name}.{reason}" for reason in feature.conflicts(side))
    if not config.train.choose_epoch and config.model.norm_exponent == "validation":
        yield "model.norm_exponent: 'validation' needs train.choose_epoch = true; give a number, or leave it out"
    if not config.train.choose_epoch and config.model.prior == "validation":
        yield "model.prior: 'validation' needs train.choose_epoch = true; give its weights, or set it to 'off'"
    hardest = getattr(loss, "hardest_negatives", None)
    if hardest is not None and config.negatives is not None:
        drawn = sum(getattr(part, "negatives", config.train.batch_size) for part in config.negatives.by_key.values())
        if hardest >= drawn:
            yield f"loss.hardest_negatives: there are {drawn} candidates, so fewer than that make sense; got {hardest}"


def _widths(config: "Config") -> Iterator[str]:
    """Widths of features: those that are summed share one, and so do those that share a table. Widths of cuts rise."""
    cuts = [*config.loss.matryoshka, config.model.dimension]
    if sorted(set(cuts)) != cuts:
        yield f"loss.matryoshka: must rise and end below model.dimension = {cuts[-1]}; got {cuts[:-1]}"
    tables: dict[str, tuple[str, int]] = {}
    for side, features in config.features.named():
        for name, feature in features.items():
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
        if isinstance(feature, HistoryFeature | SequenceFeature):
            _, width = tables.get(_table(config, "query", name, feature), ("", config.model.dimension))
            yield from _item_features(config, name, feature, width)
            if isinstance(feature, SequenceFeature):
                yield from _sequence(config, name, feature, width)


def _item_features(config: "Config", name: str, feature: HistoryFeature | SequenceFeature, width: int) -> Iterator[str]:
    candidate = config.features.candidate or {}
    # Of several features of a column, the history shares the first.
    shared = {each.column or other: other for other, each in reversed(candidate.items()) if each.reads}
    for other, each in candidate.items():
        column, its = each.column or other, each.dimension or config.model.dimension
        if column in feature.item_features and shared.get(column) == other and its != width:
            yield (
                f"features.query.{name}.item_features: {column!r} shares the table of "
                f"features.candidate.{other}, of width {its}, and is added to the items' vectors, of width {width}; "
                "give both one dimension"
            )


def _sequence(config: "Config", name: str, feature: SequenceFeature, width: int) -> Iterator[str]:
    if width % feature.heads:
        yield f"features.query.{name}.heads: must divide the width of its vector, {width}; got {feature.heads}"
    for other in config.features.query or {}:
        if feature.time_gaps and other.lower() == f"{name}_times".lower():
            yield f"features.query.{other}: is the input of the times of {name!r}; give this feature another name"


def _table(config: "Config", side: Side, name: str, feature: Feature) -> str:
    """The embedding table that a feature reads: its own, or that of the ids it consists of, if those are a feature."""
    source = side if feature.kind == "id" else feature.ids_of(side)
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
    if optimizer.l2 and optimizer.weight_decay:
        yield (
            "optimizer.l2: shrinks weights through the gradient, optimizer.weight_decay beside it; set one to 0; "
            f"got {optimizer.l2:g} and {optimizer.weight_decay:g}"
        )
    if optimizer.name == "sgd" and optimizer.learning_rate * optimizer.l2 >= 1:
        yield (
            "optimizer.l2: a step of sgd takes learning_rate * l2 of a weight, which must stay below 1; "
            f"got {optimizer.learning_rate:g} * {optimizer.l2:g}"
        )


def _contrast(config: "Config") -> Iterator[str]:
    loss, contrast = config.loss, config.contrast
    if not contrast.weight:
        if contrast.differs("window"):
            yield "contrast.window: only contrast.weight reads it; set that, too, or leave it out"
    elif config.task != "retrieval":
        yield "contrast.weight: task = 'similarity' has no users; leave the section out (--set contrast=)"
    elif not loss.contrasts:
        yield (
            f"contrast.weight: {loss.name}{' with per_user' * loss.of_users} is no loss of single items with a "
            "temperature; take sampled_softmax, bsl or another one that is, or leave the section out (--set contrast=)"
        )


def _teachers(config: "Config") -> Iterator[str]:
    loss, distillation = config.loss, config.distillation
    readers = {"share": ("models", "ease"), "dimension": ("models",), "ease_penalty": ("ease",)}
    for key, of in readers.items():
        if distillation.differs(key) and not any(getattr(distillation, each) for each in of):
            names = " or ".join(f"distillation.{each}" for each in of)
            yield f"distillation.{key}: only {names} reads it; set that, too, or leave it out"
    if not distillation.on:
        return
    asked = "models" if distillation.models else "ease"
    if config.task != "retrieval" or not (loss.samples or loss.of_users):
        yield (
            f"distillation.{asked}: {loss.name} scores no sampled candidates, whose order teachers could tell; take "
            "sampled_softmax, bsl, or full_softmax with loss.per_user, or set it to 0"
        )
    elif loss.own_scale:
        yield (
            f"distillation.{asked}: {loss.name} works on the unscaled similarity, which makes no shares of candidates; "
            "take sampled_softmax or bsl, or set it to 0"
        )
    if distillation.dimension is not None:
        for reason in _widths(config.of_teachers):
            yield f"distillation.dimension = {distillation.dimension}: {reason}"


def _users(config: "Config") -> Iterator[str]:
    """Settings of single events where an example is a user."""
    if not config.loss.of_users:
        return
    if config.task != "retrieval":
        yield "loss.per_user: task = 'similarity' has no users; leave it out"
    whole, term = "an example is a user and all their items", "its softmax has no such term"
    for section, key, reason in (
        ("loss", "positives_per_query", whole),
        ("loss", "label_shares", whole),
        ("loss", "block", "the scores are computed for a block of users at a time, not of items"),
        ("loss", "label_smoothing", term),
        ("loss", "bottleneck", term),
        ("train", "weighted", whole),
        ("train", "recency", whole),
    ):
        if getattr(config, section).differs(key):
            yield f"{section}.{key}: with loss.per_user {reason}; leave it out"
