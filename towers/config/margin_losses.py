"""The losses with a margin: one section of a recipe each; letters as in `towers.config.losses`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from towers.config.loss_section import Loss, Margin, SampledLoss, Scale, Smoothing, Strength
from towers.config.section import Count, Positive

if TYPE_CHECKING:
    from towers.config.recipe import Config

MOST_TRIPLETS = 400  # items of a batch whose triplets are all compared: a tensor of 256 MB
MOST_PAIRED = 8_192  # items of a batch whose pairs are all compared: likewise


class AmSoftmax(SampledLoss):
    """Additive margin softmax."""

    formula: ClassVar = "log(1 + sum_j exp(g [cos_j + m - cos_y]))"
    paper: ClassVar = "Wang et al., Signal Processing Letters 2018"
    one_sum: ClassVar = True
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
    one_sum: ClassVar = True
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

    @property
    def inputs(self) -> tuple[str, ...]:
        """An adaptive margin."""
        return ("margin",) if self.margin == "adaptive" else ()

    def conflicts(self, recipe: "Config") -> Iterator[str]:
        """Yields options of a margin that is not there, or that nothing could estimate."""
        if self.margin != "adaptive":
            for key in ("margin_every", "margin_max"):
                if self.differs(key):
                    yield f"loss.{key}: only margin = 'adaptive' reads it; got margin = {self.margin:g}"
        elif self.margin_every > recipe.train.epochs:
            yield (
                f"loss.margin_every: the margin would stay 0, as training ends before: train.epochs = "
                f"{recipe.train.epochs}; got {self.margin_every}"
            )
        if self.hardest_negatives is not None and self.correction:
            yield "loss.hardest_negatives: with a correction the nearest is not the hardest; leave one of them out"
        if self.margin == "adaptive" and recipe.task == "similarity" and recipe.similarity.against == "items":
            yield (
                "loss.margin: 'adaptive' is the width of classes around their centres; set similarity.against = "
                "'centres'"
            )


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

    def conflicts(self, recipe: "Config") -> Iterator[str]:
        """Yields a scale that nothing reads, a distance that is not served, and more triplets than fit in memory."""
        if self.on != "similarity" and recipe.model.similarity == "dot":
            yield (
                f"model.similarity: triplet needs 'cosine': {self.on} ranks as the served dot product does only "
                "between vectors of length one"
            )
        if not self.smooth and self.differs("scale"):
            yield "loss.scale: only smooth = true reads it; leave it out, or set loss.smooth = true"
        everything = recipe.task == "similarity" and recipe.similarity.against == "items" and self.mining != "hardest"
        if everything and recipe.train.batch_size > MOST_TRIPLETS:
            yield (
                f"train.batch_size: loss.mining = '{self.mining}' compares all triplets of a batch, batch_size^3 of "
                f"them; with similarity.against = 'items' at most {MOST_TRIPLETS}, or loss.mining = 'hardest'; got "
                f"{recipe.train.batch_size}"
            )


class Pair(SampledLoss):
    """The unified pair loss: every positive of an anchor against every negative."""

    formula: ClassVar = "log[1 + sum_{i<=K} sum_{j<=L} exp(g (s_n^j - s_p^i + m))]"
    paper: ClassVar = "Sun et al., CVPR 2020, eq. 1"
    one_sum: ClassVar = True
    own_scale: ClassVar = True

    name: Literal["pair"]
    scale: Scale = 10.0
    margin: Margin = 0.1
    correction: Strength = 0.0


class Circle(SampledLoss):
    """The pair loss with a separate pace for each similarity."""

    formula: ClassVar = "log[1 + sum_j exp(g a_n^j (s_n^j - D_n)) sum_i exp(-g a_p^i (s_p^i - D_p))]"
    paper: ClassVar = "Sun et al., CVPR 2020"
    one_sum: ClassVar = True
    own_scale: ClassVar = True
    needs_cosine: ClassVar = "its optima 1 + m and -m are cosines"

    name: Literal["circle"]
    scale: Scale = 20.0
    margin: Margin = 0.25
    positive_optimum: float | None = Field(None, description="O_p, by default 1 + m")
    negative_optimum: float | None = Field(None, description="O_n, by default -m")
    positive_delta: float | None = Field(None, description="D_p, by default 1 - m; 0 is the margin-free form")
    negative_delta: float | None = Field(None, description="D_n, by default m; 0 is the margin-free form")

    def conflicts(self, recipe: "Config") -> Iterator[str]:
        """Yields a margin that nothing reads."""
        points = (self.positive_optimum, self.negative_optimum, self.positive_delta, self.negative_delta)
        if self.differs("margin") and None not in points:
            yield "loss.margin: the optima and deltas, all given, do not read it; leave one of them out"


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

    def conflicts(self, recipe: "Config") -> Iterator[str]:
        """Yields more pairs than fit in memory."""
        batch = recipe.train.batch_size
        if self.pairs == "batch" and self.list_length > MOST_PAIRED // 2:
            yield f"loss.list_length: with loss.pairs = 'batch' at most {MOST_PAIRED // 2:,}; got {self.list_length:,}"
        elif self.pairs == "batch" and batch * self.list_length > MOST_PAIRED:
            yield (
                "train.batch_size: loss.pairs = 'batch' compares every two items of a batch's lists; with "
                f"loss.list_length = {self.list_length} at most {MOST_PAIRED // self.list_length:,}, or loss.pairs = "
                f"'list'; got {batch:,}"
            )


class Ccl(SampledLoss):
    """Cosine contrastive loss."""

    formula: ClassVar = "[1 - cos_y]+ + w mean_j [cos_j - m]+"
    paper: ClassVar = "Mao et al., SimpleX, CIKM 2021"
    own_scale: ClassVar = True
    needs_cosine: ClassVar = "its margin is one of the cosine"

    name: Literal["ccl"]
    margin: Margin = 0.4
    negative_weight: Positive = Field(100.0, description="weight w of the negatives")
