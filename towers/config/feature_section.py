"""What every kind of feature has. No TensorFlow here."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from towers.config.section import Count, Section, Share

Side = Literal["query", "candidate"]
# A setting that depends on the order of events, its value, and the value that does not.
OfOrder = tuple[str, float | str, int | str]


class FeatureSection(Section):
    """What every kind has.

    Attributes:
        reads: the types of columns that it can read; none: it reads the events themselves.
        describes: which sides' features it can be.
        of_events: whether it is made of what users took, also for an item.
    """

    reads: ClassVar[tuple[str, ...]] = ()
    describes: ClassVar[tuple[Side, ...]] = ("query", "candidate")
    of_events: ClassVar[bool] = False

    column: str | None = Field(None, description="the column it reads; by default the feature's own name")
    mask_share: Share = Field(0.0, description="share of examples that train as if the value were missing")
    dimension: Count | None = Field(
        None, description="width of its vector; by default model.dimension; features that share a table share it"
    )

    def ids_of(self, side: Side) -> Side | None:
        """The side whose ids it consists of as a feature of `side`: it reads their table if they are a feature.

        None for a feature with a table of its own, or none.
        """
        return None

    def conflicts(self, side: Side) -> Iterator[str]:
        """Yields each of its settings that makes no sense on that side or beside another one, and why."""
        yield from ()

    def of_order(self) -> Iterator[OfOrder]:
        """Yields each setting that depends on the order of a user's events."""
        yield from ()
