"""Applies the settings that the user's recipe fixes: every trial has them, and only the rest is searched."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipelines.tuning.space import Family, Point, sections
from pipelines.tuning.traits import Raw, Traits
from towers.config.recipe import Config
from towers.errors import ConfigError

KEYS = {
    "temperature": ("model", "temperature"),
    "dropout": ("model", "query_dropout"),
    "recency": ("train", "recency"),
    "balance": ("train", "balance"),
    "learning_rate": ("optimizer", "learning_rate"),
    "weight_decay": ("optimizer", "weight_decay"),
    "average": ("optimizer", "average"),
    "batch_size": ("train", "batch_size"),
}
ONE_CHOICE = ("features", "loss", "sampler")  # sections fixed as a whole
OF_LOSS = ("loss", "correction", "known_positives")
OF_FEATURES = (
    "neighbours",
    "neighbours_recency",
    "cooccurrence",
    "user_id",
    "pooled",
    "window",
    "pooling",
    "share_item_table",
    "max_length",
    "sequence_dropout",
    "blocks",
    "time_gaps",
    "attributes",
)
GIVEN = "given"


class FixedSettings:
    """The settings fixed by the user's recipe.

    Args:
        config: the recipe; None fixes nothing.

    Raises:
        ConfigError: tune cannot search its task or its epochs.
    """

    def __init__(self, config: Config | None) -> None:
        self.config = config or Config()
        if self.config.task != "retrieval":
            raise ConfigError(f"task: tune searches recipes of task = 'retrieval'; got {self.config.task!r}")
        if not self.config.train.choose_epoch:
            raise ConfigError("train.choose_epoch: tune finds the epochs by validation; leave it out")
        if self.config.optimizer.schedule != "constant" and "epochs" not in self.config.train.model_fields_set:
            raise ConfigError("optimizer.schedule: it falls over all epochs; fix train.epochs, too, or leave it out")
        self.raw: Raw = {} if config is None else config.model_dump(mode="json", exclude_unset=True, exclude_none=True)

    def families(self, found: Sequence[Family]) -> list[Family]:
        """Returns the families without the fixed settings; a recipe with its own features leaves a single family."""
        features = "features" in self.raw
        free = [replace(family, parameters=self._free(family, features=features)) for family in found]
        if features:
            starts = tuple(start for family in free for start in family.starts)
            free = [Family(GIVEN, free[0].parameters, starts)]
        if not any(family.parameters for family in free):
            raise ConfigError("--config fixes every setting that tune searches; leave some of them out")
        return free

    def sections(self, family: str, point: Point, traits: Traits) -> Raw:
        """Returns a point's sections with the fixed settings applied."""
        raw = sections("ids" if family == GIVEN else family, point, traits)
        for name, section in self.raw.items():
            whole = name in ONE_CHOICE or not isinstance(section, Mapping)
            raw[name] = section if whole else raw.get(name, {}) | section
        loss = self.config.loss
        if "loss" in self.raw:
            if not loss.samples:
                raw.pop("sampler", None)
            if loss.own_scale:
                raw["model"].pop("temperature")
        return raw

    def _free(self, family: Family, *, features: bool) -> dict[str, Any]:
        loss = self.config.loss
        fixed = {name for name, (section, key) in KEYS.items() if key in self.raw.get(section, {})}
        fixed |= set(OF_FEATURES) if features else set()
        if "sampler" in self.raw:
            fixed.add("negatives")
        if "loss" in self.raw:
            fixed |= {*OF_LOSS, *(["temperature"] if loss.own_scale else []), *([] if loss.samples else ["negatives"])}
        return {name: parameter for name, parameter in family.parameters.items() if name not in fixed}
