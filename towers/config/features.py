"""The settings of each kind of feature: one section of a recipe each. No TensorFlow here."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field

from towers.config.feature_section import FeatureSection, OfOrder, OfTaken, Pooled, Side
from towers.config.section import Count, NonNegative, Positive, Share, Window

WINDOW, COMPANIONS = 5, 10  # for items taken next to each other: largest distance in places, and companions per item


class IdFeature(FeatureSection):
    """One embedding row per id seen in training; an unknown id counts as missing."""

    kind: Literal["id"]
    min_count: Count = Field(1, description="ids with fewer training events get no row of their own")
    start: Literal["random", "cooccurrence"] = Field(
        "random", description="rows before the first step; 'cooccurrence': alike for items that users take together"
    )
    start_window: Window = Field(WINDOW, description="as `window` of kind cooccurrence")

    def conflicts(self, side: Side) -> Iterator[str]:
        """Yields a start that users do not have, and a window without it."""
        if self.start != "random" and side == "query":
            yield "start: is about the items that users take; leave it out, or set it for the candidates' ids"
        if self.start == "random" and self.start_window != WINDOW:
            yield "start_window: only start = 'cooccurrence' reads it; leave it out"

    def of_order(self) -> Iterator[OfOrder]:
        """Yields the distance at which items are next to each other."""
        yield "start_window", self.start_window if self.start == "cooccurrence" else "list", "list"


class CategoricalFeature(FeatureSection):
    """One embedding row per value of a vocabulary, and hashed rows for values outside it."""

    reads: ClassVar = ("string", "number")

    kind: Literal["categorical"]
    max_values: Count = 100_000
    oov_buckets: Count = 1


class HashedFeature(FeatureSection):
    """Values hashed into a fixed number of embedding rows: no vocabulary, collisions instead."""

    reads: ClassVar = ("string", "number")

    kind: Literal["hashed"]
    buckets: Count = 10_000


class NumericFeature(FeatureSection):
    """A number, standardised by the mean and deviation of the data set; a missing one has its own direction."""

    reads: ClassVar = ("number",)

    kind: Literal["numeric"]
    log: bool = Field(False, description="take sign(x) log(1 + |x|) first")


class VectorFeature(FeatureSection):
    """Numbers of one length, such as the embedding of a text, each standardised, times a trained matrix.

    A missing one has its own direction.
    """

    reads: ClassVar = ("vector",)

    kind: Literal["vector"]


class MultiFeature(Pooled):
    """Several values of one vocabulary, their embeddings pooled."""

    reads: ClassVar = ("list",)

    kind: Literal["multi"]
    max_values: Count = 100_000
    max_length: Count = 16
    oov_buckets: Count = 1


class TextFeature(Pooled):
    """Lower-cased word tokens of a text, their embeddings pooled."""

    reads: ClassVar = ("string", "list")

    kind: Literal["text"]
    max_values: Count = 50_000
    max_length: Count = 16
    oov_buckets: Count = 1_000


class HistoryFeature(OfTaken, Pooled):
    """The query's earlier items, newest last, their embeddings pooled."""

    kind: Literal["history"]
    window: Literal["earlier", "others"] = Field(
        "earlier", description="which of a user's training events an example sees: the earlier ones, or all others"
    )


class NeighboursFeature(FeatureSection):
    """One hop of the user-item graph: the items a user took or, on the candidate side, the users who took an item.

    Pooled as ``w sum_j r_j e_j / sqrt(d d_j)`` over the other side's id embeddings, d and d_j numbers of neighbours;
    r_j, with mean 1, weighs a user's recent items more (`recency`). With `cooccurrence` c each pooled item is
    ``e_j + c sum_k a_jk e_k``, itself and the items that users take next to it (`CooccurrenceFeature`).
    """

    of_events: ClassVar = True

    kind: Literal["neighbours"]
    max_length: Count = Field(1_000, description="maximum neighbours per node; the most recent are kept")
    window: Literal["earlier", "all"] | None = Field(
        None,
        description="which of a user's training events an example pools: the earlier ones, or all, the example's own "
        "and later ones among them; must be named for users in timed data, and is for users only",
    )
    weight: Positive = Field(1.0, description="weight w of the sum beside the other features")
    recency: float = Field(
        1.0,
        ge=1,
        le=1e6,
        description="R: a user's n items, the oldest first, weigh as R^(0/n), R^(1/n) ...; for users only",
    )
    cooccurrence: NonNegative = Field(
        0.0, description="weight c, in a pooled item's vector, of what users take next to it; for users only"
    )
    cooccurrence_window: Window = Field(WINDOW, description="as `window` of kind cooccurrence")

    def ids_of(self, side: Side) -> Side | None:
        """The other side's."""
        return "candidate" if side == "query" else "query"

    def conflicts(self, side: Side) -> Iterator[str]:
        """Yields what only a user's items have."""
        if side == "query":
            return
        if self.recency > 1:
            yield "recency: an item's users have no order in time; leave it out"
        if self.window == "earlier":
            yield (
                "window: an item has one vector for all examples of a batch, so it pools all of its users; leave it out"
            )
        if self.cooccurrence:
            yield (
                "cooccurrence: is about the items that users take; leave it out, or add a feature of kind = "
                "'cooccurrence'"
            )

    def of_order(self) -> Iterator[OfOrder]:
        """Yields recency, and the distance at which items are next to each other."""
        yield "recency", self.recency, 1
        yield "cooccurrence_window", self.cooccurrence_window if self.cooccurrence else "list", "list"


class CooccurrenceFeature(FeatureSection):
    """The items that users take next to an item, by the order of the events or without it; for candidates only.

    Pooled as ``w sum_j a_ij e_j`` over item id embeddings; ``a_ij = c_ij / sqrt(c_i c_j)`` of counts c_ij that grow by
    1/d for i and j that are d places apart in a user's list, c_i their sum (`towers.features.cooccurrence`).
    """

    describes: ClassVar = ("candidate",)
    of_events: ClassVar = True

    kind: Literal["cooccurrence"]
    max_length: Count = Field(COMPANIONS, description="maximum companions per item, those with the largest a_ij")
    window: Window = Field(
        WINDOW,
        description="maximum distance in places at which two items are next to each other; 'list': all items of a user "
        "are, each pair of n by 1 / log(e + n), and no order is read",
    )
    weight: Positive = Field(1.0, description="weight w of the sum beside the other features")

    def ids_of(self, side: Side) -> Side | None:
        """Its own side's."""
        return side


class SequenceFeature(OfTaken):
    """The query's earlier items in order, newest last, by self-attention."""

    kind: Literal["sequence"]
    blocks: Count = Field(2, description="attention and feed-forward layers, one after another")
    heads: Count = Field(1, description="of each attention layer; divides the width of the vector")
    dropout: Share = Field(0.1, description="share of the numbers between layers that training sets to zero")
    forward: Literal["relu", "swiglu"] = Field("relu", description="what the feed-forward layers do between matrices")
    gated: bool = Field(False, description="multiply what a layer adds to its input h by sigmoid(W h), as LiGR does")
    positions: Literal["absolute", "distance"] = Field(
        "absolute", description="add a vector for each position to the items, or a number for each distance to scores"
    )
    time_gaps: bool = Field(False, description="also read the time since the item before, in powers of two of a second")
    gap_mask_share: Share = Field(
        0.2, description="share of the histories that train without their time gaps, as in a request without times"
    )

    def conflicts(self, side: Side) -> Iterator[str]:
        """Yields a share of time gaps without them, too."""
        yield from super().conflicts(side)
        if not self.time_gaps and self.differs("gap_mask_share"):
            yield "gap_mask_share: only time_gaps = true reads it; leave it out"


class ClockFeature(FeatureSection):
    """Hour of the day or day of the week (Monday = 0) of the event, in `data.time_zone`."""

    describes: ClassVar = ("query",)

    kind: Literal["hour", "weekday"]


Feature = Annotated[
    IdFeature
    | CategoricalFeature
    | HashedFeature
    | NumericFeature
    | VectorFeature
    | MultiFeature
    | TextFeature
    | HistoryFeature
    | NeighboursFeature
    | CooccurrenceFeature
    | SequenceFeature
    | ClockFeature,
    Field(discriminator="kind"),
]
KINDS: dict[str, type[FeatureSection]] = {
    kind: each for each in get_args(get_args(Feature)[0]) for kind in get_args(each.model_fields["kind"].annotation)
}
