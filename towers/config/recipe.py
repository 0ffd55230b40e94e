"""Reads every setting of data, model and training, once, from one TOML file into frozen models.

A mistake is a `ConfigError` that names the key, the value, what is allowed, and the nearest right name.
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from towers.config.compatibility import refuse_combination
from towers.config.explain import explain
from towers.config.feature_sides import Features
from towers.config.losses import LossConfig, SampledSoftmax
from towers.config.overrides import DEFAULT_NAMES, apply_override, ordered
from towers.config.samplers import InBatch, SamplerConfig
from towers.config.section import Section
from towers.config.sections import (
    DEFAULT_TEMPERATURE,
    ContrastConfig,
    DataConfig,
    DistillationConfig,
    ModelConfig,
    OptimizerConfig,
    SimilarityConfig,
    TrainConfig,
)
from towers.errors import ConfigError

RECIPES = Path(__file__).parents[1] / "recipes"
"""The folder of the recipes that come with towers."""


class Config(Section):
    """One recipe."""

    task: Literal["retrieval", "similarity"] = Field(default="retrieval", description="what the towers learn")
    data: DataConfig = DataConfig()
    features: Features = Features()
    model: ModelConfig = ModelConfig()
    loss: LossConfig = SampledSoftmax(name="sampled_softmax")
    sampler: SamplerConfig | None = Field(
        default=None, description="in_batch, where the loss takes negatives from a sampler"
    )
    similarity: SimilarityConfig = SimilarityConfig()
    contrast: ContrastConfig = ContrastConfig()
    distillation: DistillationConfig = DistillationConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    train: TrainConfig = TrainConfig()

    @model_validator(mode="before")
    @classmethod
    def _a_section_without_a_name_is_the_default_one(cls, raw: Any) -> Any:
        """`--set loss.correction=0.5` alone means the default loss."""
        if not isinstance(raw, Mapping):
            return raw
        return {
            key: {"name": DEFAULT_NAMES[key], **value} if key in DEFAULT_NAMES and isinstance(value, Mapping) else value
            for key, value in raw.items()
        }

    @model_validator(mode="after")
    def _the_parts_fit(self) -> "Config":
        refuse_combination(self)
        return self

    def with_features(self, features: Features) -> "Config":
        """Returns the recipe with other features.

        Raises:
            ConfigError: they do not fit its other settings.
        """
        config = self.model_copy(update={"features": features})
        try:
            refuse_combination(config)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        return config

    @property
    def negatives(self) -> SamplerConfig | None:
        """The sampler, if the loss takes one."""
        if self.sampler is None and self.loss.samples and self.task == "retrieval":
            return InBatch(name="in_batch")
        return self.sampler

    @property
    def of_teachers(self) -> "Config":
        """The recipe of the teachers: of their dimension, and without teachers of their own."""
        model = self.model.model_copy(update={"dimension": self.distillation.dimension or self.model.dimension})
        return self.model_copy(update={"model": model, "distillation": DistillationConfig()})

    @property
    def temperature(self) -> float | None:
        """The divisor of similarities; None for a loss with its own scale."""
        if self.loss.own_scale:
            return None
        return DEFAULT_TEMPERATURE if self.model.temperature is None else self.model.temperature


def load_config(path: Path | str, overrides: Iterable[str] = ()) -> Config:
    """Reads a recipe.

    Args:
        path: a TOML file, or the name of a recipe in `RECIPES`: ``default``. A file of that name comes first.
        overrides: ``section.key=value`` strings (see `towers.config.overrides`).

    Raises:
        ConfigError: the file is missing or not TOML, or a key or value in it, or an override, is wrong.
    """
    file = Path(path)
    ready = {each.stem: each for each in sorted(RECIPES.glob("*.toml"))}
    if not file.is_file():
        file = ready.get(str(path), file)
    try:
        raw = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such recipe file; those that come with towers are {', '.join(ready)}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    for key in filter(None, [apply_override(raw, override) for override in ordered(overrides)]):
        _refuse_unknown(raw, key)
    return parse_config(raw, origin=str(path))


def _refuse_unknown(raw: Mapping[str, Any], key: Sequence[str]) -> None:
    """Refuses to take out a key that no recipe can have, which would change nothing."""
    trial = deepcopy(dict(raw))
    node = trial
    for part in key[:-1]:
        node = node.setdefault(part, {})
        if not isinstance(node, dict):  # a later override has made it a value
            return
    node[key[-1]] = None
    try:
        Config.model_validate(with_tuples(trial))
    except ValidationError as error:
        own = (each for each in error.errors() if each["loc"][-1] == key[-1])
        unknown = [each for each in own if each["type"] == "extra_forbidden"]
        if unknown:
            raise ConfigError(f"--set '{'.'.join(key)}=': {explain(unknown, Config)}") from None


def parse_config(raw: Mapping[str, Any], origin: str = "recipe") -> Config:
    """Checks a nested mapping of settings; errors name `origin`.

    Raises:
        ConfigError: names every wrong key, its value, what is allowed and the nearest right name.
    """
    place: tuple[str, ...] = ()
    try:
        config = Config.model_validate(with_tuples(raw))
        place = ("features",)
        for side, changes in (config.features.changes or {}).items():
            # A change with a kind is a whole feature, so its mistakes can be reported before there is a data set.
            Features.model_validate({side: {name: each for name, each in changes.items() if each and "kind" in each}})
    except ValidationError as error:
        details = [{**detail, "loc": (*place, *detail["loc"])} for detail in error.errors()]
        raise ConfigError(f"{origin}: {explain(details, Config)}") from None
    return config


def with_tuples(raw: Any) -> Any:
    """The same settings with each TOML array as a tuple, which frozen models need."""
    if isinstance(raw, Mapping):
        return {key: with_tuples(value) for key, value in raw.items()}
    return tuple(with_tuples(value) for value in raw) if isinstance(raw, list) else raw
