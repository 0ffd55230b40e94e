"""The section `features` of a recipe: the features of both towers, and changes to derived ones. No TensorFlow here."""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from towers.config.feature_section import Side
from towers.config.features import Feature
from towers.config.section import Section

SIDES = ("query", "candidate")
DERIVE = "derive"  # the key of a side that also gets features from the data set's columns
Change = dict[str, Any] | Literal[False]


class Features(Section):
    """Features of both towers by name; a side left out is derived from the data set's columns.

    A side with ``derive = true`` is derived too, and what it holds changes that: other settings for a derived feature,
    an additional feature, or ``NAME = false`` to remove one.
    """

    query: dict[str, Feature] | None = None
    candidate: dict[str, Feature] | None = None
    changes: dict[Side, dict[str, Change]] | None = Field(
        None, description="of the sides with derive = true, as they were written"
    )

    def named(self) -> tuple[tuple[Side, dict[str, Feature]], ...]:
        """Both sides with their features; a side left out has none."""
        return ("query", self.query or {}), ("candidate", self.candidate or {})

    @model_validator(mode="after")
    def _refuse_same_inputs(self) -> Self:
        """Names are inputs of a SavedModel, which does not tell them apart by case."""
        for side, features in self.named():
            names: dict[str, str] = {}
            for name in features:
                if (other := names.setdefault(name.lower(), name)) != name:
                    raise ValueError(f"{side}: {other!r} and {name!r} differ only in case; give one another name")
        return self

    @model_validator(mode="before")
    @classmethod
    def _set_changes_apart(cls, raw: Any) -> Any:
        if not isinstance(raw, Mapping) or not isinstance(raw.get("changes"), Mapping | None):
            return raw
        spelt: dict[str, Any] = dict(raw)
        changes = dict(raw.get("changes") or {})
        for side in SIDES:
            section = raw.get(side)
            # A table of that name is a feature called "derive".
            if not isinstance(section, Mapping) or not isinstance(section.get(DERIVE), bool):
                continue
            spelt[side] = {name: each for name, each in section.items() if name != DERIVE}
            if section[DERIVE]:
                changes[side] = spelt.pop(side)
                for name, each in changes[side].items():
                    if each is not False and not isinstance(each, Mapping):
                        raise ValueError(
                            f"{side}.{name}: must be a table of settings, or false, which leaves it out; got {each!r}"
                        )
        return {**spelt, "changes": changes} if changes else spelt
