"""The base of every section of a recipe. No TensorFlow here, so that reading a recipe is quick."""

import difflib
from typing import Annotated, Literal
from zoneinfo import available_timezones

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]  # an int32, as of tensors
Share = Annotated[float, Field(ge=0, lt=1)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Window = Count | Literal["list"]  # distance in places at which items are taken together; "list": all of a user's


def known_zone(name: str) -> str:
    """Returns the name of a time zone.

    Raises:
        ValueError: this machine's IANA database has no such zone; names the nearest.
    """
    if name == "UTC" or name in (zones := available_timezones()):
        return name
    near = difflib.get_close_matches(name, zones, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"must be the IANA name of a time zone, such as 'Europe/Paris'; got {name!r}{hint}")


class Section(BaseModel):
    """One section of a recipe: frozen, and without unknown keys."""

    # Strict: "3" is not a number and true is not a count.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def differs(self, key: str) -> bool:
        """Whether a setting is not its default."""
        return bool(getattr(self, key) != type(self).model_fields[key].default)
