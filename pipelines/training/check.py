"""`towers check`: finds everything wrong with a recipe, alone or against a data set, before a long run."""

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from pipelines.console import Advance, no_bar, phases, progress
from pipelines.dataset.column_lines import column_lines
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.digests import refuse_changes
from pipelines.dataset.heldout import has_targets
from pipelines.dataset.leaks import events_read, refuse_leaks
from pipelines.dataset.popularity import Counting, has_windows, item_counts
from pipelines.dataset.resolve_features import resolve_features
from pipelines.rankers.ease import MAX_ITEMS
from pipelines.service.verify import VERIFY
from pipelines.training.impressions import refuse_no_impressions
from pipelines.training.similarity.labels import DEFAULT_METRIC, read_labels
from towers.config.feature_section import OfOrder
from towers.config.look_ahead import look_ahead
from towers.config.recipe import Config
from towers.config.sections import DataConfig, PriorConfig
from towers.errors import ConfigError

RECIPE, LEAKS, FEATURES = "recipe", "leaks", "features"
# Keys of [data] that `prepare` has already applied.
PREPARED = tuple(key for key in DataConfig.model_fields if key not in ("split", "refit"))


def run(config: Config, dataset: Path | None = None) -> Config:
    """Checks a recipe, and that a data set is intact, free of leaks and able to feed it up to the first step.

    Returns:
        The recipe, with its features spelt out if a data set was given.

    Raises:
        ConfigError: the recipe is wrong, does not fit the data set, or makes a step that cannot run.
        DataError: the data set is changed or leaks.
    """
    if dataset is None:
        return config
    data = Dataset.open(dataset)
    phases("check", VERIFY, RECIPE, LEAKS, FEATURES)
    with progress(VERIFY, total=data.manifest.megabytes, unit="MB") as advance:
        refuse_changes(data, advance)
    with progress(RECIPE, total=len(CHECKS), unit="checks") as advance:
        resolved = check_recipe(config, data, advance)
    with progress(LEAKS, total=events_read(data.manifest), unit="events") as advance:
        refuse_leaks(data, advance)
    _start(resolved, data)
    return resolved


def _start(config: Config, data: Dataset) -> None:
    """Builds every stage of a training as `towers train` does, so whatever it refuses before a step is found here."""
    # They load TensorFlow, which a recipe alone does not need.
    from pipelines.dataset.vocabulary import feature_count
    from pipelines.training.stage import build_trainer, stages

    trained = stages(config, data)
    with progress(FEATURES, total=len(trained) * feature_count(config), unit="features") as advance:
        for stage in trained:
            with TemporaryDirectory() as folder:
                build_trainer(config, data, stage, Path(folder), Path(folder), advance)


def describe(config: Config, dataset: Path | None = None) -> str:
    """Writes the resolved features as a recipe would spell them, without defaults, for the user to copy and change.

    Args:
        config: what `run` returned.
        dataset: adds a comment for each column that says what it became and why.
    """
    told = [] if dataset is None else column_lines(Dataset.open(dataset), config)
    lines = [f"# {line}" for line in told]
    if dataset is not None:
        timed = Dataset.open(dataset).manifest.timed
        lines += [f"# looks ahead: {line}" for line in look_ahead(config.features, timed=timed)]
    changes = config.features.changes or {}
    for side, features in (("query", config.features.query), ("candidate", config.features.candidate)):
        if side == "query" and config.task == "similarity":
            lines.append("# features.query: none; task = 'similarity' trains the item tower alone")
            continue
        if features is None:
            changed = ", then changed as the recipe says" if side in changes else ""
            lines.append(f"# features.{side}: derived from the data set{changed}; --dataset DATASET shows them")
            continue
        lines.append(f"[features.{side}]")
        for name, feature in features.items():
            kept = feature.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
            values = ", ".join(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in kept.items())
            lines.append(f"{name} = {{ {values} }}".replace("\x7f", "\\u007f"))  # the one that TOML wants escaped, too
    return "\n".join([*lines, "# nothing wrong found"])


def check_recipe(config: Config, data: Dataset, advance: Advance = no_bar) -> Config:
    """Resolves the features and checks the recipe against `data`, in as many checks as `CHECKS`.

    Raises:
        ConfigError: names the wrong key.
    """
    for check in CHECKS:
        config = check(config, data)
        advance(1)
    return config


def _refuse_prepared_otherwise(config: Config, data: Dataset) -> Config:
    prepared, split = data.manifest.config, data.manifest.split.kind
    unread = {"test_share"} if split == "given" else set[str]()
    for key in config.data.model_fields_set & (set(PREPARED) - unread):
        wanted, had = getattr(config.data, key), getattr(prepared, key)
        if wanted != had and (key, wanted) != ("validation", "auto"):  # `prepare` has chosen one
            raise ConfigError(
                f"data.{key}: the recipe says {wanted!r}, but the data set was prepared with {had!r}; "
                "prepare it again with --config, or change the recipe"
            )
    if config.data.split not in ("auto", split):
        raise ConfigError(f"data.split: the recipe says {config.data.split!r}, but the data set was split by {split!r}")
    if (trained := len(data.events("train"))) < 2:
        raise ConfigError(f"{data.path}: {trained} training events; training needs at least 2")
    return config


def _resolve_timed(config: Config, data: Dataset) -> Config:
    """Resolves `data.refit = "timed"`, which applies only if events have times."""
    if config.data.refit == "timed":
        refit = has_windows(data) and has_targets(data, "valid")
        config = config.model_copy(update={"data": config.data.model_copy(update={"refit": refit})})
    return config


def _refuse_unvalidated(config: Config, data: Dataset) -> Config:
    """Refuses what is chosen on validation events, or on times, where there are none, or by a metric of every item."""
    metric, items = config.train.metric, data.manifest.items
    if config.train.differs("metric") and int(metric.partition("@")[2]) >= items:  # by the default a first try trains
        raise ConfigError(
            f"train.metric: {metric} takes each of the data set's {items:,} items as found, whatever the model; "
            "take a K below that, or more items"
        )
    none = "the data set has no validation targets to choose"
    if config.data.refit and not has_targets(data, "valid"):
        raise ConfigError(f"data.refit: {none} the epochs on; set it to false")
    for key, given in (("norm_exponent", "a number: --set model.norm_exponent=1"), ("prior", "weights, or 'off'")):
        if getattr(config.model, key) == "validation" and not has_targets(data, "valid"):
            raise ConfigError(f"model.{key}: {none} it on; give {given}")
    if isinstance(prior := config.model.prior, PriorConfig) and prior.days is not None and not has_windows(data):
        raise ConfigError(
            f"model.prior.days: a window of {prior.days} days needs times in a unit that the split respects, and this "
            "data set has none; leave days out to count all events"
        )
    return config


def _resolve_features(config: Config, data: Dataset) -> Config:
    # The settings the data set was prepared with; the recipe may leave them at their defaults.
    resolved = data.manifest.config.model_copy(update={"refit": config.data.refit})
    return resolve_features(config.model_copy(update={"data": resolved}), data)


def _refuse_order(config: Config, data: Dataset) -> Config:
    """Refuses what depends on the order of events where the split does not respect it."""
    train, contrast = config.train, config.contrast
    settings: list[OfOrder] = [("train.recency", train.recency, 1), ("contrast.window", contrast.window, "list")]
    for side, features in config.features.named():
        for name, feature in features.items():
            settings += [(f"features.{side}.{name}.{key}", value, none) for key, value, none in feature.of_order()]
    for key, value, none in settings:
        if value != none and not data.manifest.timed:
            raise ConfigError(
                f"{key}: needs the order of the events, and this data set's split does not respect it; set it to "
                f"{none!r}, or prepare it with data.split = 'global_time' or 'leave_last_out', or a given one with "
                "data.ordered = true"
            )
    return config


def _refuse_large_ease(config: Config, data: Dataset) -> Config:
    if not config.distillation.ease or data.manifest.items <= MAX_ITEMS:  # so few need no count
        return config
    parts = [data.events(split) for split in (("train", "valid") if config.data.refit else ("train",))]
    items = np.count_nonzero(item_counts(parts, data.manifest.items, Counting(), time_unit=None))
    if items > MAX_ITEMS:
        raise ConfigError(
            f"distillation.ease: EASE takes at most {MAX_ITEMS:,} items that train; got {items:,}; set it to 0"
        )
    return config


def _resolve_similarity(config: Config, data: Dataset) -> Config:
    """Applies the task's default metric if the recipe names none, and reads the labels once to validate them."""
    if config.task != "similarity":
        return config
    if "metric" not in config.train.model_fields_set and config.similarity.pairs is None:
        config = config.model_copy(update={"train": config.train.model_copy(update={"metric": DEFAULT_METRIC})})
    read_labels(config, data)
    return config


def _resolve_labels(config: Config, data: Dataset) -> Config:
    """Checks the event weights if the recipe learns from them, and fills in `loss.max_label`.

    Raises:
        ConfigError: there are no weights, or nothing to learn from them.
    """
    if config.task == "similarity":
        return config
    loss, reader = config.loss, _reader_of_weights(config)
    if reader is None:
        return config
    splits = ("train", "valid") if config.data.refit else ("train",)
    # Impressions train graded losses alone.
    weights = [data.events(part).weight for part in (data.parts(*splits) if loss.graded else splits)]
    there = [weight for weight in weights if weight is not None and len(weight)]
    if not there:
        raise ConfigError(f"{reader}: the data set has no weights; prepare it with data.columns.weight")
    low, high = min(float(each.min()) for each in there), max(float(each.max()) for each in there)
    if low < 0:
        raise ConfigError(f"{reader}: weights must not be negative; the data set's smallest is {low:g}")
    if loss.graded and low == high:
        raise ConfigError(f"{reader}: every weight of the training events is {low:g}; equal labels teach nothing")
    try:
        return config.model_copy(update={"loss": loss.with_labels_up_to(high)})
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _reader_of_weights(config: Config) -> str | None:
    """Returns the setting that makes training learn from event weights, or None."""
    if config.loss.graded:
        return f"loss.name = '{config.loss.name}'"
    if getattr(config.loss, "label_shares", "equal") == "weight":
        return "loss.label_shares = 'weight'"
    return "train.weighted" if config.train.weighted else None


CHECKS: tuple[Callable[[Config, Dataset], Config], ...] = (
    _refuse_prepared_otherwise,
    _resolve_timed,
    _refuse_unvalidated,
    _resolve_labels,
    refuse_no_impressions,
    _resolve_features,
    _refuse_order,
    _refuse_large_ease,
    _resolve_similarity,
)
