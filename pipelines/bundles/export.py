"""`towers export`: writes a bundle from a run.

The bundle holds both towers, the vectors of all items and known users, seen items, attributes and lineage.
"""

import hashlib
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.bundles.prior import BundlePrior, popular_segments
from pipelines.bundles.request_features import profiles, query_features, request_feature
from pipelines.bundles.run import KNOWN_SPLITS, Run, load_run
from pipelines.console import amount, phase, phases, progress, say
from pipelines.dataset.heldout import seen, seen_times, seen_types
from pipelines.errors import DataError
from pipelines.rankers.cuts import NORM_EXPONENT
from pipelines.rankers.index_curve import AGAINST_FLOAT32, COMPARE, of_codes, recall_of_codes
from serving.bundle.manifest import MANIFEST, Manifest
from serving.bundle.writer import READ_BACK, WRITE, write_bundle
from serving.files.staging import refuse_existing
from serving.search.vector_codes import VectorType
from towers.config.sections import PriorConfig
from towers.data.events import Floats, Int16s, Int32s, Int64s, select_lists
from towers.evaluation.encode import embed_all, informed
from towers.model.prior import deviation
from towers.model.two_tower import save_tower

LIBRARIES = ("tensorflow", "tf-keras", "tensorflow-recommenders", "numpy", "polars")
USERS = 65_536  # users encoded at once


@dataclass(frozen=True)
class _Users:
    """The users of whom anything is known, even if only their seen items.

    Attributes:
        numbers: [Q] their numbers in the data set.
        vectors: float32 [Q, D], zero where the tower knows nothing of them: they get popular items but the seen ones.
        offsets: [Q + 1]; the seen items of user u are ``items[offsets[u]:offsets[u + 1]]``.
        items: rows of the bundle, newest last.
        types: the numbers of their events' types; None if no feature reads them.
    """

    numbers: Int32s
    vectors: Floats
    offsets: Int64s
    items: Int32s
    types: Int16s | None


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
            trained.cut(dimension)
    model, tables, dataset, config = trained.model, trained.tables, trained.dataset, trained.config
    items = informed(model.candidate_tower, tables.items)
    if not items.any():
        raise DataError(f"{run}: no item has a trained feature; nothing to recall")
    offsets, seen_items = seen(dataset, KNOWN_SPLITS)
    row_of = np.where(items, np.cumsum(items) - 1, -1)
    segments = None if popular_by is None else popular_segments(dataset, popular_by, offsets, row_of[seen_items])
    users = _users(trained, offsets, seen_items, row_of)
    with progress("encode items", total=len(items), unit="items") as advance:
        item_vectors = embed_all(model.candidate_tower.serve, tables.items, advance)[items]
    prior = _prior(trained, users.vectors, item_vectors)
    cost: dict[str, Any] = {}
    if vectors != "float32":
        columns = None if prior is None else prior.columns(items, np.diff(users.offsets))
        cost = {AGAINST_FLOAT32: recall_of_codes(vectors, item_vectors, users.vectors, columns)}
    digest = _digest(item_vectors, users.vectors, vectors, prior, items, segments)
    exponent = float(model.candidate_tower.norm_exponent)
    lineage = cost | {
        "dataset": dataset.manifest.fingerprint,
        "vectors": digest,
        "config": config.model_dump(mode="json", exclude_none=True),
        "items_without_trained_features": int((~items).sum()),
        NORM_EXPONENT: exponent,
    }
    # For display and filters: vectors are large and neither.
    of_vectors = [column for column, kind in dataset.manifest.item_columns.items() if kind == "vector"]
    manifest = write_bundle(
        out,
        model_version=f"{dataset.manifest.fingerprint[:8]}-{digest[:8]}",
        metric="cosine" if config.model.similarity == "cosine" and exponent == 1 else "dot",
        query_features=query_features(model, config.task, dataset.manifest.config.time_zone),
        candidate_features=[request_feature(encoder.spec) for encoder in model.candidate_tower.encoders],
        item_ids=dataset.items["item_id"].filter(pl.Series(items)),
        item_vectors=item_vectors,
        item_attributes=dataset.items.drop("train_count", *of_vectors).filter(pl.Series(items)),
        popularity=np.bincount(seen_items, minlength=dataset.manifest.items)[items],
        query_ids=dataset.users["user_id"].gather(users.numbers),
        query_vectors=users.vectors,
        seen_offsets=users.offsets,
        seen_items=users.items,
        event_types=() if users.types is None else dataset.manifest.event_types,
        seen_types=users.types,
        write_towers=lambda directory: _save_towers(trained, directory),
        libraries={name: version(name) for name in LIBRARIES},
        lineage=lineage,
        training=trained.summary,
        vectors=vectors,
        segmented_by=popular_by,
        popular_segments=segments,
        profiles=profiles(model, tables, dataset, users.numbers),
        prior=None if prior is None else prior.info,
        item_prior=None if prior is None else prior.shares[items],
        popular_counts=None if prior is None else prior.counts[items],
        overwrite=overwrite,
        progress=progress,
    )
    counts = f"{amount(manifest.items, 'items')}, {amount(manifest.queries, 'users')}"
    made = f"{out}: {counts}, {amount(manifest.dimension, 'dimensions')}, model {manifest.model_version}"
    if gone := int((row_of[seen_items] < 0).sum()):
        left = f"{amount(int((~items).sum()), 'items')} without a trained feature are left out"
        say(f"{left}, and {amount(gone, 'events')} of theirs, which no history and no exclusion holds")
    for line in (made, *of_codes(vectors, cost.get(AGAINST_FLOAT32))):
        say(line)
    return manifest


def _users(trained: Run, offsets: Int64s, items: Int32s, row_of: Int64s) -> _Users:
    """Encodes the users and keeps what they took by rows of the bundle.

    Args:
        trained: the run.
        offsets: [U + 1] of `items`.
        items: item numbers that each user of the data set took, newest last.
        row_of: [N] row of each item of the data set, -1 for one that the bundle leaves out.
    """
    model, tables, dataset = trained.model, trained.tables, trained.dataset
    reads_types = any(getattr(encoder.spec.config, "events", ()) for encoder in model.query_tower.encoders)
    types = seen_types(dataset, KNOWN_SPLITS) if reads_types else None
    times = seen_times(dataset, KNOWN_SPLITS)
    # Without the items that the bundle leaves out, which the service knows in no history.
    places = np.where(row_of[items] < 0, -1, np.arange(len(items)))
    offsets, kept = select_lists(np.arange(len(offsets) - 1), offsets, places)
    items = items[kept]
    types, times = (None if each is None else each[kept] for each in (types, times))
    numbers, vectors = [], []
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
            embedded[~known] = 0
            kept = known | (np.diff(lists) > 0)
            numbers.append(block[kept])
            vectors.append(embedded[kept])
            advance(len(block))
    users = np.concatenate(numbers)
    offsets, kept = select_lists(users, offsets, np.arange(len(items)))
    return _Users(
        users,
        np.concatenate(vectors),
        offsets,
        row_of[items[kept]].astype(np.int32),
        None if types is None else types[kept],
    )


def _prior(trained: Run, query_vectors: Floats, item_vectors: Floats) -> BundlePrior | None:
    """Returns the prior that the last stage of the run chose, if any, in units of the scores' deviation."""
    given = trained.summary["stages"][-1].get("prior")
    if given is None:
        return None
    splits = KNOWN_SPLITS[: 2 if trained.config.data.refit else 1]
    unit = deviation(query_vectors, item_vectors)
    return BundlePrior.of_dataset(trained.dataset, KNOWN_SPLITS, splits, PriorConfig(**given), unit)


def _digest(
    item_vectors: Floats,
    query_vectors: Floats,
    vectors: VectorType,
    prior: BundlePrior | None,
    items: NDArray[np.bool_],
    segments: pl.DataFrame | None,
) -> str:
    """Returns what names the model version: equal vectors, stored alike, with equal prior and segments have one."""
    digest = hashlib.sha256(np.ascontiguousarray(item_vectors).data)
    digest.update(np.ascontiguousarray(query_vectors).data)
    if prior is not None:
        digest.update(prior.shares[items].tobytes())
        digest.update(prior.info.model_dump_json().encode())
    if vectors != "float32":
        digest.update(vectors.encode())
    if segments is not None:
        digest.update(segments.write_json().encode())
    return digest.hexdigest()


def _save_towers(trained: Run, directory: Path) -> None:
    model = trained.model
    # Queries are items here, so both sides are the item tower.
    query = model.candidate_tower if trained.config.task == "similarity" else model.query_tower
    with progress("save towers", total=2, unit="towers") as advance:
        for name, tower in (("query_tower", query), ("candidate_tower", model.candidate_tower)):
            save_tower(tower, directory / name)
            advance(1)
