"""Applies the settings that the user's recipe fixes: every trial has them, and only the rest is searched."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pipelines.tuning.space import Family, Point, Values, canonical, sections
from pipelines.tuning.traits import Raw, Traits
from towers.config.recipe import Config
from towers.errors import ConfigError

ONE_CHOICE = ("features", "loss", "sampler")  # sections fixed as a whole
GIVEN = "given"  # the family of a recipe with its own features


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

    def families(self, found: Sequence[Family], traits: Traits) -> list[Family]:
        """Returns the families without the fixed settings; a recipe with its own features leaves a single family."""
        free = [replace(each, settings=self._free(each, traits)) for each in found]
        if "features" in self.raw:
            starts = tuple(start for family in free for start in family.starts)
            free = [Family(GIVEN, free[0].settings, starts)]
        if not any(family.settings for family in free):
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

    def _free(self, family: Family, traits: Traits) -> dict[str, Values]:
        """Returns the settings whose values make a difference."""

        def texts(name: str, values: Values) -> set[str]:
            start = family.starts[0]
            return {canonical(self.sections(family.name, {**start, name: each}, traits)) for each in values}

        searched = {name: values for name, values in family.settings.items() if name not in self.raw}  # "loss"
        return {name: values for name, values in searched.items() if len(texts(name, values)) > 1}
