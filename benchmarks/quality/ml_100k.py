"""MovieLens 100k under a global time split: the model beside every baseline in one report.

Claims: better recall@50 and NDCG@20 than the baseline that is strongest on validation; no claim for recall@10, of which
    166 users tell too little. Writes benchmarks/quality/results/ml_100k.json with the paired 95 % intervals of the
    differences; exits with 1 where a claim fails.
"""

import json
import sys
from pathlib import Path

from benchmarks.harness.machine import ROOT, verdict, write
from benchmarks.harness.stages import Stages, arguments

FIGURES = ("recall@10", "recall@50", "ndcg@20")
CLAIMED = FIGURES[1:]


def main(data: Path, work: Path) -> int:
    recipe = str(Path("towers") / "recipes" / "ml-100k.toml")
    dataset, run, bundle, report = (str(work / name) for name in ("dataset", "run", "bundle", "report"))
    stages = Stages(work, data)
    stages.run("prepare", "--events", str(data), "--format", "recbole", "--config", recipe, "--out", dataset)
    stages.run("train", "--dataset", dataset, "--config", recipe, "--out", run)
    stages.run("export", "--run", run, "--out", bundle)
    stages.run("index", "--bundle", bundle)
    stages.run("report", "--bundle", bundle, "--dataset", dataset, "--out", report)
    content = json.loads((work / "report" / "report.json").read_text(encoding="utf-8"))
    strongest, differences = content["strongest"]["ranker"], content["differences"]
    baselines = [name for name in content["metrics"] if name in content["baselines"]]
    claims = {
        f"{name} above the strongest baseline's": differences[f"exact_minus_{strongest}"][name]["value"] > 0
        for name in CLAIMED
    }
    result = {
        "claims": claims,
        "verdict": content["verdict"],
        "strongest": {"ranker": strongest, "title": content["baselines"][strongest]["title"]},
        "metrics": {
            ranker: {name: content["metrics"][ranker][name] for name in FIGURES}
            for ranker in ("exact", "index", *baselines)
        },
        "differences": {
            f"exact_minus_{baseline}": {name: differences[f"exact_minus_{baseline}"][name] for name in FIGURES}
            for baseline in baselines
        },
        "seconds": stages.seconds,
        "commands": stages.commands,
        "recipe": (ROOT / recipe).read_text(encoding="utf-8"),
        "report": content,
    }
    print(write(__file__, "ml_100k", result))
    return verdict(result)


if __name__ == "__main__":
    with arguments("benchmarks.quality.ml_100k", "ml-100k", __doc__) as (folder, work_directory):
        sys.exit(main(folder, work_directory))
