"""The name, settings and source of each sampler: one section of a recipe each. No TensorFlow here.

`SamplerConfig` is the union by `name`. `towers.samplers.registry` builds the samplers.

Letters: c a class, that is the rank of an item by falling number of training examples; N their number; q_c the
probability that one draw gives c; Q_c how often c is expected among the k drawn.
"""

from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field, model_validator

from towers.config.section import Count, Section


class Sampler(Section):
    """What the rest of the library must know about a sampler.

    Attributes:
        formula: P(class) of one draw.
        paper: its source.
    """

    formula: ClassVar[str]
    paper: ClassVar[str]

    @property
    def by_key(self) -> "dict[str, Sampler]":
        """The samplers that draw, by key of the recipe: itself, or the parts of a mixture."""
        return {"sampler": self}

    @property
    def draws_every_item(self) -> bool:
        """Whether each item of the training events may be drawn, also one that no example is to find."""
        return True


class Drawing(Sampler):
    """A sampler that draws negatives of its own, shared by the whole batch."""

    negatives: Count = Field(4_096, description="k, negatives drawn for each batch and shared by it")
    distinct: bool = Field(False, description="draw until k are distinct; False draws with replacement")


class InBatch(Sampler):
    """The batch's own items."""

    formula: ClassVar = "count_c / sum count; Q = B q"
    paper: ClassVar = "Yi et al., RecSys 2019"

    name: Literal["in_batch"]
    frequencies: Literal["training", "learned"] = Field(
        "training", description="q from the training counts, or counted as examples pass (for a stream)"
    )
    distinct: bool = Field(False, description="of an item's copies in a batch only one counts")

    @property
    def draws_every_item(self) -> bool:
        """No: those that examples are to find."""
        return False


class Uniform(Drawing):
    """All trained items with equal probability."""

    formula: ClassVar = "1 / N"
    paper: ClassVar = "Bengio & Senecal, AISTATS 2003"

    name: Literal["uniform"]


class LogUniform(Drawing):
    """Log-uniform by rank."""

    formula: ClassVar = "(log(c+2) - log(c+1)) / log(N+1)"
    paper: ClassVar = "TensorFlow's log_uniform_candidate_sampler; Zipf 1949"

    name: Literal["log_uniform"]


class LearnedUnigram(Drawing):
    """By counts learned during training."""

    formula: ClassVar = "count_c / sum count, from 1 each, one more for each positive seen"
    paper: ClassVar = "TensorFlow's learned_unigram_candidate_sampler"

    name: Literal["learned_unigram"]
    capacity: Count = Field(
        50_000_000, description="positives counted, the latest ones: 4 bytes each, at most those of the whole run"
    )


class Unigram(Drawing):
    """By a power of the training counts."""

    formula: ClassVar = "count_c^power / sum count^power"
    paper: ClassVar = "Mikolov et al., NeurIPS 2013; alias table: Walker 1977, Vose 1991"

    name: Literal["unigram"]
    power: float = Field(0.75, ge=0, le=2, description="1 is the frequency itself, 0 is uniform")

    @property
    def draws_every_item(self) -> bool:
        """An item without an example has a count of 0."""
        return self.power == 0


Single = InBatch | Uniform | LogUniform | LearnedUnigram | Unigram
Part = Annotated[Single, Field(discriminator="name")]


class Mixed(Sampler):
    """Several samplers combined."""

    formula: ClassVar = "Q_c = sum of the parts' Q_c"
    paper: ClassVar = "Yang et al., Mixed negative sampling, WWW 2020"

    name: Literal["mixed"]
    parts: tuple[Part, ...] = Field(description="sampler sections; the share of each is its number of negatives")

    @property
    def by_key(self) -> dict[str, Sampler]:
        """Its parts."""
        return {f"sampler.parts.{number}": part for number, part in enumerate(self.parts)}

    @property
    def draws_every_item(self) -> bool:
        """Whether one of its parts does."""
        return any(part.draws_every_item for part in self.parts)

    @model_validator(mode="after")
    def _parts_make_a_mixture(self) -> "Mixed":
        if len(self.parts) < 2:
            raise ValueError(f"parts: a mixture needs at least 2 samplers; got {len(self.parts)}")
        if sum(part.name == "in_batch" for part in self.parts) > 1:
            raise ValueError("parts: a mixture can hold in_batch only once, as the batch has its items only once")
        return self


SamplerConfig = Annotated[Single | Mixed, Field(discriminator="name")]
SAMPLERS: tuple[type[Sampler], ...] = get_args(get_args(SamplerConfig)[0])
