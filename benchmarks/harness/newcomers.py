"""What a recipe recalls of users and of items without an event: a question is one test user of one data set.

In: a recipe, a data set, the baselines to ask beside it. Out: for each test user what is recalled, of all targets and
of those that are new items, and what chance would recall of the latter.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from pipelines.bundles import export
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import HeldOut, heldout, seen
from pipelines.rankers.evaluate import Ranker, column, evaluate
from pipelines.rankers.ranker import EXACT, KNOWN, Served
from pipelines.training import train
from serving.bundle.reader import Bundle
from serving.search.exact import ExactIndex
from towers.config.recipe import parse_config

NEW = "new_recall"
METRICS = ("recall", NEW)
Baselines = Callable[[Dataset, int], Mapping[str, Ranker]]


def questions(
    recipe: dict[str, Any], data: Dataset, work: Path, ks: Sequence[int], baselines: Baselines
) -> dict[str, Any]:
    """Trains, exports and asks: one entry per test user in each list.

    Args:
        recipe: with `data.refit`, so that only items without an event before the test are new to the model.
        data: its test split is asked.
        work: a folder for run and bundle, which are thrown away.
        ks: lengths of the lists, ascending.
        baselines: makes the rankers to ask besides, with lists of so many items.

    Returns:
        Lists: ``user`` ids, ``warm``: known by earlier events, ``new``: targets without any, ``chance`` to recall
        those, and ``RANKER METRIC@K`` of the exported vectors and the baselines. Numbers: ``epochs``, ``candidates``.
    """
    with tempfile.TemporaryDirectory(dir=work) as folder:
        run, bundle = Path(folder) / "run", Path(folder) / "bundle"
        summary = train.run(parse_config(recipe), data.path, run)
        export.run(run, bundle)
        opened = Bundle.open(bundle)
        served = Served.match(opened, ExactIndex(opened.recall_vectors), data)
        held = heldout(data, "test")
        new = np.bincount(seen(data, KNOWN)[1], minlength=data.manifest.items) == 0
        rankers = {EXACT: served.exact(max(ks)), **baselines(data, max(ks))}
        measured = evaluate(rankers, held, served.unit_vectors, ks, {NEW: new[held.target_items]})
    tf.keras.backend.clear_session()
    fresh_before = np.concatenate([[0], np.cumsum(new[held.target_items])])
    return {
        "user": data.users["user_id"].gather(held.users).to_list(),
        "warm": (np.diff(held.seen_offsets) > 0).tolist(),
        "new": np.diff(fresh_before[held.target_offsets]).tolist(),
        "chance": chance(held, new, served.item_rows, max(ks)).tolist(),
        **{
            f"{ranker} {metric}@{k}": np.nan_to_num(measured.of(column(ranker, metric, k))).tolist()
            for ranker in rankers
            for metric in METRICS
            for k in ks
        },
        "epochs": summary["stages"][-1]["epochs"],
        "candidates": int((served.item_rows >= 0).sum()),
    }


def chance(held: HeldOut, new: NDArray[np.bool_], item_rows: NDArray[np.int64], k: int) -> NDArray[np.float64]:
    """What a random order of the same candidates recalls of each user's new targets at k, in expectation: [Q].

    The candidates are the items with a vector that the user has not seen, M of them; each of them is among the first k
    with probability ``min(1, k / M)``, and a new target without a vector is never. 0 where a user has no new target.
    """
    out = np.zeros(len(held.users))
    for place in range(len(held.users)):
        targets = held.target_items[held.target_offsets[place] : held.target_offsets[place + 1]]
        targets = targets[new[targets]]
        known = np.unique(held.seen_items[held.seen_offsets[place] : held.seen_offsets[place + 1]])
        candidates = int((item_rows >= 0).sum() - (item_rows[known] >= 0).sum())
        if len(targets):
            out[place] = (item_rows[targets] >= 0).mean() * min(1.0, k / candidates)
    return out
