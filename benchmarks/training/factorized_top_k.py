"""TensorFlow Recommenders' evaluation: its metric `FactorizedTopK`, compiled, and its layers asked with exclusions.

In: vectors. Out: by setting, a function to time. The metric takes one target a query, so that a user of n targets is n
queries, and masks nothing. `query_with_exclusions` finds k + E, less E seen ones; users who saw as much share a batch.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_recommenders.layers import factorized_top_k as top_k
from tensorflow_recommenders.metrics import FactorizedTopK

SETTINGS = {"brute force, 128 queries": 128, "brute force, 512 queries": 512, "streaming, 512 queries": 512}


def metrics(queries: Any, items: Any, k: int, users: Any, targets: Any) -> dict[str, Callable[[], float]]:
    """The metric over held-out events `users` [E], `targets` [E]: the share of targets among the first k."""
    return {n: _metric(_layer(n, items, k), size, queries, items, k, users, targets) for n, size in SETTINGS.items()}


def masked(queries: Any, items: Any, k: int, offsets: Any, seen: Any) -> dict[str, Callable[[], Any]]:
    """The rows [Q, k] of every user, without ``seen[offsets[u]:offsets[u + 1]]``."""
    settings = {name: (_layer(name, items, k), size) for name, size in SETTINGS.items()}
    return {n: partial(_rows, *setting, queries, k, offsets, seen) for n, setting in settings.items()}


def _layer(name: str, items: Any, k: int) -> Any:
    if name.startswith("brute"):
        return top_k.BruteForce(k=k).index(tf.constant(items))
    return top_k.Streaming(k=k).index_from_dataset(tf.data.Dataset.from_tensor_slices(items).batch(16_384).cache())


def _metric(layer: Any, size: int, queries: Any, items: Any, k: int, users: Any, targets: Any) -> Callable[[], float]:
    metric = FactorizedTopK(layer, ks=(k,))

    @tf.function(reduce_retracing=True)
    def update(*vectors: Any) -> None:
        metric.update_state(*vectors)

    def accuracy() -> float:
        metric.reset_states()
        for begin in range(0, len(users), size):
            update(queries[users[begin : begin + size]], items[targets[begin : begin + size]])
        return float(metric.result()[0])

    return accuracy


def _rows(layer: Any, size: int, queries: Any, k: int, offsets: Any, seen: Any) -> Any:
    rows, counts = np.empty((len(queries), k), np.int32), np.diff(offsets)
    for part in np.split(np.argsort(-counts, kind="stable"), range(size, len(counts), size)):
        # A power of two, so that few widths are compiled.
        excluded = np.full((len(part), 1 << (int(counts[part[0]]) - 1).bit_length()), -1, np.int32)
        own = np.concatenate([seen[offsets[user] : offsets[user + 1]] for user in part])
        excluded[np.arange(excluded.shape[1]) < counts[part, None]] = own
        rows[part] = layer.query_with_exclusions(queries[part], excluded, k=k)[1].numpy()
    return rows
