"""What can be set on each kind of feature: one section of a recipe each. No TensorFlow here.

In: nothing. Out: `Feature`, the union by `kind`.
"""

from typing import Annotated, Literal

from pydantic import Field

from towers.section import Count, Section, Share


class _Feature(Section):
    column: str | None = Field(None, description="the column it reads; by default the feature's own name")
    mask_share: Share = Field(0.0, description="share of examples that train as if the value were missing")


class IdFeature(_Feature):
    """One embedding row per id seen in training; an unknown id counts as missing."""

    kind: Literal["id"]
    min_count: Count = Field(1, description="ids with fewer training events get no row of their own")


class CategoricalFeature(_Feature):
    """One embedding row per value of a vocabulary, and hashed rows for values outside it."""

    kind: Literal["categorical"]
    max_values: Count = 100_000
    oov_buckets: Count = 1


class HashedFeature(_Feature):
    """Values hashed into a fixed number of embedding rows: no vocabulary, collisions instead."""

    kind: Literal["hashed"]
    buckets: Count = 10_000


class NumericFeature(_Feature):
    """A number, standardised by the mean and deviation of the data set; a missing one has a direction of its own."""

    kind: Literal["numeric"]
    log: bool = Field(False, description="take sign(x) log(1 + |x|) first")


class MultiFeature(_Feature):
    """Several values of one vocabulary, embeddings averaged."""

    kind: Literal["multi"]
    max_values: Count = 100_000
    max_length: Count = 16
    oov_buckets: Count = 1


class TextFeature(_Feature):
    """Lower-cased word tokens of a text, embeddings averaged."""

    kind: Literal["text"]
    max_values: Count = 50_000
    max_length: Count = 16
    oov_buckets: Count = 1_000


class HistoryFeature(_Feature):
    """The query's earlier items, newest last, embeddings pooled."""

    kind: Literal["history"]
    max_length: Count = 50
    pooling: Literal["mean", "sqrt"] = Field("mean", description="divide the sum by the count, or by its square root")
    share_item_table: bool = Field(True, description="pool the candidate tower's own item id embeddings")


class ClockFeature(_Feature):
    """Hour of the day or day of the week (UTC, Monday = 0) of the event; a request sends it as an integer."""

    kind: Literal["hour", "weekday"]


Feature = Annotated[
    IdFeature
    | CategoricalFeature
    | HashedFeature
    | NumericFeature
    | MultiFeature
    | TextFeature
    | HistoryFeature
    | ClockFeature,
    Field(discriminator="kind"),
]
