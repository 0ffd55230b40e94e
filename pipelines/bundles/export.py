"""`towers export`: writes a bundle from a run.

The bundle holds both towers, the vectors of all items and known users, seen items, attributes and lineage.
"""

import hashlib
import json
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import tensorflow as tf

from pipelines.bundles.prior import BundlePrior, popular_segments
from pipelines.bundles.request_features import profiles, query_features, request_feature
from pipelines.console import amount, phase, phases, progress, say
from pipelines.dataset.arrays import select_lists
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.digests import refuse_changes
from pipelines.dataset.feature_lookup import build_tables
from pipelines.dataset.heldout import seen, seen_times, seen_types
from pipelines.dataset.vocabulary import load_features
from pipelines.errors import DataError
from pipelines.rankers.cuts import NORM_EXPONENT
from pipelines.rankers.index_curve import AGAINST_FLOAT32, COMPARE, of_codes, recall_of_codes
from serving.bundle.manifest import DATASET_FILE, MANIFEST, Manifest
from serving.bundle.writer import READ_BACK, WRITE, write_bundle
from serving.files.staging import refuse_existing
from serving.search.vector_codes import VectorType
from towers.config.recipe import Config, load_config
from towers.config.sections import PriorConfig
from towers.data.events import Floats, Int16s, Int32s, Int64s
from towers.data.feature_tables import FeatureTables
from towers.evaluation.validation import embed_all, informed
from towers.model.graphs import connect_graphs
from towers.model.prior import deviation
from towers.model.two_tower import TwoTower, save_tower

LIBRARIES = ("tensorflow", "tf-keras", "tensorflow-recommenders", "numpy", "polars")
KNOWN_SPLITS = ("train", "valid")  # what a service may know; the test events are for the report only
USERS = 65_536  # users encoded at once


@dataclass(frozen=True)
class Trained:
    """A finished run, read back: its recipe, data set, model with trained weights, and looked-up tables."""

    config: Config
    summary: dict[str, Any]
    dataset: Dataset
    model: TwoTower
    tables: FeatureTables


def run(
    run: Path,
    out: Path,
    *,
    dataset_path: Path | None = None,
    vectors: VectorType = "float32",
    dimension: int | None = None,
    popular_by: str | None = None,
    overwrite: bool = False,
) -> Manifest:
    """Exports a run.

    Args:
        run: what `towers train` wrote; it names the data set it was trained on.
        out: BUNDLE.
        dataset_path: where that data set is now; None for where the run expects it.
        vectors: the type of the stored item vectors; the lineage tells what recall float16 and int8 cost.
        dimension: how many of each vector's first numbers it holds, of those the run trained; None for all.
        popular_by: a string column of the users; the bundle gets the popular items of each of its values.
        overwrite: replace an existing bundle.

    Raises:
        DataError: RUN is incomplete, its data set has moved or changed, or it did not train `dimension`.
        OutputExistsError: BUNDLE exists.
        BundleError: float16 does not hold a number, or the written bundle cannot be read back.
    """
    refuse_existing(out, overwrite=overwrite, marker=MANIFEST)
    coded = () if vectors == "float32" else (COMPARE,)
    phases("export", "read the run", "encode users", "encode items", *coded, WRITE, "save towers", READ_BACK)
    with phase("read the run"):
        trained = load_run(run, dataset_path)
        if dimension is not None:
            _cut(trained, dimension, run)
    model, tables, dataset = trained.model, trained.tables, trained.dataset
    items = informed(model.candidate_tower, tables.items)
    if not items.any():
        raise DataError(f"{run}: no item has a trained feature; nothing to recall")
    row_of = np.where(items, np.cumsum(items) - 1, -1)
    offsets, seen_items = seen(dataset, KNOWN_SPLITS)
    reads_types = any(getattr(encoder.spec.config, "events", ()) for encoder in model.query_tower.encoders)
    types = seen_types(dataset, KNOWN_SPLITS) if reads_types else None
    users, query_vectors = _query_vectors(model, tables, offsets, seen_items, seen_times(dataset, KNOWN_SPLITS), types)
    popularity = np.bincount(seen_items, minlength=dataset.manifest.items)
    segments = None if popular_by is None else popular_segments(dataset, popular_by, offsets, row_of[seen_items])
    offsets, kept = select_lists(users, offsets, np.where(row_of[seen_items] < 0, -1, np.arange(len(seen_items))))
    seen_items = row_of[seen_items[kept]].astype(np.int32)
    exponent = float(model.candidate_tower.norm_exponent)
    with progress("encode items", total=len(items), unit="items") as advance:
        item_vectors = embed_all(model.candidate_tower.serve, tables.items, advance)[items]
    given, prior = trained.summary["stages"][-1].get("prior"), None
    if given is not None:
        splits, unit = KNOWN_SPLITS[: 2 if trained.config.data.refit else 1], deviation(query_vectors, item_vectors)
        prior = BundlePrior.of_dataset(dataset, KNOWN_SPLITS, splits, PriorConfig(**given), unit)
    # Named by its content: the same vectors have the same version.
    digest = hashlib.sha256(np.ascontiguousarray(item_vectors).data)
    digest.update(np.ascontiguousarray(query_vectors).data)
    if prior is not None:
        digest.update(prior.shares[items].tobytes())
        digest.update(prior.info.model_dump_json().encode())
    cost: dict[str, Any] = {}
    if vectors != "float32":
        digest.update(vectors.encode())
        columns = None if prior is None else prior.columns(items, np.diff(offsets))
        cost = {AGAINST_FLOAT32: recall_of_codes(vectors, item_vectors, query_vectors, columns)}
    version_of_vectors = digest.hexdigest()
    lineage = cost | {
        "dataset": dataset.manifest.fingerprint,
        "vectors": version_of_vectors,
        "config": trained.config.model_dump(mode="json", exclude_none=True),
        "items_without_trained_features": int((~items).sum()),
        NORM_EXPONENT: exponent,
    }
    # For display and filters: vectors are large and neither.
    of_vectors = [column for column, kind in dataset.manifest.item_columns.items() if kind == "vector"]
    manifest = write_bundle(
        out,
        model_version=f"{dataset.manifest.fingerprint[:8]}-{version_of_vectors[:8]}",
        metric="cosine" if trained.config.model.similarity == "cosine" and exponent == 1 else "dot",
        query_features=query_features(model, trained.config.task, dataset.manifest.config.time_zone),
        candidate_features=[request_feature(encoder.spec) for encoder in model.candidate_tower.encoders],
        item_ids=dataset.items["item_id"].filter(pl.Series(items)),
        item_vectors=item_vectors,
        item_attributes=dataset.items.drop("train_count", *of_vectors).filter(pl.Series(items)),
        popularity=popularity[items],
        query_ids=dataset.users["user_id"].gather(users),
        query_vectors=query_vectors,
        seen_offsets=offsets,
        seen_items=seen_items,
        event_types=dataset.manifest.event_types if reads_types else (),
        seen_types=None if types is None else types[kept],
        write_towers=lambda directory: _save_towers(trained, directory),
        libraries={name: version(name) for name in LIBRARIES},
        lineage=lineage,
        training=trained.summary,
        vectors=vectors,
        segmented_by=popular_by,
        popular_segments=segments,
        profiles=profiles(model, tables, dataset, users),
        prior=None if prior is None else prior.info,
        item_prior=None if prior is None else prior.shares[items],
        popular_counts=None if prior is None else prior.counts[items],
        overwrite=overwrite,
        progress=progress,
    )
    counts = f"{amount(manifest.items, 'items')}, {amount(manifest.queries, 'users')}"
    made = f"{out}: {counts}, {amount(manifest.dimension, 'dimensions')}, model {manifest.model_version}"
    for line in (made, *of_codes(vectors, cost.get(AGAINST_FLOAT32))):
        say(line)
    return manifest


def load_run(run: Path, dataset_path: Path | None = None) -> Trained:
    """Reads a finished run and its data set, from where the run expects it or from another place.

    Raises:
        DataError: a part is missing, or the data set is not the one it was trained on.
    """
    if not (run / "summary.json").is_file():
        raise DataError(f"{run}: not a finished run (no summary.json); `towers train --out {run}` makes one")
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    # Relative to the run, so both may move together.
    place = dataset_path or (run / summary["dataset_path"]).resolve()
    if dataset_path is None and not (place / DATASET_FILE).is_file():
        raise DataError(f"{run}: expects its data set at {place}, and none is there; --dataset names another place")
    dataset, wanted = Dataset.open(place), summary["dataset"]
    if (found := dataset.manifest.fingerprint) != wanted:
        reason = "it was prepared again since, or is another one"
        raise DataError(f"{place}: fingerprint {found[:12]}, but {run} was trained on {wanted[:12]}; {reason}")
    refuse_changes(dataset)
    config = load_config(run / "config.toml")
    learnt = load_features(run)
    model = TwoTower(learnt.query, learnt.candidate, config)
    tables = build_tables(model, dataset, None)
    connect_graphs(model, tables, [dataset.events(split) for split in KNOWN_SPLITS[: 2 if config.data.refit else 1]])
    # A forward pass creates the weights of the hidden layers, which the checkpoint then fills.
    if model.query_tower.encoders:
        first = np.zeros(1, np.int32), np.zeros(2, np.int64), np.zeros(0, np.int32)
        model.query_tower(_constants(tables.of_users(*first)))
    model.candidate_tower(_constants({name: rows[:1] for name, rows in tables.items.items()}))
    tf.train.Checkpoint(model=model).read(str(run / "checkpoints" / "final")).assert_existing_objects_matched()
    return Trained(config, summary, dataset, model, tables)


def _cut(trained: Trained, dimension: int, run: Path) -> None:
    """Makes both towers serve only the first numbers of their vectors."""
    widths = [*trained.config.loss.matryoshka, trained.config.model.dimension]
    if dimension not in widths:
        remedy = "; loss.matryoshka trains smaller ones, too" if len(widths) == 1 else ""
        raise DataError(f"--dimension {dimension}: {run} trained {', '.join(map(str, widths))}{remedy}")
    trained.model.query_tower.dimension = trained.model.candidate_tower.dimension = dimension


def _query_vectors(
    model: TwoTower,
    tables: FeatureTables,
    offsets: Int64s,
    items: Int32s,
    times: Int64s | None,
    types: Int16s | None,
) -> tuple[Int32s, Floats]:
    """Returns numbers and vectors of the users about whom anything is known, even if only their seen items."""
    users, vectors = [], []
    count, width = len(offsets) - 1, model.query_tower.dimension
    with progress("encode users", total=count, unit="users") as advance:
        for begin in range(0, count, USERS):
            block = np.arange(begin, min(begin + USERS, count), dtype=np.int32)
            lists = offsets[begin : begin + len(block) + 1]
            features = tables.of_users(block, lists, items, times, types)
            # task = "similarity" learns nothing about users.
            known, embedded = np.zeros(len(block), np.bool_), np.zeros((len(block), width), np.float32)
            if model.query_tower.encoders:
                known, embedded = informed(model.query_tower, features), embed_all(model.query_tower.serve, features)
            # A zero vector means "popular items except the seen ones"; users without seen items are left out.
            embedded[~known] = 0
            kept = known | (np.diff(lists) > 0)
            users.append(block[kept])
            vectors.append(embedded[kept])
            advance(len(block))
    return np.concatenate(users), np.concatenate([block.reshape(-1, width) for block in vectors])


def _save_towers(trained: Trained, directory: Path) -> None:
    model = trained.model
    # Queries are items here, so both sides are the item tower.
    query = model.candidate_tower if trained.config.task == "similarity" else model.query_tower
    with progress("save towers", total=2, unit="towers") as advance:
        for name, tower in (("query_tower", query), ("candidate_tower", model.candidate_tower)):
            save_tower(tower, directory / name)
            advance(1)


def _constants(features: dict[str, Any]) -> dict[str, tf.Tensor]:
    return {name: tf.constant(values) for name, values in features.items()}
