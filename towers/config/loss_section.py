"""The settings that every loss shares, and what the rest of the library must know about a loss. No TensorFlow here."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

from pydantic import Field

from towers.config.section import Count, Positive, Section, Share

if TYPE_CHECKING:
    from towers.config.recipe import Config

Strength = Annotated[float, Field(ge=0, le=1, description="strength c of the logQ correction: s - c log Q")]
Smoothing = Annotated[Share, Field(description="share of the label that is spread evenly over the candidates")]
Sigmoid = Annotated[Share, Field(description="share e of every label that becomes e / 2: l (1 - e) + e / 2")]
Margin = Annotated[float, Field(ge=0, description="margin m")]
Scale = Annotated[Positive, Field(description="scale g of the unscaled similarity or distance")]


class Loss(Section):
    """The settings that every loss shares, and what the rest of the library must know about it.

    Attributes:
        formula: the loss of one example.
        paper: its source.
        own_scale: it uses the unscaled similarity, so a temperature is an error.
        samples: it takes negatives from a sampler.
        graded: it learns from labels (the events' weights).
        one_sum: all its negatives stand in one log-sum-exp, which impressions can join.
        needs_cosine: why it needs `model.similarity = "cosine"`; empty if the dot product works too.
        whole_catalogue: it scores every item, from vectors; the others are functions of scores.
    """

    formula: ClassVar[str]
    paper: ClassVar[str]
    own_scale: ClassVar[bool] = False
    samples: ClassVar[bool] = False
    graded: ClassVar[bool] = False
    one_sum: ClassVar[bool] = False
    needs_cosine: ClassVar[str] = ""
    whole_catalogue: ClassVar[bool] = False

    bottleneck: float = Field(0.0, ge=0, description="beta of the information bottleneck: adds beta * KL(z | N(0, 1))")
    matryoshka: tuple[Count, ...] = Field(
        (), description="widths below model.dimension: the loss is the mean over the vectors cut to each, and whole"
    )

    @property
    def positives(self) -> int:
        """Positives K of one example."""
        return 1

    @property
    def of_users(self) -> bool:
        """Whether an example is a user, with all of their items as positives."""
        return False

    @property
    def contrasts(self) -> bool:
        """Whether a contrast of items goes with it: an example has single items, and their scores a temperature."""
        return not (self.own_scale or self.graded or self.of_users)

    @property
    def inputs(self) -> tuple[str, ...]:
        """What its function takes beside scores and options.

        Of ``labels, log_z, catalogue, margin, same_query, own_column``.
        """
        return ("labels",) if self.graded else ()

    @property
    def largest_label(self) -> float:
        """The labels are divided by it."""
        return 1.0

    @property
    def sampled(self) -> "SampledLoss | None":
        """Itself with its settings of the negatives if it takes them from a sampler, else None."""
        return None

    @property
    def sums_only(self) -> bool:
        """Whether it is softmax and needs nothing of the negatives but their sum: no scores [B, M] are kept."""
        return False

    def conflicts(self, recipe: "Config") -> Iterator[str]:
        """Yields what in the rest of the recipe this loss cannot go with: the key, the reason, a remedy."""
        yield from ()

    def with_labels_up_to(self, largest: float) -> Self:
        """The section for labels of which this is the largest.

        Raises:
            ValueError: an option does not allow such a label.
        """
        return self

    def over_centres(self) -> "Loss":
        """The loss for `task = "similarity"` with class centres as candidates."""
        return self


class SampledLoss(Loss):
    """A loss over a positive and the negatives that a sampler draws."""

    samples: ClassVar[bool] = True

    positives_per_query: Count = Field(1, description="the example's item and the user's next ones, averaged over")
    remove_accidental_hits: bool = Field(True, description="a negative equal to a positive gets probability 0")
    known_positives: int = Field(
        0, ge=0, description="number of the user's other training events whose items also get probability 0"
    )
    hardest_negatives: Count | None = Field(
        None, description="keep only this many, those with the highest corrected logits; Q is then no longer exact"
    )
    impressions: int = Field(
        0, ge=0, description="at most this many items that the user was shown and did not take are negatives, too"
    )
    impression_weight: Positive = Field(1.0, description="factor w of the term of each in the sum of the negatives")
    impression_request: str | None = Field(
        None, description="event column of a request's name: an example has the impressions of its own request alone"
    )

    @property
    def positives(self) -> int:
        """Positives K of one example."""
        return self.positives_per_query

    @property
    def sampled(self) -> "SampledLoss":
        """Itself."""
        return self

    @property
    def strength(self) -> float:
        """c / g: the logQ correction in the unit of the scores."""
        return float(getattr(self, "correction", 0.0)) / float(getattr(self, "scale", 1.0))
