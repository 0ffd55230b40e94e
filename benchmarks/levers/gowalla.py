"""What the graph and co-occurrence without order bring on Gowalla as sets, on validation alone.

In: the folder of the data, a working directory, where an interrupted run resumes. Out: benchmarks/levers/results/
    gowalla.json, its table in docs/model/encoders.md; code 1 where a claim fails.

Each lever is the recipe with that one change, trained for few epochs, so a longer training may order them otherwise.
Claims: the graph and co-occurrence find more than ids alone and than the graph alone.
"""

import sys
from pathlib import Path

from benchmarks.harness.machine import verdict, write
from benchmarks.harness.pages import DOCS
from benchmarks.harness.stages import Stages, arguments
from benchmarks.levers.changes import rows_of, write_table

RECIPE, PAGE = Path("towers") / "recipes" / "gowalla.toml", DOCS / "model" / "encoders.md"
NAME, METRIC = "gowalla", "recall@20"

BASE = ("train.epochs=6", "data.refit=false")
AS_IT_IS, GRAPH, IDS = "the recipe", "without co-occurrence, the graph alone", "without both, ids alone"
LEVERS: dict[str, tuple[str, ...]] = {
    AS_IT_IS: BASE,
    GRAPH: (*BASE, "features.candidate.nearby=", "features.query.history.cooccurrence=0"),
    IDS: (*BASE, "features.candidate.nearby=", "features.query.history=", "features.candidate.audience="),
}


def main(data: Path, work: Path) -> int:
    rows = rows_of(Stages(work, data), ("--events", str(data), "--format", "lightgcn"), RECIPE, LEVERS, seeds=1)
    values = {row["lever"]: max(row["best"]) for row in rows}
    claims = {f"more than {other}": values[AS_IT_IS] > values[other] for other in (GRAPH, IDS)}
    result = {"claims": claims, "rows": rows}
    print(write(__file__, NAME, result))
    write_table(PAGE, NAME, METRIC)
    return verdict(result)


if __name__ == "__main__":
    with arguments("benchmarks.levers.gowalla", "gowalla", __doc__, resumes=True) as (folder, work_directory):
        sys.exit(main(folder, work_directory))
