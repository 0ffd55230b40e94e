"""What it costs that a validation file has lost its order: Gowalla's lists, whole and with a ninth at made-up places.

In: `gowalla/` (`user item item …` lines), a working directory. Out: results/lost_order.json; 1 where a claim
    fails.

Of each list of `train.txt`, which is in order, a random ninth, the share of the split's own validation file, becomes
such a file, which `towers prepare` spreads evenly over the list; the split's own has no part. Both data sets train
`gowalla-ordered.toml` on all of their lists, from one seed, for as many epochs and with the norm exponent and the prior
that its validation chose. The difference is that of the same users; its error does not show how seeds differ. Claim:
it is above two of its standard errors.
"""

import random
import sys
from pathlib import Path

import polars as pl

from benchmarks.harness.machine import verdict, write
from benchmarks.harness.stages import Stages, arguments

RECIPE, SHARE, SEED = "towers/recipes/gowalla-ordered.toml", 1 / 9, 0
CHOSEN = {
    "train.choose_epoch": "false",
    "train.epochs": "9",
    "model.norm_exponent": "1.0",
    "model.prior": "{ users_alike = true, now = 0.69 }",
}
METRICS = ("recall@20", "ndcg@20")
NAMES = ("whole", "spread")


def main(data: Path, work: Path) -> int:
    """Trains on both orders, and writes the result."""
    lines = (data / "train.txt").read_text(encoding="utf-8").splitlines()
    rng = random.Random(SEED)
    seconds, commands, users = {}, {}, []
    for name in NAMES:
        part = work / name
        (part / "lists").mkdir(parents=True)
        files = {"train.txt": lines}
        if name == "spread":
            files["train.txt"], files["valid.txt"] = zip(*(parted(line, rng) for line in lines), strict=True)
        for file, each in files.items():
            (part / "lists" / file).write_text("\n".join(each) + "\n", encoding="utf-8")
        (part / "lists" / "test.txt").write_bytes((data / "test.txt").read_bytes())
        stages = Stages(part, part / "lists")
        dataset, run, bundle, report = (str(part / each) for each in ("dataset", "run", "bundle", "report"))
        config = ("--config", RECIPE)
        overrides = [word for key, value in CHOSEN.items() for word in ("--set", f"{key}={value}")]
        stages.run("prepare", "--events", str(part / "lists"), "--format", "lightgcn", *config, "--out", dataset)
        stages.run("train", "--dataset", dataset, *config, *overrides, "--out", run)
        stages.run("export", "--run", run, "--out", bundle)
        stages.run("report", "--bundle", bundle, "--dataset", dataset, "--out", report, "--user-ids")
        seconds[name], commands[name] = stages.seconds, stages.commands
        columns = {f"exact_{metric}": f"{name} {metric}" for metric in METRICS}
        users.append(pl.read_parquet(f"{report}/per_user.parquet").select("user_id", *columns).rename(columns))
    both = users[0].join(users[1], on="user_id", validate="1:1")
    figures = {name: {metric: both[f"{name} {metric}"].mean() for metric in METRICS} for name in NAMES}
    differences = {metric: both["whole " + metric].cast(float) - both["spread " + metric] for metric in METRICS}
    lost = {name: {"mean": each.mean(), "error": each.std() / len(each) ** 0.5} for name, each in differences.items()}
    result = {
        "claims": claims(lost),
        "figures": figures,
        "lost": lost,
        "users": len(both),
        "share": SHARE,
        "seconds": seconds,
        "commands": commands,
    }
    print(write(__file__, "lost_order", result))
    for metric, each in lost.items():
        told = " / ".join(f"{name} {figures[name][metric]:.4f}" for name in NAMES)
        print(f"{metric}: {told}, lost {each['mean']:.4f} +- {2 * each['error']:.4f}")
    return verdict(result)


def claims(lost: dict[str, dict[str, float]]) -> dict[str, bool]:
    """Whether the order is worth something, by metric."""
    return {f"{metric}: a lost order costs": each["mean"] > 2 * each["error"] for metric, each in lost.items()}


def parted(line: str, rng: random.Random) -> tuple[str, str]:
    """A list without a random ninth, and that ninth in any order."""
    user, *items = line.split()
    moved = rng.sample(range(len(items)), round(len(items) * SHARE))
    others = [item for place, item in enumerate(items) if place not in moved]
    return " ".join([user, *others]), " ".join([user, *(items[place] for place in moved)])


if __name__ == "__main__":
    with arguments("benchmarks.levers.lost_order", "gowalla", __doc__) as (folder, directory):
        sys.exit(main(folder, directory))
