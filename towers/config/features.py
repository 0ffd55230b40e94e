"""The settings of each kind of feature: one section of a recipe each. No TensorFlow here."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from towers.config.section import Count, NonNegative, Positive, Section, Share

WINDOW, COMPANIONS = 5, 10  # for items taken next to each other: largest distance in places, and companions per item

Window = Count | Literal["list"]


class _Feature(Section):
    column: str | None = Field(None, description="the column it reads; by default the feature's own name")
    mask_share: Share = Field(0.0, description="share of examples that train as if the value were missing")
    dimension: Count | None = Field(
        None, description="width of its vector; by default model.dimension; features that share a table share it"
    )


class _Pooled(_Feature):
    pooling: Literal["mean", "sqrt", "attention"] = Field(
        "mean", description="divide the sum by the count, by its square root, or weigh the values by attention"
    )


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
    """A number, standardised by the mean and deviation of the data set; a missing one has its own direction."""

    kind: Literal["numeric"]
    log: bool = Field(False, description="take sign(x) log(1 + |x|) first")


class VectorFeature(_Feature):
    """Numbers of one length, such as the embedding of a text, each standardised, times a trained matrix.

    A missing one has its own direction.
    """

    kind: Literal["vector"]


class MultiFeature(_Pooled):
    """Several values of one vocabulary, their embeddings pooled."""

    kind: Literal["multi"]
    max_values: Count = 100_000
    max_length: Count = 16
    oov_buckets: Count = 1


class TextFeature(_Pooled):
    """Lower-cased word tokens of a text, their embeddings pooled."""

    kind: Literal["text"]
    max_values: Count = 50_000
    max_length: Count = 16
    oov_buckets: Count = 1_000


class HistoryFeature(_Pooled):
    """The query's earlier items, newest last, their embeddings pooled."""

    kind: Literal["history"]
    max_length: Count = 50
    share_item_table: bool = Field(True, description="pool the candidate tower's own item id embeddings")
    window: Literal["earlier", "others"] = Field(
        "earlier", description="which of a user's training events an example sees: the earlier ones, or all others"
    )


class NeighboursFeature(_Feature):
    """One hop of the user-item graph: the items a user took or, on the candidate side, the users who took an item.

    Pooled as ``w sum_j r_j e_j / sqrt(d d_j)`` over the other side's id embeddings, d and d_j numbers of neighbours;
    r_j, with mean 1, weighs a user's recent items more (`recency`). With `cooccurrence` c each pooled item is
    ``e_j + c sum_k a_jk e_k``, itself and the items that users take next to it (`CooccurrenceFeature`).
    """

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


class CooccurrenceFeature(_Feature):
    """The items that users take next to an item, by the order of the events or without it; for candidates only.

    Pooled as ``w sum_j a_ij e_j`` over item id embeddings; ``a_ij = c_ij / sqrt(c_i c_j)`` of counts c_ij that grow by
    1/d for i and j that are d places apart in a user's list, c_i their sum (`towers.features.cooccurrence`).
    """

    kind: Literal["cooccurrence"]
    max_length: Count = Field(COMPANIONS, description="maximum companions per item, those with the largest a_ij")
    window: Window = Field(
        WINDOW,
        description="maximum distance in places at which two items are next to each other; 'list': all items of a user "
        "are, each pair of n by 1 / log(e + n), and no order is read",
    )
    weight: Positive = Field(1.0, description="weight w of the sum beside the other features")


class SequenceFeature(_Feature):
    """The query's earlier items in order, newest last, by self-attention."""

    kind: Literal["sequence"]
    max_length: Count = Field(50, description="maximum items, the most recent")
    blocks: Count = Field(2, description="attention and feed-forward layers, one after another")
    heads: Count = Field(1, description="of each attention layer; divides the width of the vector")
    dropout: Share = Field(0.1, description="share of the numbers between layers that training sets to zero")
    time_gaps: bool = Field(False, description="also read the time since the item before, in powers of two of a second")
    gap_mask_share: Share = Field(
        0.2, description="share of the histories that train without their time gaps, as in a request without times"
    )
    share_item_table: bool = Field(True, description="read the candidate tower's own item id embeddings")


class ClockFeature(_Feature):
    """Hour of the day or day of the week (Monday = 0) of the event, in `data.time_zone`."""

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
    changes: dict[Literal["query", "candidate"], dict[str, Change]] | None = Field(
        None, description="of the sides with derive = true, as they were written"
    )

    @model_validator(mode="before")
    @classmethod
    def _set_changes_apart(cls, raw: Any) -> Any:
        if not isinstance(raw, Mapping):
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


def side_of_ids(side: str, feature: Feature) -> str | None:
    """The side whose ids a feature consists of, "query" or "candidate": it reads their table if they are a feature.

    None for a feature with a table of its own, or none.
    """
    match feature.kind:
        case "cooccurrence":
            return side
        case "neighbours":
            return "candidate" if side == "query" else "query"
        case "history" | "sequence" if feature.share_item_table:
            return "candidate"
        case _:
            return None
