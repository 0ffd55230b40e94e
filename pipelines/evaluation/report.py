"""`towers report`: evaluates a bundle's served vectors on the test events, beside the baselines.

Writes REPORT with `report.html`, `report.md`, `report.json` and `per_user.parquet`, and prints the verdict against the
baseline that was strongest on validation and a short table (docs/evaluation/report.md). `similarity.report` is for
`task = "similarity"`.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.console import phases, printable, results, say
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import seen
from pipelines.errors import DataError
from pipelines.evaluation import figures
from pipelines.evaluation.exhibits import PHASE as PAGE
from pipelines.evaluation.exhibits import exhibits
from pipelines.evaluation.figures import INTERVAL, MOST_K, numbers
from pipelines.evaluation.findings import PHASE as FINDINGS
from pipelines.evaluation.findings import Check, checks, look, score_findings
from pipelines.evaluation.item_map import item_maps, map_columns, map_content
from pipelines.evaluation.page import about_recall, write
from pipelines.evaluation.protocol.asked import Asked, ask, counts
from pipelines.evaluation.protocol.leakage import leak_checks
from pipelines.evaluation.protocol.options import Protocol
from pipelines.evaluation.report_json import PER_USER, REPORT, refuse_other_digest
from pipelines.evaluation.report_table import head, headline, lines, table
from pipelines.evaluation.similarity import report as similarity_report
from pipelines.evaluation.slices import NEW, NEW_ITEM, Slice, Trained, slices_of
from pipelines.rankers import choice, item_knn
from pipelines.rankers.baselines import FIXED, STRONGEST, baselines_of, report_verdict
from pipelines.rankers.bootstrap import LEVEL, RESAMPLES
from pipelines.rankers.cuts import cuts
from pipelines.rankers.evaluate import PHASE as EVALUATE
from pipelines.rankers.evaluate import Evaluation, evaluate
from pipelines.rankers.index_curve import AGAINST_FLOAT32, curve
from pipelines.rankers.index_curve import PHASE as CURVE
from pipelines.rankers.ranker import EXACT, KNOWN, Served, open_inputs, rankers_of
from pipelines.rankers.service import SERVICE, ServiceRanker
from pipelines.service.verify import VERIFY
from pipelines.training.prior import chosen_on_validation
from serving.bundle.digest import bundle_digest
from serving.bundle.manifest import read_manifest
from serving.bundle.reader import Bundle
from serving.files.staging import refuse_existing
from serving.recall.loading import open_index
from towers.config.feature_sides import Features
from towers.config.look_ahead import look_ahead
from towers.config.recipe import with_tuples

SCHEMA_VERSION = 4
KS = (10, 20, 50, 100)
LIBRARIES = ("numpy", "scipy", "polars")
DEFAULTS = Protocol()


def run(
    bundle: Path,
    dataset: Path,
    out: Path,
    *,
    ks: Sequence[int] = KS,
    slices: Sequence[str] = (),
    maps: Sequence[str] | None = None,
    url: str | None = None,
    protocol: Protocol = DEFAULTS,
    user_ids: bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Evaluates a bundle on the data set's test split, or for task = "similarity" on the items it held out.

    Args:
        bundle: BUNDLE.
        dataset: the data set it was trained on.
        out: REPORT.
        ks: list lengths to evaluate.
        slices: columns of users, items or events by which to slice, too; for task = "similarity" of items only.
        maps: columns of items that colour a map of the item vectors; None takes one, an empty list draws no map.
        url: a running service, which is asked for the same users; its key comes from TOWERS_API_KEY.
        protocol: which test events and users count.
        user_ids: name the users in `per_user.parquet`.
        overwrite: replace an existing REPORT.

    Returns:
        The content of `report.json`.

    Raises:
        BundleError: the bundle is damaged or was trained on other data.
        DataError: a k is wrong; the data set is damaged, has no test events or not such a column; an option of the
            protocol does not fit it; the service cannot be asked, or answers from another model; or another command
            changes the bundle meanwhile.
        OutputExistsError: REPORT exists.
    """
    refuse_existing(out, overwrite=overwrite, marker=REPORT)
    if min(ks, default=0) < 1:
        raise DataError(f"--k: lengths of lists are at least 1, and at least one is needed; got {list(ks)}")
    if max(ks) > MOST_K:
        raise DataError(f"--k: lengths of lists are at most {MOST_K:,}; got {list(ks)}")
    data, manifest = Dataset.open(dataset), read_manifest(bundle)
    longest = min(max(ks), data.manifest.items)  # a longer list costs memory and time, and holds no more
    similarity = manifest.is_similarity
    if similarity:
        given = {"--url": url is not None, "--user-ids": user_ids, protocol.given: bool(protocol.given)}
        if of_users := " ".join(option for option, is_given in given.items() if is_given):
            raise DataError(
                f"{of_users}: about users; this bundle is of item similarity, whose report takes --k, --no-map, and "
                "--slice and --map with columns of items"
            )
    chosen = () if similarity else (choice.PHASE,)
    drawn = (CURVE, PAGE) if manifest.index is not None and manifest.index.kind == "scann" else (PAGE,)
    phases("report", VERIFY, *chosen, item_knn.PHASE, EVALUATE, figures.PHASE, FINDINGS, *drawn)
    # Before the bundle is opened, and compared at the end, so that it is that of what is measured.
    digest = bundle_digest(bundle)
    (opened,) = open_inputs([bundle], data)
    provenance = _provenance(opened, digest, data)
    if similarity:
        return similarity_report.run(
            opened, data, out, provenance, ks=ks, slices=slices, maps=maps, overwrite=overwrite
        )
    columns = map_columns(data, maps)
    served = Served.match(opened, open_index(opened), data)
    asked = ask(protocol, data, served.item_rows)
    if not asked.left_out["users_not_in_sample"]:  # so many were asked for that it is no sample
        protocol = replace(protocol, users=None, seed=0)
    held = asked.held
    services = {} if url is None else {SERVICE: ServiceRanker(url, served, data, longest)}
    trained = Trained.of(data, KNOWN if opened.manifest.training.get("refit") else KNOWN[:1])
    known = seen(data, KNOWN)
    popularity = np.bincount(known[1], minlength=data.manifest.items)
    parts = slices_of(data, asked, trained, popularity, slices)
    new = Slice(NEW, NEW, NEW_ITEM, targets=trained.new_items[held.target_items])
    baselines = baselines_of(data, KNOWN, longest, repeats=protocol.repeats)
    strongest = baselines.choice.strongest
    groups = {part.name: part.targets for part in [*parts, new] if part.targets is not None}
    rankers = rankers_of(served, data, {**services, **baselines.rankers}, longest)
    of_items = numbers(*known, data.manifest.items)
    evaluation = evaluate(rankers, held, served.unit_vectors, sorted(set(ks)), groups, of_items)
    overall, by_slice = figures.figures(evaluation, held.target_offsets, [*parts, new])
    content = provenance | {
        "protocol": protocol.text,
        "protocol_options": protocol.content(),
        "left_out": dict(asked.left_out),
        "looks_ahead": _looks_ahead(opened, data),
        "counts": counts(served, data, held),
        "baselines": baselines.content(),
        "strongest": {"ranker": strongest, "chosen_on": baselines.choice.chosen_on},
        "ks": list(evaluation.ks),
        "index_tries_less": served.tries_less([k for k in evaluation.ks if k < longest], longest),
        **overall,
        "slices": {part.name: by_slice[part.name] for part in parts},
        "new_items": by_slice[NEW] | {"share_of_targets": by_slice[NEW]["targets"] / len(held.target_items)},
        "interval_of_lists": INTERVAL,
        "training": [stage for stage in opened.manifest.training.get("stages", []) if stage.get("best_epoch")],
        "chosen_on_validation": _chosen(opened),
        "findings": [each.content() for each in look(_checks(evaluation, served, data, asked))],
        "index_curve": curve(opened, served.index),
        "cuts": cuts(served, held, headline(evaluation.ks)),
        **{name: service.content() for name, service in services.items()},
    }
    figure, titles = f"recall@{headline(evaluation.ks)}", {name: str(each) for name, each in baselines.settings.items()}
    kind = f"{STRONGEST} on validation" if baselines.choice.validation else FIXED
    content["verdict"] = report_verdict(content, figure, strongest, titles, kind, len(held.users)).content()
    mapped = item_maps(served, data, popularity, columns)
    content["map"] = map_content(mapped)
    shown = exhibits(content, evaluation, served, data, held, popularity, mapped)
    about: dict[str, Any] = {"user_id": data.users["user_id"].gather(held.users)} if user_ids else {}
    about |= {**trained.about(held), "stored_vector": served.query_rows[held.users] >= 0}
    users = figures.user_table(about, evaluation, [*parts, new])
    refuse_other_digest(bundle, digest)
    write(out, content, about_recall(content), shown, {PER_USER: users}, overwrite=overwrite)
    _show(content, dataset, out)
    return content


def _show(content: dict[str, Any], dataset: Path, out: Path) -> None:
    console = results(markup=False)
    console.print("\n".join(map(printable, head(content, dataset))), soft_wrap=True)
    console.print(table(content))
    console.print("\n".join(map(printable, lines(content))), soft_wrap=True)
    if not content["baselines"]["validation_users"]:
        console.print(f"the baseline was chosen on {content['strongest']['chosen_on']}", soft_wrap=True)
    for name, reason in {**content["baselines"]["left_out"], **content["baselines"]["fixed"]}.items():
        say(f"{name}: {reason}")
    say(f"{out / 'report.html'}: plots, slices and examples; open it in a browser")


def _provenance(bundle: Bundle, digest: str, data: Dataset) -> dict[str, Any]:
    index = bundle.manifest.index
    return {
        "schema_version": SCHEMA_VERSION,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "bundle": {
            "model_version": bundle.manifest.model_version,
            "digest": digest,
            "dimension": bundle.manifest.dimension,
            "metric": bundle.manifest.metric,
            "vectors": bundle.manifest.vectors,
            "index": "exact" if index is None else index.kind,
        },
        AGAINST_FLOAT32: bundle.manifest.lineage.get(AGAINST_FLOAT32),
        "dataset": {
            "fingerprint": data.manifest.fingerprint,
            "split": data.manifest.split.model_dump(),
            "rejected": data.manifest.rejected,
            "dropped": data.manifest.dropped,
        },
        "interval": f"{LEVEL:.0%} percentile bootstrap over users, {RESAMPLES:,} resamples",
        "libraries": {name: metadata.version(name) for name in LIBRARIES},
    }


def _chosen(bundle: Bundle) -> str:
    model = bundle.manifest.lineage.get("config", {}).get("model", {})
    return chosen_on_validation(model, bundle.manifest.training.get("stages", []))


def _looks_ahead(bundle: Bundle, data: Dataset) -> list[str] | None:
    """Names the features through which training examples saw later events; None if the bundle has no recipe."""
    features = bundle.manifest.lineage.get("config", {}).get("features")
    if features is None:
        return None
    return look_ahead(Features.model_validate(with_tuples(features)), timed=data.manifest.timed)


def _checks(evaluation: Evaluation, served: Served, data: Dataset, asked: Asked) -> list[Check]:
    held = asked.held
    k, bundle = headline(evaluation.ks), served.bundle
    both = {"item": np.asarray(bundle.item_vectors), "query": bundle.query_vectors}
    vectors = {side: each[np.any(each != 0, axis=1)] for side, each in both.items()}
    of_model = checks(evaluation.exposure(EXACT, k), len(held.users), k, vectors, data.items)
    unknown = int(np.count_nonzero(served.query_rows[held.users] < 0))
    leaks = leak_checks(data, held, bundle.manifest.prior, unknown, asked.window)
    return [*leaks, *of_model, partial(score_findings, served, held, k)]
