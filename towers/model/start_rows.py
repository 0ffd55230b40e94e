"""The rows that item ids start from: alike for items that users take together.

Random rows say nothing, and where items have few events, training learns late which of them are alike. Their counts
say it at once. The positive part of the pointwise mutual information ``log(c_ij C / (c_i c_j))`` is factorised: of its
eigenvectors u and positive eigenvalues s, found approximately, the rows are ``u sqrt(s)``, as long on average as the
random ones. Counts c_ij are those of `towers.features.cooccurrence`, c_i their sums and C the sum of those.

Sources: Levy & Goldberg, Neural word embedding as implicit matrix factorization, NIPS 2014; the eigenvectors:
Halko, Martinsson & Tropp, Finding structure with randomness, SIAM Review 2011.
"""

from typing import Any, Literal

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from scipy import sparse

from towers.config.features import IdFeature
from towers.data.bags import MISSING
from towers.data.events import Events, Floats, Int32s
from towers.data.feature_tables import FeatureTables
from towers.errors import ConfigError
from towers.features.cooccurrence import pair_counts
from towers.model.two_tower import TwoTower
from towers.ops.replicas import ALONE, Replicas

# Columns beside those wanted, and rounds, chosen on validation of the smaller Beauty, where NDCG@10 after 8 epochs was
# 0.0715, 0.0718, 0.0742 and 0.0730 with 1, 2, 4 and 8 rounds, and 0.0716 with the exact eigenvectors.
FURTHER, ROUNDS = 16, 4
SHORTEST = 1e-3  # of the longest row: a shorter one says nothing
MOST_PAIRS = 200_000_000  # with a count: 10 GB at the peak


def start_rows(model: TwoTower, tables: FeatureTables, events: Events, replicas: Replicas = ALONE) -> None:
    """Sets the rows of the item ids that start from co-occurrence, in place; call it before the first step.

    An item of which the factors say nothing, such as one that no user took beside another one, keeps its row, and
    so does one that no example trains, whose row is zero.

    Args:
        model: the towers.
        tables: looked-up features of the same towers.
        events: of the training.
        replicas: the workers, all of which get the rows of the first.

    Raises:
        ConfigError: too many pairs of items are taken together.
    """
    for encoder in model.candidate_tower.encoders:
        spec = encoder.spec
        if not isinstance(spec.config, IdFeature) or spec.config.start == "random":
            continue
        rows, before = tables.items[spec.name], tf.cast(encoder.table, tf.float32).numpy()
        user, item = np.asarray(events.past.user), np.asarray(events.past.item)
        information = _information(user, item, rows != MISSING, spec.config.start_window, spec.name)
        found = factors(information, before.shape[1])
        lengths = np.linalg.norm(found, axis=1)
        told = np.flatnonzero((lengths > SHORTEST * lengths.max(initial=0)) & before[rows].any(axis=1))
        if not len(told):
            continue
        usual = np.linalg.norm(before, axis=1)
        found *= usual[usual > 0].mean() / lengths[told].mean()
        before[rows[told]] = found[told]
        encoder.table.assign(tf.cast(before, encoder.table.dtype))
        replicas.copy_first([encoder.table])


def factors(matrix: sparse.csr_array[Any], dimension: int) -> Floats:
    """``u sqrt(s)`` of large eigenvalues s of a matrix, one row for each of its own, [N, dimension].

    A few rounds find the space of the eigenvalues that are largest without their signs, and these need not be exact;
    those below zero leave their columns zero. With at most 16 rows beyond `dimension` all are exact.

    Args:
        matrix: [N, N], symmetric.
        dimension: columns beyond N are zero.
    """
    size = min(matrix.shape[0], dimension + FURTHER)
    basis = np.random.default_rng(0).standard_normal((matrix.shape[0], size), np.float32)
    for _ in range(ROUNDS):
        basis, _ = np.linalg.qr(matrix @ (matrix @ basis))
    values, vectors = np.linalg.eigh(basis.T @ (matrix @ basis))
    rows = np.zeros((matrix.shape[0], dimension), np.float32)
    kept = min(size, dimension)
    rows[:, :kept] = basis @ (vectors * np.sqrt(np.maximum(values, 0)))[:, : -kept - 1 : -1]
    return rows


def _information(
    user: Int32s, item: Int32s, known: NDArray[np.bool_], window: int | Literal["list"], name: str
) -> sparse.csr_array[Any]:
    """The positive part for the known items, [N, N]."""
    items, pairs = len(known), 0
    firsts, seconds, counts = [np.empty(0, np.int32)], [np.empty(0, np.int32)], [np.empty(0, np.float32)]
    feature = f"features.candidate.{name}"
    for first, second, count in pair_counts(user, item, items, window, f"{feature}.start_window")[1]:
        kept = known[first] & known[second]
        pairs += int(kept.sum())
        if pairs > MOST_PAIRS:
            raise ConfigError(
                f"{feature}.start: 'cooccurrence' factorises at most {MOST_PAIRS:,} pairs of items, "
                "and users take more of them together; name a smaller start_window, or leave start out"
            )
        firsts.append(first[kept].astype(np.int32))
        seconds.append(second[kept].astype(np.int32))
        counts.append(count[kept].astype(np.float32))
    row, column, value = np.concatenate(firsts), np.concatenate(seconds), np.concatenate(counts)
    total = np.bincount(row, value, minlength=items)
    information = np.log(value * total.sum() / (total[row] * total[column])).astype(np.float32)
    kept = information > 0
    return sparse.csr_array((information[kept], (row[kept], column[kept])), shape=(items, items), dtype=np.float32)
