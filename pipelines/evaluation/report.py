"""`towers report`: evaluates a bundle's served vectors on the test events, beside the baselines.

Writes REPORT with `report.json` and `per_user.parquet`, and prints the verdict against the strongest baseline and a
short table (docs/report.md). A bundle of `task = "similarity"` gets `pipelines.evaluation.similarity_report` instead.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from rich.console import Console

from pipelines.console import say
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.digests import refuse_changes
from pipelines.dataset.heldout import HeldOut, heldout, seen
from pipelines.errors import DataError
from pipelines.evaluation import figures, similarity_report
from pipelines.evaluation.report_table import head, headline, lines, table
from pipelines.evaluation.slices import COLD, DEFINITIONS, NEW_ITEM, WARM, Trained
from pipelines.rankers.baselines import baselines_of
from pipelines.rankers.bootstrap import LEVEL, RESAMPLES
from pipelines.rankers.evaluate import Evaluation, column, evaluate
from pipelines.rankers.ranker import KNOWN, Served, rankers_of
from pipelines.rankers.verdict import report_verdict
from serving.bundle.reader import Bundle
from serving.errors import BundleError
from serving.files.staging import refuse_existing, staged
from serving.recall.loading import open_index
from towers.evaluation import metrics

SCHEMA_VERSION = 2
KS = (10, 20, 50, 100)
LIBRARIES = ("numpy", "scipy", "polars")
PROTOCOL = (
    "Full ranking over the catalogue by dot product of stored vectors, each user's training and validation items "
    "masked; recall@k = hits / number of targets; NDCG@k with IDCG over min(k, targets); mean over users with a target."
)


def run(bundle: Path, dataset: Path, out: Path, *, ks: Sequence[int] = KS, overwrite: bool = False) -> dict[str, Any]:
    """Evaluates a bundle on the data set's test split, or for task = "similarity" on the items it held out.

    Args:
        bundle: BUNDLE.
        dataset: the data set it was trained on.
        out: REPORT.
        ks: list lengths to evaluate.
        overwrite: replace an existing REPORT.

    Returns:
        The content of `report.json`.

    Raises:
        BundleError: the bundle is damaged or was trained on other data.
        DataError: the data set is damaged or has no test events.
        OutputExistsError: REPORT exists.
    """
    refuse_existing(out, overwrite=overwrite, marker="report.json")
    opened, data = Bundle.open(bundle), Dataset.open(dataset)
    _refuse_strangers(opened, data, dataset)
    refuse_changes(data)
    if similarity_report.is_similarity(opened):
        return similarity_report.run(opened, data, out, _provenance(opened, data), ks=ks, overwrite=overwrite)
    held = heldout(data, "test")
    if not len(held.users):
        raise DataError(f"{dataset}: no user has a test event to recall; prepare it with data.test_share above 0")
    served = Served.match(opened, open_index(opened), data)
    baselines = baselines_of(data, KNOWN, max(ks))
    trained = Trained.of(data, KNOWN if opened.manifest.training.get("refit") else KNOWN[:1])
    evaluation = evaluate(
        rankers_of(served, data, baselines.rankers, max(ks)), held, trained.new_items, sorted(set(ks))
    )
    content = _provenance(opened, data) | {
        "counts": _counts(served, data, held),
        "baselines": baselines.content(),
        "strongest": {"ranker": baselines.strongest, "chosen_on": baselines.choice.chosen_on},
        "ks": list(evaluation.ks),
        **_figures(evaluation, held, trained, np.bincount(seen(data, KNOWN)[1], minlength=data.manifest.items)),
    }
    content["verdict"] = report_verdict(content, f"recall@{headline(evaluation.ks)}", baselines.strongest).content()
    with staged(out, overwrite=overwrite, marker="report.json") as directory:
        directory.mkdir()
        text = json.dumps(content, indent=2, allow_nan=False)
        (directory / "report.json").write_text(text + "\n", encoding="utf-8")
        _per_user(served, data, held, trained, evaluation).write_parquet(directory / "per_user.parquet")
    _show(content, dataset)
    return content


def _show(content: dict[str, Any], dataset: Path) -> None:
    console = Console(highlight=False, markup=False)
    console.print("\n".join(head(content, dataset)), soft_wrap=True)
    console.print(table(content))
    console.print("\n".join(lines(content)), soft_wrap=True)
    if not content["baselines"]["validation_users"]:
        console.print(f"the strongest baseline was chosen on {content['strongest']['chosen_on']}", soft_wrap=True)
    for name, reason in {**content["baselines"]["left_out"], **content["baselines"]["fixed"]}.items():
        say(f"{name}: {reason}")


def _refuse_strangers(bundle: Bundle, data: Dataset, path: Path) -> None:
    trained_on = bundle.manifest.lineage.get("dataset")
    if trained_on is None:
        say(f"warning: {bundle.path} does not name its data set; the test events may be among its training events")
    elif trained_on != data.manifest.fingerprint:
        # Even with the same items, a test event here may have been a training event there.
        raise BundleError(
            f"{bundle.path}: was trained on the data set {str(trained_on)[:12]}, but {path} is "
            f"{data.manifest.fingerprint[:12]}; its test events may be that model's training events"
        )
    ids = pl.Series(bundle.item_ids, dtype=pl.String)
    strange = ids.filter(~ids.is_in(data.items["item_id"].implode()))
    if len(strange):
        raise BundleError(
            f"{bundle.path}: {len(strange):,} of its {len(ids):,} items, {strange[0]!r} for one, are not in {path}; "
            "a bundle is reported on the data set it was trained on"
        )


def _provenance(bundle: Bundle, data: Dataset) -> dict[str, Any]:
    index = bundle.manifest.index
    return {
        "schema_version": SCHEMA_VERSION,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "bundle": {
            "model_version": bundle.manifest.model_version,
            "dimension": bundle.manifest.dimension,
            "metric": bundle.manifest.metric,
            "index": "exact" if index is None else index.kind,
        },
        "dataset": {"fingerprint": data.manifest.fingerprint, "split": data.manifest.split.model_dump()},
        "protocol": PROTOCOL,
        "interval": f"{LEVEL:.0%} percentile bootstrap over users, {RESAMPLES:,} resamples",
        "libraries": {name: metadata.version(name) for name in LIBRARIES},
    }


def _counts(served: Served, data: Dataset, held: HeldOut) -> dict[str, int]:
    return {
        "users": len(held.users),
        "users_without_vector": int((served.query_rows[held.users] < 0).sum()),
        "targets": len(held.target_items),
        "targets_without_vector": int((served.item_rows[held.target_items] < 0).sum()),
        "dropped_targets": held.dropped_targets,
        "masked_events": len(held.seen_items),
        "items": data.manifest.items,
        "items_without_vector": int((served.item_rows < 0).sum()),
    }


def _figures(evaluation: Evaluation, held: HeldOut, trained: Trained, popularity: NDArray[np.int64]) -> dict[str, Any]:
    targets, new = np.diff(held.target_offsets), trained.new_items
    new_before = np.concatenate([[0], np.cumsum(new[held.target_items])])
    new_targets = np.diff(new_before[held.target_offsets])
    return {
        **figures.figures(evaluation),
        "slices": {
            name: {"definition": DEFINITIONS[name], **figures.slice_figures(evaluation, chosen, targets)}
            for name, chosen in trained.slices(held).items()
        },
        "new_items": {
            "definition": NEW_ITEM,
            **figures.new_item_figures(evaluation, new_targets, int(targets.sum())),
        },
        **figures.exposure_figures(evaluation, popularity),
    }


def _per_user(served: Served, data: Dataset, held: HeldOut, trained: Trained, evaluation: Evaluation) -> pl.DataFrame:
    columns = {
        "user_id": data.users["user_id"].gather(held.users),
        "targets": np.diff(held.target_offsets),
        "history": np.diff(held.seen_offsets),
        "slice": np.where(trained.slices(held)[WARM], WARM, COLD),
        "stored_vector": served.query_rows[held.users] >= 0,
    }
    names = [column(*each) for each in product(evaluation.rankers, metrics.METRICS, evaluation.ks)]
    return pl.DataFrame(columns | {name: evaluation.of(name) for name in names})
