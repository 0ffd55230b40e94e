"""`towers compare`: which of several models to ship, and is the difference real.

Takes bundles with their data set, or reports; writes COMPARISON with `compare.html`, `compare.md` and `compare.json`,
and prints the conclusion (docs/evaluation/compare.md). The first is the baseline; each other one is compared with it.
"""

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.console import Advance, next_step, phases, progress, results, say
from pipelines.errors import DataError
from pipelines.evaluation.figures import MOST_K, is_length
from pipelines.evaluation.report import KS
from pipelines.evaluation.report_json import REPORT
from pipelines.evaluation.report_table import headline
from pipelines.evaluation.slices import Slice
from pipelines.launch import differences
from pipelines.launch.conclusion import conclusion, contrary, sentence, shipped
from pipelines.launch.measure import Measured, measure
from pipelines.launch.page.compare_page import html, lines, markdown
from pipelines.launch.sides import (
    FACTS,
    USER,
    Member,
    Side,
    later_priors,
    paths_of,
    read_report,
    refuse_different,
    refuse_other_recipes,
)
from pipelines.launch.significance import DRAWS, LEVEL, seed_spread
from pipelines.rankers.bootstrap import RESAMPLES, bootstrap
from pipelines.rankers.evaluate import PHASE as EVALUATE
from pipelines.service.verify import VERIFY
from serving.files.staging import refuse_existing, staged
from towers.evaluation.metrics import METRICS

TESTS = "tests"
SCHEMA_VERSION = 1
METHOD = (
    f"Paired by user. p-values: randomisation test by sign flips, {DRAWS:,} draws with a fixed seed (all of them where "
    f"there are fewer), two-sided; Holm's correction over all metrics and sides; level {LEVEL:.0%}. Intervals: "
    f"95 % percentile bootstrap over users, {RESAMPLES:,} resamples, not adjusted. 'could have shown': 2.8 paired "
    "standard errors, the true difference that such a test set shows four times out of five at the unadjusted level."
)
ONLY_REPORTS = (
    "left out: overlap of lists, items and vectors that change, slices of targets and of columns; for these name "
    "bundles and --dataset"
)
ONE_SEED = "the spread over seeds is not known: name several bundles or reports of one recipe, joined by commas"


def run(
    names: Sequence[str],
    out: Path,
    *,
    dataset: Path | None = None,
    metric: str | None = None,
    family: str | None = None,
    slices: Sequence[str] = (),
    user_ids: bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Compares bundles or reports; the first is the baseline.

    Args:
        names: paths of bundles or reports; several seeds of one recipe joined by commas.
        out: COMPARISON.
        dataset: the data set on whose test events bundles are measured.
        metric: the primary metric; None for recall at 20, or at the second k.
        family: more metrics, separated by commas; None for NDCG at the same k and recall at greater ones.
        slices: columns by which to slice bundles, too.
        user_ids: name the users who change most.
        overwrite: replace an existing COMPARISON.

    Returns:
        The content of `compare.json`.

    Raises:
        BundleError, DataError: an input is damaged, or they are not about the same test in the same way.
        OutputExistsError: COMPARISON exists.
    """
    refuse_existing(out, overwrite=overwrite, marker="compare.json")
    paths = paths_of(names)
    every = [path for each in paths.values() for path in each]
    reports = {path: read_report(path) for path in every if (path / REPORT).is_file()}
    bundles = [path for path in every if path not in reports]
    _refuse_options(bundles, list(reports), dataset, slices)
    metrics, ks = _metrics(metric, family, next((each.facts["ks"] for each in reports.values()), None))
    phases("compare", *([VERIFY, EVALUATE] if bundles else []), TESTS)
    measured = measure(bundles, dataset, ks, slices, _parsed(metrics[0])[1]) if bundles and dataset else None
    members = reports | ({} if measured is None else dict(measured.members))
    sides = [Side(name, tuple(members[path] for path in each)) for name, each in paths.items()]
    refuse_different([member for side in sides for member in side.members])
    for side in sides:
        refuse_other_recipes(side)
    if user_ids and USER not in sides[0].members[0].rows.columns:
        raise DataError(f"--user-ids: {sides[0].members[0].path} names no user; make the report with --user-ids, too")
    if len(sides[0].members[0].rows) < 2:
        raise DataError(f"{every[0]}: fewer than two test users; a comparison needs more of them")
    if reports:
        measured = None
    parts = differences.report_slices(sides[0]) if measured is None else measured.parts
    with progress(TESTS, total=(len(sides) - 1) * (len(metrics) + len(parts)), unit="differences") as advance:
        content = _content(sides, metrics, parts, measured, advance, named=user_ids)
    with staged(out, overwrite=overwrite, marker="compare.json") as directory:
        directory.mkdir()
        (directory / "compare.json").write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        (directory / "compare.html").write_text(html(content), encoding="utf-8")
        (directory / "compare.md").write_text(markdown(content), encoding="utf-8")
    console = results(markup=False)
    console.print(content["sentence"], soft_wrap=True)
    console.print("\n".join(lines(content)), soft_wrap=True)
    say(f"{out / 'compare.html'}: slices, users, items and lists; open it in a browser")
    if dataset is not None and not reports:
        other = content["ship"] if content["ship"] != content["baseline"] else sides[1].name
        models = (word for name in (content["baseline"], other) for word in ("--bundle", paths[name][0]))
        next_step("look", *models, "--dataset", dataset)
    return content


def _refuse_options(
    bundles: Sequence[Path], reports: Sequence[Path], dataset: Path | None, slices: Sequence[str]
) -> None:
    if bundles and dataset is None:
        raise DataError(f"--dataset: {bundles[0]} is a bundle; name the data set on whose test events to measure it")
    if dataset is not None and not bundles:
        raise DataError(f"--dataset {dataset}: measures bundles, and {reports[0]} is a report; leave it out")
    if slices and reports:
        raise DataError(
            f"--slice {slices[0]}: {reports[0]} is a report, which has no columns; name bundles and --dataset"
        )


def _metrics(metric: str | None, family: str | None, reported: Sequence[int] | None) -> tuple[list[str], Sequence[int]]:
    """The metrics, the primary one first, and the list lengths: those of the reports, or what bundles are asked for."""
    asked = [each.strip() for each in (family or "").split(",") if each.strip()]
    extra = {_parsed(each)[1] for each in [*([metric] if metric else []), *asked]}
    ks = sorted({*KS, *extra}) if reported is None else reported
    primary = metric or f"recall@{headline(ks)}"
    k = _parsed(primary)[1]
    others = [f"ndcg@{k}", *(f"recall@{each}" for each in ks if each > k)] if family is None else asked
    metrics = list(dict.fromkeys([primary, *others]))
    if unmeasured := [each for each in metrics if _parsed(each)[1] not in ks]:
        told = f"the reports have no such list length; allowed are {', '.join(map(str, ks))}"
        raise DataError(f"metric {unmeasured[0]!r}: {told}")
    return metrics, ks


def _parsed(metric: str) -> tuple[str, int]:
    name, _, k = metric.partition("@")
    if name not in METRICS or not is_length(k):
        known = f"names are {', '.join(METRICS)}, and K is at most {MOST_K:,}"
        raise DataError(f"metric {metric!r}: expected NAME@K, for example recall@20; {known}")
    return name, int(k)


def _content(
    sides: Sequence[Side],
    metrics: Sequence[str],
    parts: Sequence[Slice],
    measured: Measured | None,
    advance: Advance,
    *,
    named: bool,
) -> dict[str, Any]:
    baseline, *others = sides
    primary, rows = metrics[0], baseline.members[0].rows
    tests = differences.metric_tests(sides, metrics, advance)
    fingerprint, split, protocol, ks = (baseline.members[0].facts[fact] for fact in FACTS)
    comparisons = {}
    for other in others:
        spread, name = seed_spread(baseline.seeds(primary), other.seeds(primary)), other.name
        comparisons[name] = {
            "conclusion": conclusion(tests[name][primary], spread),
            "metrics": tests[name],
            "seeds": spread,
            "slices": differences.slice_differences(baseline, other, parts, primary, measured, advance),
            "users": differences.user_changes(baseline, other, primary, named=named),
            **dict.fromkeys(("items", "lists", "vectors")),
        }
        if measured is not None:
            comparisons[name]["items"] = differences.item_changes(baseline, other, _parsed(primary)[1], measured)
            comparisons[name] |= differences.likeness(baseline.members[0].path, other.members[0].path, measured)
    # The yardstick: how alike two seeds are, of the first side that has two.
    seeds = next(([each.path for each in side.members] for side in sides if len(side.members) > 1), [])
    content: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "baseline": baseline.name,
        "primary": primary,
        "family": list(metrics[1:]),
        "tests": len(metrics) * len(others),
        "method": METHOD,
        "dataset": {"fingerprint": fingerprint, "split": split},
        "protocol": protocol,
        "ks": ks,
        "counts": {"users": len(rows), "targets": int(rows["targets"].sum())},
        "sides": {side.name: _side(side, metrics) for side in sides},
        "comparisons": comparisons,
        "seeds_of_one_recipe": differences.likeness(seeds[0], seeds[1], measured) if measured and seeds else None,
        "notes": list(_notes(sides, measured)),
    }
    content["ship"] = shipped(content)
    content["sentence"] = sentence(content)
    content["notes"] = [*contrary(content), *content["notes"]]
    return content


def _side(side: Side, metrics: Sequence[str]) -> dict[str, Any]:
    drawn = bootstrap(np.stack([side.values(metric) for metric in metrics], axis=1), metrics)
    return {
        "members": [{"path": str(each.path), "model_version": each.version} for each in side.members],
        "metrics": {metric: drawn.estimate(metric) for metric in metrics},
        "seeds": {metric: side.seeds(metric).tolist() for metric in metrics},
    }


def _notes(sides: Sequence[Side], measured: Measured | None) -> Iterator[str]:
    if measured is None:
        yield ONLY_REPORTS
    if all(len(side.members) == 1 for side in sides):
        yield ONE_SEED
    baseline = sides[0].members[0]
    yield from later_priors([member for side in sides for member in side.members])
    for side in sides[1:]:
        other = side.members[0]
        if _other_events(baseline, other):
            by = f"warm, cold and new are by what {baseline.path} was trained on"
            yield f"{other.path} and {baseline.path} differ in data.refit: {by}"
        if other.version == baseline.version:
            yield f"{other.path} holds the model of {baseline.path}, {baseline.version}"
        elif baseline.training and baseline.training == other.training:
            yield f"{other.path} and {baseline.path} are of one training: what differs was changed after it"
        elif baseline.recipe is not None and baseline.recipe == other.recipe:
            yield f"{other.path} has the recipe of {baseline.path}: they are two trainings of one recipe"


def _other_events(one: Member, other: Member) -> bool:
    """Whether one alone was trained on validation events, too; a report tells by the users that it takes for warm."""
    if one.training and other.training:
        return bool(one.training.get("refit")) != bool(other.training.get("refit"))
    return not one.rows["slice"].equals(other.rows["slice"])
