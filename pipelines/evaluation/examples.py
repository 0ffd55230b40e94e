"""Examples of a report: what some users took, what the model recalls for them, and the nearest items of some items."""

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.dataset.heldout import HeldOut
from pipelines.rankers.ranker import Served

USERS, ITEMS, SHOWN, SEED = 3, 8, 10, 0
TITLES = ("title", "name")  # columns of items, the first that is there


def names(items: pl.DataFrame) -> pl.Series:
    """Returns what to call each of the data set's items, [N]: its title and id where there are titles, else its id."""
    ids = items["item_id"].cast(pl.String)
    for column in TITLES:
        if column in items.columns and items[column].dtype == pl.String:
            titled = items[column] + " (" + ids + ")"
            return pl.select(pl.coalesce(titled, ids)).to_series()
    return ids


def example_rows(values: NDArray[np.floating[Any]]) -> dict[str, int]:
    """Returns the rows of the best, the median and the worst of `values`, [Q], and some by a fixed seed."""
    order = np.argsort(values, kind="stable")
    random = np.random.default_rng(SEED).choice(len(order), min(USERS, len(order)), replace=False)
    rows = {"best": order[-1], "median": order[len(order) // 2], "worst": order[0]}
    rows |= {f"seed {SEED}, {number}": row for number, row in enumerate(random, start=1)}
    return {what: int(row) for what, row in rows.items()}


def users(
    served: Served, called: pl.Series, held: HeldOut, recall: NDArray[np.float32], k: int
) -> list[dict[str, Any]]:
    """Returns the user of the best, of the median and of the worst recall, and some by a fixed seed.

    Args:
        served: the bundle.
        called: [N] of `names`.
        held: its test users.
        recall: [Q] recall@k of each.
        k: length of the lists that are judged; their first `SHOWN` items and all hits are shown.
    """
    of_row = example_rows(recall)
    rows = np.array(list(of_row.values()))
    asked = held.of_queries(rows)
    lists = served.exact(k)(asked)
    content = []
    for place, (what, row) in enumerate(of_row.items()):
        taken = asked.target_items[asked.target_offsets[place] : asked.target_offsets[place + 1]]
        before = asked.seen_items[asked.seen_offsets[place] : asked.seen_offsets[place + 1]]
        shown = lists[place][lists[place] >= 0]
        hits = np.isin(shown, taken)
        content.append(
            {
                "title": f"{what}: {hits.sum()} of {len(taken)} targets among the first {k} (recall {recall[row]:.2f})",
                "history": called.gather(before[::-1][:SHOWN]).to_list(),
                "recalled": [
                    {"rank": rank, "name": called[int(item)], "hit": bool(hit)}
                    for rank, (item, hit) in enumerate(zip(shown, hits, strict=True), start=1)
                    if hit or rank <= SHOWN
                ],
                "targets": [
                    {"name": called[int(item)], "hit": bool(hit)}
                    for item, hit in zip(taken[:SHOWN], np.isin(taken[:SHOWN], shown), strict=True)
                ],
            }
        )
    return content


def neighbours(served: Served, called: pl.Series, popularity: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Returns the nearest items by cosine of the most popular items and of some by a fixed seed.

    Args:
        served: the bundle.
        called: [N] of `names`.
        popularity: [N] events of each item.
    """
    vectors = served.unit_vectors
    known = np.flatnonzero(served.item_rows >= 0)
    popular = known[np.argsort(-popularity[known], kind="stable")[: ITEMS // 2]]
    random = np.random.default_rng(SEED).choice(known, min(ITEMS // 2, len(known)), replace=False)
    chosen = np.unique(np.concatenate([popular, random]))
    scores = vectors[chosen] @ vectors[known].T
    scores[chosen[:, np.newaxis] == known] = -np.inf
    nearest = np.argsort(-scores, axis=1, kind="stable")[:, : min(SHOWN, len(known) - 1)]
    return [
        {
            "name": called[int(item)],
            "others": [f"{called[int(known[other])]}: {scores[place, other]:.2f}" for other in nearest[place]],
        }
        for place, item in enumerate(chosen)
    ]
