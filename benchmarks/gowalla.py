"""Gowalla, ids only: the whole path by the command line, then 1,000 users asked over HTTP.

Claims: recall@20 of at least 0.16 after at most 10 epochs; recall@20 of the service's answers within 0.002 of the exact
figure on the same users. Writes benchmarks/results/gowalla.json; exits with 1 where a claim fails.
"""

import json
import sys
import time
from pathlib import Path

import httpx
import numpy as np
import polars as pl

from benchmarks.machine import ROOT, write
from benchmarks.stages import Stages, arguments

USERS, K, SEED = 1_000, 20, 0
LEAST_RECALL, MOST_DIFFERENCE, MOST_EPOCHS = 0.16, 0.002, 10


def main(data: Path, work: Path) -> int:
    recipe = str(Path("recipes") / "gowalla.toml")
    dataset, run, bundle, report = (str(work / name) for name in ("dataset", "run", "bundle", "report"))
    stages = Stages(work, data)
    stages.run("prepare", "--events", str(data), "--format", "lightgcn", "--config", recipe, "--out", dataset)
    stages.run("train", "--dataset", dataset, "--config", recipe, "--out", run)
    stages.run("export", "--run", run, "--out", bundle)
    stages.run("index", "--bundle", bundle)
    stages.run("report", "--bundle", bundle, "--dataset", dataset, "--out", report)
    content = json.loads((work / "report" / "report.json").read_text(encoding="utf-8"))
    exact_of = dict(
        pl.read_parquet(work / "report" / "per_user.parquet").select("user_id", f"exact_recall@{K}").iter_rows()
    )
    # The targets come from the file itself, not from the data set: the service is judged by what a person would hold
    # against it.
    targets = {user: items for user, *items in map(str.split, (data / "test.txt").read_text().splitlines()) if items}
    asked = np.random.default_rng(SEED).choice(sorted(targets), USERS, replace=False).tolist()
    with stages.service(Path(bundle)) as url:
        start = time.perf_counter()
        answers = ask(url, asked)
        seconds = time.perf_counter() - start
    served = float(np.mean([len(set(answers[user]) & set(targets[user])) / len(targets[user]) for user in asked]))
    exact = float(np.mean([exact_of[user] for user in asked]))
    summary = json.loads((work / "run" / "summary.json").read_text(encoding="utf-8"))
    epochs = max(stage["epochs"] for stage in summary["stages"])
    recall = content["metrics"]["exact"][f"recall@{K}"]
    claims = {
        f"recall@{K} at least {LEAST_RECALL}": recall["value"] >= LEAST_RECALL,
        f"at most {MOST_EPOCHS} epochs": epochs <= MOST_EPOCHS,
        f"service within {MOST_DIFFERENCE} of exact": abs(served - exact) <= MOST_DIFFERENCE,
    }
    result = {
        "claims": claims,
        f"recall@{K}": recall,
        "service": {
            "users": USERS,
            f"recall@{K}": served,
            f"exact_recall@{K}": exact,
            "difference": abs(served - exact),
            "requests_per_s_one_client": round(USERS / seconds, 1),
        },
        "epochs": {stage["stage"]: stage["epochs"] for stage in summary["stages"]},
        "seconds": stages.seconds,
        "commands": stages.commands,
        "recipe": (ROOT / recipe).read_text(encoding="utf-8"),
        "report": content,
    }
    print(f"{write('gowalla', result)}: recall@{K} {recall['value']:.4f}, served {served:.4f}, exact {exact:.4f}")
    for claim, holds in claims.items():
        print(f"{'yes' if holds else 'NO '} {claim}")
    return 0 if all(claims.values()) else 1


def ask(url: str, users: list[str]) -> dict[str, list[str]]:
    """The item ids that `POST /recall` gives each user."""
    answers = {}
    with httpx.Client(base_url=url) as client:
        for user in users:
            answer = client.post("/recall", json={"user_id": user, "k": K, "exclude_seen": True})
            answer.raise_for_status()
            answers[user] = [item["id"] for item in answer.json()["items"]]
    return answers


if __name__ == "__main__":
    with arguments("gowalla", __doc__ or "") as (folder, work_directory):
        sys.exit(main(folder, work_directory))
