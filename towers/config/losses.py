"""The name, settings and source of each loss: one section of a recipe each. No TensorFlow here.

`LossConfig` is the union by `name`. `towers.losses.registry` maps the names to functions.

Letters: u a query, y its positive, j a candidate; s_j the logit (similarity / temperature); cos_j the cosine; d a
distance; [x]+ = max(0, x); sig the logistic function; Q_j how often j is expected among the candidates, c the strength
of its correction ``s_j - c log Q_j``; N the number of items, k of a query's negatives; g the loss's own scale; m a
margin.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self, get_args

from pydantic import Field

from towers.config.loss_section import Loss, SampledLoss, Sigmoid, Smoothing, Strength
from towers.config.margin_losses import AmSoftmax, Ccl, Circle, DistanceSoftmax, GradedHinge, Pair, Triplet
from towers.config.section import Count, Positive

if TYPE_CHECKING:
    from towers.config.recipe import Config


class FullSoftmax(Loss):
    """Softmax over the whole catalogue."""

    whole_catalogue: ClassVar = True
    formula: ClassVar = "-s_y + log sum_{j<=N} exp s_j"
    paper: ClassVar = "Bridle, Neurocomputing 1990; the reference for small catalogues"

    name: Literal["full_softmax"]
    block: Count = Field(8_192, description="items scored at once")
    label_smoothing: Smoothing = 0.0
    positives_per_query: Count = Field(1, description="the example's item and the user's next ones share the label")
    label_shares: Literal["equal", "weight"] = Field(
        "equal", description="how they share it: equally, or in proportion to their events' weights"
    )
    per_user: bool = Field(False, description="a user is one example: all their items are positives, none a negative")

    @property
    def positives(self) -> int:
        """Positives K of one example."""
        return self.positives_per_query

    @property
    def of_users(self) -> bool:
        """Whether an example is a user, with all of their items as positives."""
        return self.per_user

    def over_centres(self) -> Loss:
        """Softmax over all centres is the sampled one without a correction, every class a candidate."""
        return SampledSoftmax(name="sampled_softmax", correction=0.0, label_smoothing=self.label_smoothing)

    def conflicts(self, recipe: "Config") -> Iterator[str]:
        """Yields noise that an item would have as a positive and not among the others."""
        if recipe.task == "similarity":
            if recipe.similarity.against == "items":
                yield (
                    "similarity.against: full_softmax is a softmax over class centres; set it to 'centres', or take "
                    "pair"
                )
            return
        if self.label_shares != "equal" and self.positives_per_query == 1 and not self.per_user:
            yield "loss.label_shares: one positive has the whole label; set positives_per_query, or leave it out"
        for name, feature in (recipe.features.candidate or {}).items():
            if feature.mask_share:
                yield (
                    f"features.candidate.{name}.mask_share: full_softmax scores every item, and would mask one as a "
                    "positive and not among the others; set it to 0, or take sampled_softmax"
                )
        if recipe.model.candidate_dropout:
            yield (
                "model.candidate_dropout: full_softmax scores every item, and would drop numbers of one as a positive "
                "and not among the others; set it to 0, or take sampled_softmax"
            )


class SampledSoftmax(SampledLoss):
    """Softmax over the positive and sampled negatives."""

    formula: ClassVar = "-s_y + log sum_{j in {y} + samples} exp s_j, each s less c log Q"
    paper: ClassVar = "Jean et al., ACL 2015; Yi et al., RecSys 2019; excluded: Khrylchenko et al., RecSys 2025"
    one_sum: ClassVar = True

    name: Literal["sampled_softmax"]
    correction: Strength = 1.0
    positive: Literal["included", "excluded"] = Field(
        "included", description="excluded: the positive, which was not sampled, gets no correction, and is weighted"
    )
    label_smoothing: Smoothing = 0.0

    @property
    def sums_only(self) -> bool:
        """Unless an option looks at single negatives."""
        return self.positive == "included" and not self.label_smoothing and self.hardest_negatives is None

    def conflicts(self, recipe: "Config") -> Iterator[str]:
        """Yields what `positive = "excluded"` is not defined for."""
        if self.positive == "included" or recipe.negatives is None:
            return
        for key, part in recipe.negatives.by_key.items():
            if getattr(part, "distinct", False):
                yield f"{key}.distinct: positive = 'excluded' needs independent draws; set it to false"
        for key in ("hardest_negatives", "known_positives"):
            if getattr(self, key):
                yield f"loss.{key}: positive = 'excluded' counts all its negatives; leave it out"
        if self.correction != 1:
            yield f"loss.correction: positive = 'excluded' is defined with 1; got {self.correction:g}"
        if self.impressions:
            yield "loss.impressions: positive = 'excluded' estimates log P, which they bias; leave one of them out"
        if not self.remove_accidental_hits:
            yield "loss.remove_accidental_hits: positive = 'excluded' is defined without hits; set it to true"


class Nce(SampledLoss):
    """Noise-contrastive estimation."""

    formula: ClassVar = "-log sig(s_y - log Z - log Q_y) - sum_j log sig(-(s_j - log Z - log Q_j))"
    paper: ClassVar = "Gutmann & Hyvarinen, AISTATS 2010; Mnih & Teh, ICML 2012"

    name: Literal["nce"]
    log_z: Literal["learned", "per_query"] | float = Field(
        "learned",
        description="log Z: 'learned' (one scalar) or 'per_query' (linear in the query), both from log N; or a number",
    )
    label_smoothing: Sigmoid = 0.0

    @property
    def inputs(self) -> tuple[str, ...]:
        """log Z."""
        return ("log_z",)

    @property
    def strength(self) -> float:
        """Always 1: the logits of NCE are the corrected ones."""
        return 1.0


class Neg(SampledLoss):
    """Negative sampling."""

    formula: ClassVar = "-log sig(s_y) - sum_j log sig(-s_j)"
    paper: ClassVar = "Mikolov et al., NeurIPS 2013"

    name: Literal["neg"]
    label_smoothing: Sigmoid = 0.0


class Gbce(SampledLoss):
    """Generalised binary cross-entropy."""

    formula: ClassVar = "-beta log sig(s_y) - sum_j log sig(-s_j), beta = 1 - t (1 - k / (N - 1))"
    paper: ClassVar = "Petrov & Macdonald, gSASRec, RecSys 2023"

    name: Literal["gbce"]
    calibration: float = Field(0.75, ge=0, le=1, description="t: 0 is neg; 1 weighs the positive by beta = k / (N - 1)")

    @property
    def inputs(self) -> tuple[str, ...]:
        """N."""
        return ("catalogue",)


class Bce(Loss):
    """Pointwise cross-entropy on labelled impressions."""

    formula: ClassVar = "-l log sig(s) - (1 - l) log sig(-s), l the label in [0, 1]"
    paper: ClassVar = "He et al., WWW 2017"
    graded: ClassVar = True

    name: Literal["bce"]
    max_label: Positive | None = Field(
        None, description="labels are divided by it; by default the largest of the training events"
    )
    label_smoothing: Sigmoid = 0.0

    @property
    def largest_label(self) -> float:
        """`max_label`."""
        return self.max_label or 1.0

    def with_labels_up_to(self, largest: float) -> Self:
        """Fills `max_label` in.

        Raises:
            ValueError: it is given and smaller.
        """
        if self.max_label is not None and self.max_label < largest:
            raise ValueError(
                f"loss.max_label: labels are divided by it and must not exceed 1, but the largest is {largest:g}; "
                f"got {self.max_label:g}"
            )
        return self.model_copy(update={"max_label": self.max_label or largest})


class Bsl(SampledLoss):
    """Bilateral softmax."""

    formula: ClassVar = "-s_y + t2 log mean_j exp s_j, or -log mean_{i in u's positives of the batch} exp s_i + ..."
    paper: ClassVar = "Wu et al., BSL, 2023"
    one_sum: ClassVar = True

    name: Literal["bsl"]
    positive_group: Literal["own", "batch"] = Field(
        "own", description="the own positive, or all of the user's in the batch"
    )
    negative_scale: Positive = Field(1.0, description="factor t2 of the negatives' term")
    correction: Strength = 0.0
    label_smoothing: Smoothing = 0.0

    @property
    def inputs(self) -> tuple[str, ...]:
        """Which queries of the batch are of one user."""
        return ("same_query", "own_column") if self.positive_group == "batch" else ()

    def conflicts(self, recipe: "Config") -> Iterator[str]:
        """Yields what hides positives among the candidates, or an item of the batch."""
        if not self.remove_accidental_hits:
            yield "loss.remove_accidental_hits: bsl never counts the positive among its negatives; set it to true"
        if self.positive_group == "own" or recipe.negatives is None:
            return
        if recipe.negatives.name != "in_batch":
            yield "loss.positive_group: 'batch' takes positives from the candidates; it needs sampler.name = 'in_batch'"
        if self.hardest_negatives is not None:
            yield "loss.hardest_negatives: positive_group = 'batch' needs every item of the batch; leave it out"
        if self.positives_per_query > 1:
            yield "loss.positives_per_query: positive_group = 'batch' finds the others in the batch; leave it out"


LossConfig = Annotated[
    FullSoftmax
    | SampledSoftmax
    | Nce
    | Neg
    | Bce
    | AmSoftmax
    | DistanceSoftmax
    | Triplet
    | Pair
    | Circle
    | GradedHinge
    | Ccl
    | Bsl
    | Gbce,
    Field(discriminator="name"),
]
LOSSES: tuple[type[Loss], ...] = get_args(get_args(LossConfig)[0])
