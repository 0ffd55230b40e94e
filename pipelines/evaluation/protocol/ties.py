"""Looks at the scores behind the lists of a report: users whose items score alike, and ties at the last place."""

from collections.abc import Iterator

import numpy as np

from pipelines.dataset.heldout import HeldOut
from pipelines.evaluation.findings import Finding
from pipelines.rankers.ranker import Served

USERS, SEED = 1_000, 0  # the sample of test users
MOST = 0.01  # share of them


def score_findings(served: Served, held: HeldOut, k: int) -> Iterator[Finding]:
    """Yields what is wrong with the scores of exact search.

    Args:
        served: the bundle.
        held: the test users, of whom a sample with a fixed seed is asked.
        k: length of the lists.
    """
    stored = np.flatnonzero(served.query_rows[held.users] >= 0)
    if len(stored) > USERS:
        stored = np.sort(np.random.default_rng(SEED).choice(stored, USERS, replace=False))
    if not len(stored):
        return
    scores = served.best_scores(held.of_queries(stored), k + 1)
    longer = np.isfinite(scores[:, k])  # more than k items are left: the last place is a choice
    constant = longer & (scores[:, 0] == scores[:, k])
    tied = longer & ~constant & (scores[:, k - 1] == scores[:, k])
    for name, those, text in (
        ("constant scores", constant, f"the first {k + 1} items have one score: their order means nothing"),
        ("ties at the last place", tied, f"places {k} and {k + 1} have one score: which of them is in is arbitrary"),
    ):
        share = float(those.mean())
        if share > MOST:
            yield Finding(name, f"for {share:.1%} of the users {text}", share, MOST)
