"""Excluded rows of several queries: which queries share a call of an index, and which candidates are left."""

from collections.abc import Sequence

import numpy as np

from serving.search.index import Rows, is_in

# Queries that exclude more than the others get a call of their own if it saves more than CALL candidates, the cost of a
# call.
CALL = 1_500
FEW = 8  # lines


def shared_calls(queries: Sequence[int], extra: Sequence[int]) -> list[Sequence[int]]:
    """The queries, grouped by call of ScaNN; each call fetches what its longest query needs."""
    needs = np.array([extra[query] for query in queries])
    if len(needs) * needs.max() < CALL:
        return [queries]
    groups: list[Sequence[int]] = []
    order = np.argsort(needs, kind="stable")
    rising, ordered = needs[order], np.array(queries)[order]
    while len(rising) > 1:
        saved = np.arange(1, len(rising)) * (rising[-1] - rising[:-1])
        cut = int(saved.argmax()) + 1
        if saved[cut - 1] < CALL:
            break
        groups.append(ordered[cut:].tolist())
        rising, ordered = rising[:cut], ordered[:cut]
    return [*groups, ordered.tolist()] if groups else [queries]


def keep_first(rows: Rows, queries: Sequence[int], excluded: Sequence[Rows], kept: Rows, items: int) -> None:
    """Writes the first rows of each line that are not excluded for its query into that query's line of `kept`."""
    # One mask of all items pays off over a batch: five times faster per line.
    hidden = np.zeros(items, np.bool_) if len(rows) >= FEW else None
    for line, query in zip(rows, queries, strict=True):
        left_out, out = excluded[query], kept[query]
        if hidden is None:
            left = line[~is_in(line, left_out)]
        else:
            hidden[left_out] = True
            # Row -1 reads the last item's flag, and stays -1 or is dropped.
            left = line[~hidden[line]]
            hidden[left_out] = False
        out[: len(left)] = left[: len(out)]
