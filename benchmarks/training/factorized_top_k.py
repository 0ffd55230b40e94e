"""TensorFlow Recommenders' top-k layers, asked for every user's list with the seen items as exclusions.

In: vectors. Out: by setting, a function to time. `query_with_exclusions` finds k + E, less E seen ones; users who saw
as much share a batch.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_recommenders.layers import factorized_top_k as top_k

SETTINGS = {"brute force, 128 queries": 128, "brute force, 512 queries": 512, "streaming, 512 queries": 512}


def masked(queries: Any, items: Any, k: int, offsets: Any, seen: Any) -> dict[str, Callable[[], Any]]:
    """The rows [Q, k] of every user, without ``seen[offsets[u]:offsets[u + 1]]``."""
    settings = {name: (_layer(name, items, k), size) for name, size in SETTINGS.items()}
    return {n: partial(_rows, *setting, queries, k, offsets, seen) for n, setting in settings.items()}


def _layer(name: str, items: Any, k: int) -> Any:
    if name.startswith("brute"):
        return top_k.BruteForce(k=k).index(tf.constant(items))
    return top_k.Streaming(k=k).index_from_dataset(tf.data.Dataset.from_tensor_slices(items).batch(16_384).cache())


def _rows(layer: Any, size: int, queries: Any, k: int, offsets: Any, seen: Any) -> Any:
    rows, counts = np.empty((len(queries), k), np.int32), np.diff(offsets)
    for part in np.split(np.argsort(-counts, kind="stable"), range(size, len(counts), size)):
        # A power of two, so that few widths are compiled.
        excluded = np.full((len(part), 1 << (int(counts[part[0]]) - 1).bit_length()), -1, np.int32)
        own = np.concatenate([seen[offsets[user] : offsets[user + 1]] for user in part])
        excluded[np.arange(excluded.shape[1]) < counts[part, None]] = own
        rows[part] = layer.query_with_exclusions(queries[part], excluded, k=k)[1].numpy()
    return rows
