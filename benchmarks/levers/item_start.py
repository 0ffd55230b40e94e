"""What rows that start from co-occurrence bring for the next item in few epochs, on validation of Beauty alone.

In: the folder of the data, a working directory, where an interrupted run resumes. Out: benchmarks/levers/results/
    item_start.json, its table in docs/model/encoders.md; code 1 where a claim fails.

The recipe with few uniform negatives, as in `benchmarks.levers.sequences`, with either start, in trainings of four and
of eight epochs. Claim: the rows from co-occurrence are ahead in each seed of both.
"""

import sys
from pathlib import Path

from benchmarks.harness.pages import DOCS
from benchmarks.harness.stages import Stages, arguments
from benchmarks.levers.changes import rows_of, write_result

RECIPE, PAGE = Path("towers") / "recipes" / "beauty.toml", DOCS / "model" / "encoders.md"
NAME, METRIC, SEEDS = "item_start", "NDCG@10", 2

EPOCHS, FEW = 8, 4
BASE = (f"train.epochs={EPOCHS}", 'sampler.parts=[{name="in_batch"},{name="uniform",negatives=1024}]')
START = "features.candidate.item_id.start"
RANDOM, TOGETHER = "random rows", "rows from co-occurrence"
FEWER = (f"train.epochs={FEW}", *BASE[1:])
LEVERS: dict[str, tuple[str, ...]] = {
    f"{RANDOM}, {FEW} epochs": (*FEWER, f"{START}=random"),
    f"{TOGETHER}, {FEW} epochs": (*FEWER, f"{START}=cooccurrence"),
    f"{RANDOM}, {EPOCHS} epochs": (*BASE, f"{START}=random"),
    f"{TOGETHER}, {EPOCHS} epochs": (*BASE, f"{START}=cooccurrence"),
}


def main(data: Path, work: Path) -> int:
    events = ("--events", str(data / "sequences.txt"), "--format", "sequences")
    rows = rows_of(Stages(work, data), events, RECIPE, LEVERS, SEEDS)
    best = {row["lever"]: row["best"] for row in rows}
    claims = {
        f"{TOGETHER} ahead in each seed, {count} epochs": all(
            mine > other
            for mine, other in zip(best[f"{TOGETHER}, {count} epochs"], best[f"{RANDOM}, {count} epochs"], strict=True)
        )
        for count in (FEW, EPOCHS)
    }
    return write_result(__file__, NAME, {"claims": claims, "rows": rows, "seeds": SEEDS}, PAGE, METRIC)


if __name__ == "__main__":
    with arguments("benchmarks.levers.item_start", "beauty-s3rec", __doc__, resumes=True) as (folder, work_directory):
        sys.exit(main(folder, work_directory))
