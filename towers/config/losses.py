"""The name, settings and source of each loss: one section of a recipe each. No TensorFlow here.

`LossConfig` is the union by `name`. `towers.losses.registry` maps the names to functions.

Letters: u a query, y its positive, j a candidate; s_j the logit (similarity / temperature); cos_j the cosine; d a
distance; [x]+ = max(0, x); sig the logistic function; Q_j how often j is expected among the candidates, c the strength
of its correction ``s_j - c log Q_j``; g the loss's own scale; m a margin.
"""

from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field

from towers.config.loss_section import Loss, Margin, SampledLoss, Scale, Sigmoid, Smoothing, Strength
from towers.config.section import Count, Positive


class FullSoftmax(Loss):
    """Softmax over the whole catalogue."""

    formula: ClassVar = "-s_y + log sum_{j<=N} exp s_j"
    paper: ClassVar = "Bridle, Neurocomputing 1990; the reference for small catalogues"

    name: Literal["full_softmax"]
    block: Count = Field(8_192, description="items scored at once")
    label_smoothing: Smoothing = 0.0
    positives_per_query: Count = Field(1, description="the example's item and the user's next ones share the label")
    label_shares: Literal["equal", "weight"] = Field(
        "equal", description="how they share it: equally, or in proportion to their events' weights"
    )

    @property
    def positives(self) -> int:
        """Positives K of one example."""
        return self.positives_per_query


class SampledSoftmax(SampledLoss):
    """Softmax over the positive and sampled negatives."""

    formula: ClassVar = "-s_y + log sum_{j in {y} + samples} exp s_j, each s less c log Q"
    paper: ClassVar = "Jean et al., ACL 2015; Yi et al., RecSys 2019; excluded: Khrylchenko et al., RecSys 2025"

    name: Literal["sampled_softmax"]
    correction: Strength = 1.0
    positive: Literal["included", "excluded"] = Field(
        "included", description="excluded: the positive, which was not sampled, gets no correction, and is weighted"
    )
    label_smoothing: Smoothing = 0.0


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
    def strength(self) -> float:
        """Always 1: the logits of NCE are the corrected ones."""
        return 1.0


class Neg(SampledLoss):
    """Negative sampling."""

    formula: ClassVar = "-log sig(s_y) - sum_j log sig(-s_j)"
    paper: ClassVar = "Mikolov et al., NeurIPS 2013"

    name: Literal["neg"]
    label_smoothing: Sigmoid = 0.0


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


class AmSoftmax(SampledLoss):
    """Additive margin softmax."""

    formula: ClassVar = "log(1 + sum_j exp(g [cos_j + m - cos_y]))"
    paper: ClassVar = "Wang et al., Signal Processing Letters 2018"
    own_scale: ClassVar = True
    needs_cosine: ClassVar = "its margin is one of the cosine"

    name: Literal["am_softmax"]
    scale: Scale = 10.0
    margin: Margin = 0.1
    correction: Strength = 0.0
    label_smoothing: Smoothing = 0.0


class DistanceSoftmax(SampledLoss):
    """Softmax over distances, with a margin that can adapt to the width of the classes."""

    formula: ClassVar = "log(1 + sum_j exp(g [d_y + m - d_j])), d = sqrt(1 - cos)"
    paper: ClassVar = "sqrt(1 - cos) is a metric; after Wang et al., Signal Processing Letters 2018"
    own_scale: ClassVar = True
    needs_cosine: ClassVar = "its distance is sqrt(1 - cos)"

    name: Literal["distance_softmax"]
    scale: Scale = 10.0
    margin: Literal["adaptive"] | Margin = Field(
        0.1, description="margin m, or 'adaptive': the mean diameter of the classes, estimated as training goes"
    )
    margin_every: Count = Field(1, description="epochs between two estimates of an adaptive margin")
    margin_max: Positive = Field(0.5, description="bound of an adaptive margin")
    correction: Strength = 0.0
    label_smoothing: Smoothing = 0.0


class Triplet(SampledLoss):
    """Triplets of anchor, positive and negative."""

    formula: ClassVar = "[d_p - d_n + m]+ or [s_n - s_p + m]+; smooth: softplus(g (s_n - s_p + m))"
    paper: ClassVar = "Schroff et al., CVPR 2015; all of a batch: Hermans et al., 2017"
    own_scale: ClassVar = True

    name: Literal["triplet"]
    on: Literal["similarity", "euclidean", "sqrt_1_minus_cos"] = Field(
        "similarity", description="what the margin is measured on"
    )
    mining: Literal["all", "semi_hard", "hardest"] = Field(
        "all",
        description="all: the mean over all triplets; semi_hard: the hardest negative that is further than the "
        "positive but within the margin (all within it where there is none); hardest: only the hardest negative",
    )
    smooth: bool = Field(False, description="softplus instead of the hinge")
    scale: Scale = 10.0
    margin: Margin = 0.2


class Pair(SampledLoss):
    """The unified pair loss: every positive of an anchor against every negative."""

    formula: ClassVar = "log[1 + sum_{i<=K} sum_{j<=L} exp(g (s_n^j - s_p^i + m))]"
    paper: ClassVar = "Sun et al., CVPR 2020, eq. 1"
    own_scale: ClassVar = True

    name: Literal["pair"]
    scale: Scale = 10.0
    margin: Margin = 0.1
    correction: Strength = 0.0


class Circle(SampledLoss):
    """The pair loss with a separate pace for each similarity."""

    formula: ClassVar = "log[1 + sum_j exp(g a_n^j (s_n^j - D_n)) sum_i exp(-g a_p^i (s_p^i - D_p))]"
    paper: ClassVar = "Sun et al., CVPR 2020"
    own_scale: ClassVar = True
    needs_cosine: ClassVar = "its optima 1 + m and -m are cosines"

    name: Literal["circle"]
    scale: Scale = 20.0
    margin: Margin = 0.25
    positive_optimum: float | None = Field(None, description="O_p, by default 1 + m")
    negative_optimum: float | None = Field(None, description="O_n, by default -m")
    positive_delta: float | None = Field(None, description="D_p, by default 1 - m; 0 is the margin-free form")
    negative_delta: float | None = Field(None, description="D_n, by default m; 0 is the margin-free form")


class GradedHinge(Loss):
    """All ordered pairs of one graded list."""

    formula: ClassVar = "sum_{a,b} [l_a - l_b]+ [s_b - s_a + m]+ / (sum_{a,b} [l_a - l_b]+ + eps)"
    paper: ClassVar = "Herbrich et al., 2000, with pairs weighted by the difference of their grades"
    own_scale: ClassVar = True
    graded: ClassVar = True

    name: Literal["graded_hinge"]
    margin: Margin = 0.2
    pairs: Literal["list", "batch"] = Field("list", description="pairs inside one query's list, or of the whole batch")
    list_length: int = Field(8, ge=2, description="most items of one list: the example's item and the user's next ones")

    @property
    def positives(self) -> int:
        """Items of one list."""
        return self.list_length


class Ccl(SampledLoss):
    """Cosine contrastive loss."""

    formula: ClassVar = "[1 - cos_y]+ + w mean_j [cos_j - m]+"
    paper: ClassVar = "Mao et al., SimpleX, CIKM 2021"
    own_scale: ClassVar = True
    needs_cosine: ClassVar = "its margin is one of the cosine"

    name: Literal["ccl"]
    margin: Margin = 0.4
    negative_weight: Positive = Field(100.0, description="weight w of the negatives")


class Bsl(SampledLoss):
    """Bilateral softmax."""

    formula: ClassVar = "-s_y + t2 log mean_j exp s_j, or -log mean_{i in u's positives of the batch} exp s_i + ..."
    paper: ClassVar = "Wu et al., BSL, 2023"

    name: Literal["bsl"]
    positive_group: Literal["own", "batch"] = Field(
        "own", description="the own positive, or all of the user's in the batch"
    )
    negative_scale: Positive = Field(1.0, description="factor t2 of the negatives' term")
    correction: Strength = 0.0
    label_smoothing: Smoothing = 0.0


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
    | Bsl,
    Field(discriminator="name"),
]
LOSSES: tuple[type[Loss], ...] = get_args(get_args(LossConfig)[0])
