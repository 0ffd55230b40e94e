"""What graph, co-occurrence, correction and negatives bring on Gowalla, its lists as sets, on validation alone.

In: the folder of the data, a working directory, where an interrupted run resumes. Out: benchmarks/levers/results/
    gowalla.json, its table in docs/model/encoders.md; code 1 where a claim fails.

Each lever is the recipe, without its contrast, with that one change, trained for as many epochs, one seed. The recipe's
settings were chosen on this validation, those of a change were not: a training tuned for it may reach more.
Claims: one hop of the graph finds more than ids alone, co-occurrence beside it more, and the contrast more again.
"""

import sys
from pathlib import Path

from benchmarks.harness.pages import DOCS
from benchmarks.harness.stages import Stages, arguments
from benchmarks.levers.changes import rows_of, write_result

RECIPE, PAGE = Path("towers") / "recipes" / "gowalla.toml", DOCS / "model" / "encoders.md"
NAME, METRIC = "gowalla", "recall@20"

SHORT = ("data.refit=false", "train.epochs=5")
# Without the contrast, which would tell ids alone what is taken together.
BASE = (*SHORT, "contrast=")
CANDIDATE, QUERY = "features.candidate.nearby=", "features.query.history.cooccurrence=0"
IDS, HOP, BOTH = "ids alone", "one hop of the graph, without co-occurrence", "the recipe, without its contrast"
CONTRAST = "with its contrast"
LEVERS: dict[str, tuple[str, ...]] = {
    BOTH: BASE,
    CONTRAST: SHORT,
    IDS: (*BASE, CANDIDATE, "features.query.history=", "features.candidate.audience="),
    HOP: (*BASE, CANDIDATE, QUERY),
    "co-occurrence in the user's vector alone": (*BASE, CANDIDATE),
    "co-occurrence in the item's vector alone": (*BASE, QUERY),
    "rows from co-occurrence": (
        *BASE,
        "features.candidate.item_id.start=cooccurrence",
        "features.candidate.item_id.start_window=list",
    ),
    "all of the logQ correction": (*BASE, "loss.correction=1"),
    "none of it": (*BASE, "loss.correction=0"),
    "`sampled_softmax`": (*BASE, "loss.name=sampled_softmax", "loss.correction=0.3"),
    "1,024 uniform negatives beside the batch's own": (
        *BASE,
        "sampler.name=mixed",
        'sampler.parts=[{name="in_batch"},{name="uniform",negatives=1024}]',
    ),
    "examples count alike": (*BASE, "train.balance=0"),
    "without averaged weights": (*BASE, "optimizer.average=0"),
    "without the prior": (*BASE, "model.prior=off"),
}
MORE = ((HOP, IDS), (BOTH, HOP), (CONTRAST, BOTH))


def main(data: Path, work: Path) -> int:
    rows = rows_of(Stages(work, data), ("--events", str(data), "--format", "lightgcn"), RECIPE, LEVERS, seeds=1)
    best = {row["lever"]: max(row["best"]) for row in rows}
    claims = {f"{more} finds more than {less}": best[more] > best[less] for more, less in MORE}
    return write_result(__file__, NAME, {"claims": claims, "rows": rows}, PAGE, METRIC)


if __name__ == "__main__":
    with arguments("benchmarks.levers.gowalla", "gowalla", __doc__, resumes=True) as (folder, work_directory):
        sys.exit(main(folder, work_directory))
