"""What blocks, negatives, averaged weights and co-occurrence change for the next item, on validation of Beauty alone.

In: the folder of the data, a working directory, where an interrupted run resumes. Out: benchmarks/levers/results/
    sequences.json, its table in docs/model/encoders.md; code 1 where the claim fails.

Each lever is the recipe with that one change, trained for few epochs against few uniform negatives, so that all take
an hour of one core; some rows change the negatives themselves. A longer training may order them otherwise.
Claim: many uniform negatives beside the batch's own items find more than those items alone.
"""

import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.harness.machine import ROOT, load, verdict, write
from benchmarks.harness.pages import DOCS, with_block
from benchmarks.harness.resumable import Store
from benchmarks.harness.stages import Stages, arguments

RECIPE, PAGE = Path("towers") / "recipes" / "beauty.toml", DOCS / "model" / "encoders.md"
SEEDS = 2


def uniform(negatives: int) -> str:
    """The batch's own items and some of all."""
    return f'sampler.parts=[{{name="in_batch"}},{{name="uniform",negatives={negatives}}}]'


EPOCHS, NEGATIVES = "train.epochs=8", uniform(1_024)
UNIFORM = ("sampler.name=uniform", "sampler.negatives=256")
GBCE = (*UNIFORM, "loss.name=gbce", "loss.calibration=0.75")
DOT = ("model.similarity=dot", "model.temperature=")
SWIGLU, GATED, DISTANCE = (
    f"features.query.history.{each}" for each in ("forward=swiglu", "gated=true", "positions=distance")
)
AS_IT_IS = "the recipe with 1,024 uniform negatives"
IN_BATCH, MANY = "the batch's own items alone", "8,192 uniform negatives, as in the recipe"
LEVERS: dict[str, tuple[str, ...]] = {
    AS_IT_IS: (),
    "SwiGLU": (SWIGLU,),
    "gated residuals, as LiGR": (GATED,),
    "SwiGLU and gated residuals": (SWIGLU, GATED),
    "distances in place of positions, as HSTU": (DISTANCE,),
    "averaged weights, 0.999": ("optimizer.average=0.999",),
    "without co-occurrence": ("features.candidate.nearby=",),
    IN_BATCH: ("sampler.name=in_batch",),
    "256 uniform negatives": (uniform(256),),
    "256 uniform negatives, not the batch's": UNIFORM,
    "gBCE, t = 0.75, over the same": GBCE,
    "gBCE of dot products, over the same": (*GBCE, *DOT),
    "gBCE of dot products at its paper's rate, 0.001, over the same": (*GBCE, *DOT, "optimizer.learning_rate=0.001"),
    MANY: (uniform(8_192),),
}


def main(data: Path, work: Path) -> int:
    store, stages = Store(work / "runs"), Stages(work, data)
    dataset = work / "dataset"
    if not dataset.exists():
        events = ("--events", str(data / "sequences.txt"), "--format", "sequences")
        stages.run("prepare", *events, "--config", str(RECIPE), "--out", str(dataset))
    recipe = (ROOT / RECIPE).read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = []
    for name, overrides in LEVERS.items():
        own = any(each.startswith("sampler.") for each in overrides)
        settings = [EPOCHS, *([] if own else [NEGATIVES]), *overrides]
        runs = [
            store.run(
                {"recipe": recipe, "overrides": settings, "seed": seed},
                lambda: trained(stages, dataset, settings, seed),  # noqa: B023
            )
            for seed in range(SEEDS)
        ]
        rows.append({"lever": name, "overrides": settings, "runs": runs, "ndcg@10": [run["best"] for run in runs]})
    values = {row["lever"]: row["ndcg@10"] for row in rows}
    claims = {f"{MANY}, find more than {IN_BATCH}": min(values[MANY]) > max(values[IN_BATCH])}
    result = {"claims": claims, "rows": rows, "seeds": SEEDS, "recipe": recipe}
    print(write(__file__, "sequences", result))
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return verdict(result)


def trained(stages: Stages, dataset: Path, overrides: list[str], seed: int) -> dict[str, Any]:
    """Trains; what the run says of its best epoch on validation."""
    run = stages.work / "run"
    words = (word for each in (*overrides, f"train.seed={seed}") for word in ("--set", each))
    stages.run("train", "--dataset", str(dataset), "--config", str(RECIPE), "--out", str(run), "--overwrite", *words)
    stage = json.loads((run / "summary.json").read_text(encoding="utf-8"))["stages"][0]
    seconds = mean(epoch["train_seconds"] for epoch in stage["history"])
    return {"best": stage["best_metric"], "epoch": stage["best_epoch"], "seconds_per_epoch": round(seconds, 2)}


def with_table(text: str) -> str:
    """The text of the page with the committed result: NDCG@10 of each lever, and how far that is from the recipe's."""
    values = {row["lever"]: row["ndcg@10"] for row in load("sequences")["rows"]}
    base = mean(values[AS_IT_IS])
    lines = ["| lever | NDCG@10 on validation, each seed | mean less that of the first row |", "|---|---|---|"]
    for name, each in values.items():
        told = " ".join(f"{value:.4f}" for value in each)
        lines.append(f"| {name} | {told} | {'' if name == AS_IT_IS else f'{mean(each) - base:+.4f}'} |")
    return with_block(text, "<!-- table: sequences -->\n", "\n".join(lines) + "\n", "<!-- /table -->")


if __name__ == "__main__":
    with arguments("benchmarks.levers.sequences", "beauty-s3rec", __doc__, resumes=True) as (folder, work_directory):
        sys.exit(main(folder, work_directory))
