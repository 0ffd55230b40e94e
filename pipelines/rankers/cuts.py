"""Measures a bundle's vectors cut to the smaller widths that its run trained, as the bundle of each would answer."""

from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from pipelines.dataset.heldout import HeldOut
from pipelines.rankers.evaluate import per_user
from pipelines.rankers.index_curve import EXACT_S, single_query_s
from pipelines.rankers.ranker import Served
from pipelines.rankers.scann_log import without_scann_log
from serving.bundle.manifest import PriorInfo
from serving.bundle.prior import recall_vectors
from serving.search.exact import ExactIndex
from serving.search.index import Floats, Index
from serving.search.scann import ScannIndex
from serving.search.vector_codes import DTYPES, rounded
from towers.model.prior import deviation

NORM_EXPONENT = "norm_exponent"  # key of the lineage

Cuts = dict[str, Any]


def cuts(served: Served, held: HeldOut, k: int) -> Cuts:
    """Measures each width of `loss.matryoshka`, and the whole.

    Returns:
        ``{"left_out": reason}``, or ``k`` and ``points``: ``{"dimension", "bytes", "recall", "single_ms"}`` of each
        width, the bytes of an item's vector, recall@k on the held-out targets by exact search, and the median time of a
        query by an index of the bundle's kind and settings.
    """
    bundle = served.bundle
    full, kind, config = bundle.manifest.dimension, bundle.manifest.vectors, bundle.manifest.lineage.get("config", {})
    widths = [width for width in config.get("loss", {}).get("matryoshka", ()) if width < full]
    if not widths:
        return {"left_out": "the run trained no smaller dimension (loss.matryoshka)"}
    rows = served.query_rows[held.users]
    rows, points = rows[rows >= 0], []
    if not len(rows):
        return {"left_out": "no test user has a stored vector"}
    for width in [*widths, full]:
        small, items = (served, np.asarray(bundle.recall_vectors)) if width == full else _cut(served, width)
        index: Index = (exact := ExactIndex(items))
        if isinstance(served.index, ScannIndex):
            with without_scann_log():
                index = ScannIndex.build(items, served.index.parameters)
        recall = per_user(replace(small, index=exact).exact(k), held, "recall", k).mean()
        queries = small.bundle.recall_queries(small.bundle.query_vectors[rows], bundle.seen_counts(rows))
        points.append(
            {
                "dimension": width,
                "bytes": width * np.dtype(DTYPES[kind]).itemsize + (4 if kind == "int8" else 0),
                "recall": float(recall),
                "single_ms": round(1000 * single_query_s(index, queries, min(k, len(items)), most_s=EXACT_S), 4),
            }
        )
    return {"k": k, "points": points}


def of_cuts(measured: Cuts) -> list[str]:
    """Says what `cuts` measured."""
    k = measured.get("k")
    return [
        f"first {point['dimension']} numbers of each vector: {point['bytes']} bytes an item, recall@{k} "
        f"{point['recall']:.4f}, {point['single_ms']:.2f} ms a query"
        for point in measured.get("points", ())
    ]


def first_numbers(vectors: Floats, width: int, exponent: float) -> Floats:
    """The first numbers of served vectors ``u = v / |v|^x``, served anew: ``v' / |v'|^x = u' (|u| / |u'|)^x``."""
    lengths, short = (np.linalg.norm(each, axis=1, keepdims=True) for each in (vectors, vectors[:, :width]))
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.where(short > 0, (lengths / short) ** exponent, 0)
    return (vectors[:, :width] * factor).astype(np.float32)


def _cut(served: Served, width: int) -> tuple[Served, Floats]:
    """A bundle with the first numbers of its vectors, and the item vectors that its recall searches."""
    whole, small = served.bundle, copy(served.bundle)
    lineage, prior = whole.manifest.lineage, whole.manifest.prior
    cosine = lineage["config"]["model"]["similarity"] == "cosine"
    vectors = np.asarray(whole.item_vectors)
    items = first_numbers(vectors, width, lineage[NORM_EXPONENT])
    small.query_vectors = first_numbers(whole.query_vectors, width, float(cosine))
    if prior is not None:
        # A bundle's weights have the deviation of the whole vectors' scores as a factor; cut vectors have another.
        unit = deviation(small.query_vectors, items) / deviation(whole.query_vectors, vectors)
        small.manifest = whole.manifest.model_copy(update={"prior": _scaled(prior, unit)})
    items = rounded(items, whole.manifest.vectors)
    if small.manifest.prior is not None and whole.item_prior is not None and whole.adds_prior:
        items = recall_vectors(items, whole.item_prior, small.manifest.prior)
    return replace(served, bundle=small), items


def _scaled(prior: PriorInfo, unit: float) -> PriorInfo:
    weights = {name: getattr(prior, name) * unit for name in ("now", "past", "length")}
    return prior.model_copy(update=weights)
