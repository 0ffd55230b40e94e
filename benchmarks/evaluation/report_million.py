"""`towers report` of a seeded sample, where a million users have test events.

Claims: it takes at most 5 minutes the first time of a data set, when it chooses and fits all baselines, and at most 2
afterwards; it holds less than 8 GB. The world is that of `towers synth`, each user's last event is the test; the model
trains one epoch, because the time of a report hardly depends on how good it is. A report of all users is not measured:
its time grows with their number. Writes benchmarks/evaluation/results/report_million.json; exits with 1 where a claim
fails. With `--work` the model is kept.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness.machine import verdict, write
from benchmarks.harness.million import towers
from benchmarks.harness.process_memory import timed
from pipelines.rankers.cache import Cache

USERS, ITEMS, EVENTS = 1_200_000, 50_000, 9_600_000  # a million users have two events or more
SAMPLE = 20_000
FIRST, AGAIN = "first", "again"
MOST_FIRST_S, MOST_AGAIN_S, MOST_BYTES = 300, 120, 8_000_000_000
RECIPE = """\
[data]
split = "leave_last_out"
min_user_events = 2
refit = false

[features.query]
user_id = { kind = "id" }

[features.candidate]
item_id = { kind = "id" }

[model]
dimension = 64

[train]
epochs = 1
batch_size = 8192
validation_users = 2000
"""


def main(work: Path, users: int, items: int, events: int, dry: bool) -> int:
    world, dataset, run, bundle = (work / name for name in ("world", "dataset", "run", "bundle"))
    work.mkdir(parents=True, exist_ok=True)
    recipe = work / "recipe.toml"
    recipe.write_text(RECIPE, encoding="utf-8")
    towers(world, "synth", "--users", str(users), "--items", str(items), "--events", str(events))
    towers(dataset, "prepare", "--events", world, "--config", recipe)
    towers(run, "train", "--dataset", dataset, "--config", recipe)
    towers(bundle, "export", "--run", run)
    timed("index", "--bundle", str(bundle))
    shutil.rmtree(Cache.beside(dataset).folder, ignore_errors=True)
    reports = {name: report(bundle, dataset, work / "report", min(SAMPLE, users)) for name in (FIRST, AGAIN)}
    first, again = (each["seconds"] for each in reports.values())
    claims = {
        f"at most {MOST_FIRST_S / 60:g} minutes the first time": first <= MOST_FIRST_S,
        f"at most {MOST_AGAIN_S / 60:g} minutes with its baselines fitted": again <= MOST_AGAIN_S,
        f"below {MOST_BYTES / 1e9:g} GB": max(each["peak_bytes"] for each in reports.values()) < MOST_BYTES,
    }
    result = {"claims": claims, "sizes": {"users": users, "items": items, "events": events}, "reports": reports}
    print(json.dumps(result, indent=2))
    if not dry:
        print(write(__file__, "report_million", result))
    return verdict(result)


def report(bundle: Path, dataset: Path, out: Path, users: int) -> dict[str, Any]:
    """Seconds, peak memory, users and recall@20 of one report, in a process of its own."""
    words = ("--bundle", str(bundle), "--dataset", str(dataset), "--out", str(out), "--users", str(users))
    run = timed("report", *words, "--overwrite")
    content = json.loads((out / "report.json").read_text(encoding="utf-8"))
    return {**run, "users": content["counts"]["users"], "recall@20": content["metrics"]["exact"]["recall@20"]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evaluation.report_million", description=__doc__)
    for name, size in (("users", USERS), ("items", ITEMS), ("events", EVENTS)):
        parser.add_argument(f"--{name}", type=int, default=size, help="fewer for a trial")
    parser.add_argument("--work", type=Path, help="keep the model here, and go on with what is there")
    parser.add_argument("--dry", action="store_true", help="print only")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        sys.exit(main(given.work or Path(directory), given.users, given.items, given.events, given.dry))
