"""What every kind of feature has, and what several kinds have. No TensorFlow here."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from towers.config.section import Count, Name, Section, Share

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


class Pooled(FeatureSection):
    """Several values, whose embeddings become one vector."""

    pooling: Literal["mean", "sqrt", "attention"] = Field(
        "mean", description="divide the sum by the count, by its square root, or weigh the values by attention"
    )


class OfTaken(FeatureSection):
    """What the query took earlier, newest last."""

    describes: ClassVar = ("query",)
    of_events: ClassVar = True

    max_length: Count = Field(50, description="maximum items, the most recent")
    events: tuple[Name, ...] = Field((), description="only events of these types; empty takes all")
    item_features: tuple[Name, ...] = Field((), description="item columns whose vectors each item's vector includes")
    share_item_table: bool = Field(True, description="read the candidate tower's own item id embeddings")

    def ids_of(self, side: Side) -> Side | None:
        """The candidates', if it shares their table."""
        return "candidate" if self.share_item_table else None

    def conflicts(self, side: Side) -> Iterator[str]:
        """Yields columns that would count twice."""
        for name in sorted({name for name in self.item_features if self.item_features.count(name) > 1}):
            yield f"item_features: names {name!r} twice; once is enough"
