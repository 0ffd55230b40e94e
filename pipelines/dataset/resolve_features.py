"""Resolves a model's features against a data set: checks the given ones and derives the sides left out.

A feature that the data cannot feed is a `ConfigError` that names the key, its value and what the data set has.
"""

import difflib
from collections.abc import Mapping, Sequence

from pipelines.dataset.dataset import Dataset
from pipelines.dataset.derive_features import choices, derive, input_name
from towers.config.feature_section import Side
from towers.config.feature_sides import Features
from towers.config.features import KINDS, Feature
from towers.config.recipe import Config, parse_config
from towers.errors import ConfigError

ID_MASK_SHARE = 0.5
TYPES_SHOWN = 20


def resolve_features(config: Config, dataset: Dataset) -> Config:
    """Returns `config` with both feature sides spelt out and every feature checked against `dataset`.

    Raises:
        ConfigError: a feature's column is missing or of a type its kind cannot read, or a side has no feature.
    """
    query = config.features.query
    candidate = config.features.candidate
    similarity = config.task == "similarity"
    sides = Features(
        query=derived_query(config, dataset) if query is None and not similarity else query,
        candidate=_derived_candidate(config, dataset) if candidate is None else candidate,
    )
    if config.features.changes:
        config = _with_changes(config, sides, dataset)
        sides = config.features
    # task = "similarity" has no query tower.
    named = sides.named()
    for side, features in named[1:] if similarity else named:
        if not features:
            raise ConfigError(f"features.{side}: needs at least one feature; leave the section out to derive them")
        ids = [name for name, feature in features.items() if feature.kind == "id"]
        if len(ids) > 1:
            raise ConfigError(f"features.{side}: one feature of kind 'id' at most, got {', '.join(ids)}")
        for name, feature in features.items():
            _check(f"features.{side}.{name}", name, feature, side, dataset)
            for column in getattr(feature, "item_features", ()):
                _check_item_column(f"features.{side}.{name}.item_features", column, sides.candidate or {}, dataset)
    wrong = [f"features.query.{name}" for name, each in (sides.query or {}).items() if of_event(name, each, dataset)]
    if config.loss.of_users and wrong:
        raise ConfigError(
            f"{', '.join(wrong)}: no feature of a whole user, it differs from event to event, and with loss.per_user a "
            "user is one example; leave it out, or set loss.per_user = false"
        )
    if similarity:
        _check_unlabelled(config, sides.candidate or {})
    return config.with_features(sides)


def _with_changes(config: Config, sides: Features, dataset: Dataset) -> Config:
    """Applies the recipe's changes to its derived sides and validates the whole recipe again."""
    raw = sides.model_dump(exclude_unset=True, exclude_none=True)
    for side, wanted in (config.features.changes or {}).items():
        features, derived = raw[side], list(raw[side])  # what the recipe adds is not derived
        # Settings for columns that no derived feature reads, so a change needs only the kind.
        left_out = {each.name: each.settings for each in choices(dataset, side).values() if each.kind is None}
        for name, change in wanted.items():
            if name not in derived and not (change and "kind" in change):
                near = difflib.get_close_matches(name, derived, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                remedy = "" if change is False else "; a new one needs its kind"
                raise ConfigError(
                    f"features.{side}.{name}: no derived feature has this name; there are {', '.join(derived)}{hint}"
                    f"{remedy}"
                )
            if change is False:
                del features[name]
            else:
                features[name] = {**features.get(name, left_out.get(name, {})), **change}
    return parse_config({**config.model_dump(exclude_unset=True, exclude={"features"}), "features": raw})


def column_of(name: str, feature: Feature) -> str:
    """Returns the column that a feature reads."""
    return feature.column or name


def request_of(config: Config) -> str | None:
    """Returns the column of the events that names their requests, if the recipe says so."""
    return None if config.loss.sampled is None else config.loss.sampled.impression_request


def derived_query(config: Config, dataset: Dataset) -> dict[str, Feature]:
    """Derives the query features; the name of a request is none, nor is what differs from event to event for users."""
    request = request_of(config)
    kept = {name: each for name, each in derive(dataset, "query").items() if column_of(name, each) != request}
    if config.loss.of_users:
        kept = {name: each for name, each in kept.items() if not of_event(name, each, dataset)}
    return kept


def of_event(name: str, feature: Feature, dataset: Dataset) -> bool:
    """Whether a query feature differs between the events of one user."""
    if feature.kind == "neighbours":
        return feature.window == "earlier"
    column, manifest = column_of(name, feature), dataset.manifest
    context = bool(feature.reads) and column in manifest.event_columns and column not in manifest.user_columns
    return context or feature.kind in ("history", "sequence", "hour", "weekday")


def _derived_candidate(config: Config, dataset: Dataset) -> dict[str, Feature]:
    """Derives the candidate features; task = "similarity" excludes the labels.

    Items without a label have no row for their id, so half the examples train without theirs.
    """
    derived = derive(dataset, "candidate")
    if config.task == "retrieval":
        return derived
    kept = {name: each for name, each in derived.items() if column_of(name, each) != config.similarity.column}
    masked = {"mask_share": ID_MASK_SHARE} if len(kept) > 1 else {}
    return {name: each.model_copy(update=masked) if each.kind == "id" else each for name, each in kept.items()}


def _check_unlabelled(config: Config, features: Mapping[str, Feature]) -> None:
    """Ensures that the item tower sees neither the labels nor anything that only training items have."""
    for name, feature in features.items():
        if feature.reads and column_of(name, feature) == config.similarity.column:
            raise ConfigError(
                f"features.candidate.{name}: reads {config.similarity.column!r}, the labels of similarity.column: the "
                "item tower would see the answer; leave the feature out"
            )
        if feature.kind == "id" and feature.min_count > 1:
            raise ConfigError(
                f"features.candidate.{name}.min_count: task = 'similarity' counts labelled items, and each of them "
                f"once; leave it out; got {feature.min_count}"
            )
    if config.similarity.holdout_share and all(feature.kind == "id" for feature in features.values()):
        raise ConfigError(
            "features.candidate: held-out items have no row for their id, and there is no other feature to know them "
            "by; add one, or set similarity.holdout_share = 0"
        )


def _check(key: str, name: str, feature: Feature, side: Side, dataset: Dataset) -> None:
    if input_name(name) != name:
        raise ConfigError(
            f"{key}: a feature's name is an input of the SavedModel: letters, digits and _ (not first), no Python "
            f"keyword, not 'self'; call it {input_name(name)!r} and add column = {name!r}"
        )
    if not feature.reads:
        if feature.column is not None:
            raise ConfigError(f"{key}.column: kind {feature.kind!r} reads the event itself and takes no column")
        if side not in feature.describes:
            (other,) = feature.describes
            fits = ", ".join(kind for kind, each in KINDS.items() if side in each.describes and not each.reads)
            raise ConfigError(
                f"{key}.kind: {feature.kind!r} describes a {other}, not a {side}; kinds that read events and describe "
                f"a {side}: {fits}"
            )
        placed = feature.kind == "sequence" or (feature.kind == "cooccurrence" and feature.window != "list")
        if placed and not dataset.manifest.timed:
            instead = "take 'history'" if feature.kind == "sequence" else "set window = 'list'"
            raise ConfigError(
                f"{key}.kind: {feature.kind!r} needs the order of the events, and this data set's split does not "
                f"respect it; {instead}, or prepare it with data.split = 'global_time' or 'leave_last_out', or a given "
                "one with data.ordered = true"
            )
        if feature.kind == "sequence" and feature.time_gaps and dataset.manifest.time_unit == "order":
            raise ConfigError(f"{key}.time_gaps: needs event times, and this data set has none; leave it out")
        if feature.kind in ("hour", "weekday") and dataset.manifest.time_unit in (None, "order"):
            raise ConfigError(f"{key}.kind: {feature.kind!r} needs event times, and this data set has none")
        if side == "query" and feature.kind == "neighbours":
            _check_window(f"{key}.window", feature.window, timed=dataset.manifest.timed)
        if feature.kind in ("history", "sequence"):
            _check_types(f"{key}.events", feature.events, dataset.manifest.event_types)
        return
    manifest = dataset.manifest
    columns = manifest.item_columns if side == "candidate" else {**manifest.event_columns, **manifest.user_columns}
    column = column_of(name, feature)
    if column not in columns:
        near = difflib.get_close_matches(column, columns, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"{key}: the data set has no column {column!r}; it has {', '.join(columns) or 'none'}{hint}")
    if columns[column] not in feature.reads:
        fits = ", ".join(kind for kind, each in KINDS.items() if columns[column] in each.reads)
        remedy = "; data.vectors makes `prepare` read it as vectors" if feature.kind == "vector" else ""
        raise ConfigError(
            f"{key}.kind: {feature.kind!r} reads {' or '.join(feature.reads)} columns, and {column!r} is a "
            f"{columns[column]} column; kinds that fit: {fits}{remedy}"
        )


def item_feature(dataset: Dataset, column: str, candidate: Mapping[str, Feature]) -> tuple[str, Feature]:
    """Returns the feature by which a history reads a column of its items, and its name.

    Args:
        dataset: the data set.
        column: an item column.
        candidate: the features of the candidate tower; one of that column is shared, else one is derived.

    Raises:
        KeyError: the column has no feature.
    """
    for name, feature in [*candidate.items(), *derive(dataset, "candidate").items()]:
        if feature.reads and column_of(name, feature) == column:
            return name, feature
    raise KeyError(column)


def _check_item_column(key: str, column: str, candidate: Mapping[str, Feature], dataset: Dataset) -> None:
    columns = dataset.manifest.item_columns
    if column not in columns:
        near = difflib.get_close_matches(column, columns, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"{key}: the items have no column {column!r}; they have {', '.join(columns) or 'none'}{hint}")
    try:
        item_feature(dataset, column, candidate)
    except KeyError:
        reason = choices(dataset, "candidate")[column].reason
        raise ConfigError(
            f"{key}: {column!r} becomes no feature by itself ({reason}); add one of that column to features.candidate"
        ) from None


def _check_types(key: str, wanted: Sequence[str], known: Sequence[str]) -> None:
    for name in wanted:
        if not known:
            raise ConfigError(
                f"{key}: {name!r} is a type of events, and this data set has none; prepare it from events with a "
                "column of types (data.columns.type)"
            )
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            there = ", ".join(known[:TYPES_SHOWN])
            raise ConfigError(f"{key}: the data set has no events of the type {name!r}; it has {there}{hint}")


def _check_window(key: str, window: str | None, *, timed: bool) -> None:
    if timed and window is None:
        raise ConfigError(
            f"{key}: in timed data name which of its user's events an example pools: 'earlier', or 'all', among them "
            "the example's own and later ones, which only the end of training knows"
        )
    if not timed and window == "earlier":
        raise ConfigError(
            f"{key}: 'earlier' needs the order of the events, and this data set's split does not respect it; set it to "
            "'all', or prepare it with data.split = 'global_time' or 'leave_last_out', or a given one with "
            "data.ordered = true"
        )
