"""Probes a bundle with real searches before it serves: finds what no checksum can."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from serving.background import Rest, no_pause
from serving.bundle.reader import Bundle
from serving.errors import BundleError
from serving.recall.loading import open_recaller
from serving.recall.query import RecallQuery
from serving.recall.recaller import Recaller
from serving.search.index import Floats

if TYPE_CHECKING:
    from serving.bundle.encoder import Encoder

QUERIES, K, SEED = 32, 100, 0
# An index of these vectors finds nearly all, one of other vectors almost nothing.
LEAST_RECALL = 0.5


def open_probed(path: Path, *, verify: bool = True) -> Recaller:
    """Opens a bundle like `open_recaller`, with both towers, and probes it.

    Args:
        path: the bundle directory.
        verify: see `Bundle.open`.

    Raises:
        BundleError: names the path and the reason.
    """
    recaller = open_recaller(path, verify=verify)
    open_item_encoder(recaller.bundle)
    probe(recaller)
    return recaller


def open_item_encoder(bundle: Bundle) -> "Encoder":
    """Loads and warms up a bundle's candidate tower: at the first live item it is too late to refuse the bundle.

    Raises:
        BundleError: it cannot be loaded, or its output is not finite [1, D].
    """
    from serving.bundle.encoder import Encoder

    encoder = Encoder.of_items(bundle)
    encoder.warm_up()
    return encoder


def probe(recaller: Recaller, rest: Rest = no_pause) -> None:
    """Tries on an opened bundle what a service would ask of it.

    Compares the index with exact search, calls the query tower without features and with a known item, and makes whole
    answers. `rest` is called after each.

    Raises:
        BundleError: too few of the best are found, a number is not finite, a shape is wrong, or anything fails.
    """
    path = recaller.bundle.path
    for what, ask in (("index", _search), ("query tower", _encode), ("answers", _answer)):
        try:
            ask(recaller)
        except BundleError as error:
            raise BundleError(f"{path}: probe of its {what}: {error}") from None
        except Exception as error:  # The tower raises TensorFlow's errors, the index ScaNN's
            raise BundleError(f"{path}: probe of its {what} failed: {type(error).__name__}: {error}") from error
        rest()


def _search(recaller: Recaller) -> None:
    queries = recaller.bundle.sample_queries(QUERIES, SEED)
    items = recaller.bundle.manifest.items
    k = min(K if recaller.bundle.manifest.index is None else recaller.bundle.manifest.index.target_k, items)
    if not len(queries):
        return
    recall = index_recall(recaller, queries, k)
    if recall < LEAST_RECALL:
        raise BundleError(f"recall@{k} against exact search is {recall:.3f}, must be at least {LEAST_RECALL}")


def index_recall(recaller: Recaller, queries: Floats, k: int) -> float:
    """Recall@k of a bundle's index against exact search, mean over queries.

    Args:
        recaller: an opened bundle.
        queries: [Q, D], at least one.
        k: at most the number of items.

    Raises:
        BundleError: the index gives a wrong shape, a row beyond its items or a score that is not finite.
    """
    items = recaller.bundle.manifest.items
    _, best = recaller.exact.search(queries, k)
    rows, scores = recaller.index.search(queries, k)
    if rows.shape != best.shape or scores.shape != best.shape:
        raise BundleError(f"must give {list(best.shape)} items, gave {list(rows.shape)}")
    found = rows >= 0
    if rows.max() >= items or not np.isfinite(scores[found]).all():
        raise BundleError(f"gave a row beyond its {items} items, or a score that is not finite")
    # By score, not by row: of a thousand equal items any hundred are the best.
    return float(np.mean(found & (scores >= best[:, -1:])))


def _encode(recaller: Recaller) -> None:
    if recaller.encoder is None:
        return
    manifest = recaller.bundle.manifest
    requests: list[Mapping[str, Any]] = [{}]
    item, first = manifest.query_feature("item"), recaller.bundle.item_names[0]
    requests += [{history.name: [first]} for history in manifest.histories]
    if item is not None:
        requests.append({item.name: first})
    vectors = recaller.encoder.encode(requests)
    if vectors.shape != (len(requests), manifest.dimension) or not np.isfinite(vectors).all():
        raise BundleError(f"must give finite [{len(requests)}, {manifest.dimension}], gave {list(vectors.shape)}")


def _answer(recaller: Recaller) -> None:
    """With seen items allowed every item is eligible, so every source must return exactly k."""
    bundle = recaller.bundle
    k = min(K, bundle.manifest.items)
    asked = [RecallQuery(k=k)]
    if recaller.encoder is not None:
        asked.append(RecallQuery(history=[bundle.item_names[0]], k=k, exclude_seen=False))
    asked += [RecallQuery(user_id=user, k=k, exclude_seen=False) for user in bundle.query_names[:QUERIES]]
    for query, answer in zip(asked, recaller.recall_many(asked), strict=True):
        # No user id: the text goes to logs.
        by = "a user" if query.user_id is not None else "a history" if query.history is not None else "nothing"
        if len(set(answer.ids)) != k or not np.isfinite(answer.scores).all():
            raise BundleError(
                f"must be {k} items with finite scores, were {len(set(answer.ids))} from {answer.source!r} for {by}"
            )
    # Single queries take another path than batches; the first caller should find both warm.
    for query in asked[:3]:
        recaller.recall(query)
