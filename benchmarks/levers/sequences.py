"""What blocks, negatives, averaged weights and co-occurrence change for the next item, on validation of Beauty alone.

In: the folder of the data, a working directory, where an interrupted run resumes. Out: benchmarks/levers/results/
    sequences.json, its table in docs/model/encoders.md; code 1 where the claim fails.

Each lever is the recipe with that one change, trained for few epochs against few uniform negatives, so that all take
an hour of one core; some rows change the negatives themselves. A longer training may order them otherwise.
Claim: many uniform negatives beside the batch's own items find more than those items alone.
"""

import sys
from pathlib import Path

from benchmarks.harness.pages import DOCS
from benchmarks.harness.stages import Stages, arguments
from benchmarks.levers.changes import rows_of, write_result

RECIPE, PAGE = Path("towers") / "recipes" / "beauty.toml", DOCS / "model" / "encoders.md"
NAME, METRIC, SEEDS = "sequences", "NDCG@10", 2


def uniform(negatives: int) -> str:
    """The batch's own items and some of all."""
    return f'sampler.parts=[{{name="in_batch"}},{{name="uniform",negatives={negatives}}}]'


EPOCHS = ("train.epochs=8", "features.candidate.item_id.start=random")  # `levers.item_start` is about the other start
BASE = (*EPOCHS, uniform(1_024))
UNIFORM = (*EPOCHS, "sampler.name=uniform", "sampler.negatives=256")
GBCE = (*UNIFORM, "loss.name=gbce", "loss.calibration=0.75")
DOT = ("model.similarity=dot", "model.temperature=")
SWIGLU, GATED, DISTANCE = (
    f"features.query.history.{each}" for each in ("forward=swiglu", "gated=true", "positions=distance")
)
IN_BATCH, MANY = "the batch's own items alone", "8,192 uniform negatives, as in the recipe"
LEVERS: dict[str, tuple[str, ...]] = {
    "the recipe with 1,024 uniform negatives": BASE,
    "SwiGLU": (*BASE, SWIGLU),
    "gated residuals, as LiGR": (*BASE, GATED),
    "SwiGLU and gated residuals": (*BASE, SWIGLU, GATED),
    "distances in place of positions, as HSTU": (*BASE, DISTANCE),
    "averaged weights, 0.999": (*BASE, "optimizer.average=0.999"),
    "without co-occurrence": (*BASE, "features.candidate.nearby="),
    IN_BATCH: (*EPOCHS, "sampler.name=in_batch"),
    "256 uniform negatives": (*EPOCHS, uniform(256)),
    "256 uniform negatives, not the batch's": UNIFORM,
    "gBCE, t = 0.75, over the same": GBCE,
    "gBCE of dot products, over the same": (*GBCE, *DOT),
    "gBCE of dot products at its paper's rate, 0.001, over the same": (*GBCE, *DOT, "optimizer.learning_rate=0.001"),
    MANY: (*EPOCHS, uniform(8_192)),
}


def main(data: Path, work: Path) -> int:
    events = ("--events", str(data / "sequences.txt"), "--format", "sequences")
    rows = rows_of(Stages(work, data), events, RECIPE, LEVERS, SEEDS)
    values = {row["lever"]: row["best"] for row in rows}
    claims = {f"{MANY}, find more than {IN_BATCH}": min(values[MANY]) > max(values[IN_BATCH])}
    return write_result(__file__, NAME, {"claims": claims, "rows": rows, "seeds": SEEDS}, PAGE, METRIC)


if __name__ == "__main__":
    with arguments("benchmarks.levers.sequences", "beauty-s3rec", __doc__, resumes=True) as (folder, work_directory):
        sys.exit(main(folder, work_directory))
