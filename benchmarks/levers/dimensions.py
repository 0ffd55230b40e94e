"""What each width of `loss.matryoshka` recalls on MovieLens-100k, beside one training of the whole width alone.

In: the folder of the data. Out: benchmarks/levers/results/dimensions.json, its Markdown table on stdout; code 1 where
    the claim fails.

The recipe ml-100k without its prior, because its weights are those of the whole vectors; figures are those of the test
events, means over the seeds. Claim: half of the numbers keep 0.9 of the recall.
"""

import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.harness.machine import verdict, write
from benchmarks.harness.stages import Stages, arguments

RECIPE = Path("towers") / "recipes" / "ml-100k.toml"
OWN = ("--set", "model.prior=off", "--set", "train.epochs=12")
WIDTHS, WHOLE, K, SEEDS = (8, 16, 32), 64, 20, 3
LEAST = 0.9


def main(data: Path, work: Path) -> int:
    stages = Stages(work, data)
    dataset = str(work / "dataset")
    stages.run("prepare", "--events", str(data), "--format", "recbole", "--config", str(RECIPE), "--out", dataset)
    points: list[list[dict[str, Any]]] = []
    alone: list[float] = []
    for seed in range(SEEDS):
        points.append(
            report(stages, f"cuts-{seed}", seed, "--set", f"loss.matryoshka={list(WIDTHS)}")["cuts"]["points"]
        )
        alone.append(report(stages, f"alone-{seed}", seed)["metrics"]["exact"][f"recall@{K}"]["value"])
    recall = {each["dimension"]: mean(run[place]["recall"] for run in points) for place, each in enumerate(points[0])}
    claims = {f"{WHOLE // 2} of {WHOLE} numbers keep {LEAST:g} of recall@{K}": recall[32] >= LEAST * recall[WHOLE]}
    figures = {"recall": recall, "alone": mean(alone), "k": K, "seeds": SEEDS, "points": points, "each_alone": alone}
    result = {"claims": claims, **figures, "commands": stages.commands}
    print(write(__file__, "dimensions", result))
    return verdict(result)


def report(stages: Stages, name: str, seed: int, *more: str) -> dict[str, Any]:
    """Trains, exports and reports; returns what the report says."""
    run, bundle, out = (str(stages.work / f"{name}-{stage}") for stage in ("run", "bundle", "report"))
    dataset = str(stages.work / "dataset")
    seeded = ("--set", f"train.seed={seed}")
    stages.run("train", "--dataset", dataset, "--config", str(RECIPE), "--out", run, *OWN, *seeded, *more)
    stages.run("export", "--run", run, "--out", bundle)
    stages.run("report", "--bundle", bundle, "--dataset", dataset, "--out", out)
    content: dict[str, Any] = json.loads((Path(out) / "report.json").read_text(encoding="utf-8"))
    return content


if __name__ == "__main__":
    with arguments("benchmarks.levers.dimensions", "ml-100k", __doc__) as (folder, work_directory):
        sys.exit(main(folder, work_directory))
