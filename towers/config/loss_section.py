"""The settings that every loss shares, and what the rest of the library must know about a loss. No TensorFlow here."""

from typing import Annotated, ClassVar

from pydantic import Field

from towers.config.section import Count, Positive, Section, Share

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
        needs_cosine: why it needs `model.similarity = "cosine"`; empty if the dot product works too.
    """

    formula: ClassVar[str]
    paper: ClassVar[str]
    own_scale: ClassVar[bool] = False
    samples: ClassVar[bool] = False
    graded: ClassVar[bool] = False
    needs_cosine: ClassVar[str] = ""

    bottleneck: float = Field(0.0, ge=0, description="beta of the information bottleneck: adds beta * KL(z | N(0, 1))")

    @property
    def positives(self) -> int:
        """Positives K of one example."""
        return 1


class SampledLoss(Loss):
    """A loss over a positive and the negatives that a sampler draws."""

    samples: ClassVar[bool] = True

    positives_per_query: Count = Field(1, description="the example's item and the user's next ones, averaged over")
    remove_accidental_hits: bool = Field(True, description="a negative equal to a positive gets probability 0")
    known_positives: int = Field(
        0, ge=0, description="so many of the user's other training items get probability 0, too"
    )
    hardest_negatives: Count | None = Field(
        None, description="keep only so many, those of the highest corrected logits; Q is then no longer exact"
    )

    @property
    def positives(self) -> int:
        """Positives K of one example."""
        return self.positives_per_query

    @property
    def strength(self) -> float:
        """c / g: the logQ correction in the unit of the scores."""
        return float(getattr(self, "correction", 0.0)) / float(getattr(self, "scale", 1.0))
