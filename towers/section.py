"""One section of a recipe: what every settings model shares. No TensorFlow here, so that reading a recipe is quick."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, lt=1)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Section(BaseModel):
    """One section of a recipe: frozen, and no key that it does not know."""

    # Strict: "3" is no number and true is no count.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
