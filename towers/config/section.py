"""The base of every section of a recipe. No TensorFlow here, so that reading a recipe is quick."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, lt=1)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Section(BaseModel):
    """One section of a recipe: frozen, and without unknown keys."""

    # Strict: "3" is not a number and true is not a count.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
