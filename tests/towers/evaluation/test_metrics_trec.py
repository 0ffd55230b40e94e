"""The metrics against trec_eval, by pytrec_eval, on lists of every shape.

Recall, precision, reciprocal rank and success agree as they are. trec_eval divides DCG@k by the ideal of the first k
targets, as we do. Its MAP cut at k divides by all targets: that is ours where no query has more than k of them; ours
divides by min(k, targets), so a list full of hits is worth 1.
"""

import numpy as np
import pytrec_eval
from hypothesis import given
from hypothesis import strategies as st

from towers.evaluation import metrics

ITEMS = 12
# Ours -> trec_eval's.
SAME = {"recall": "recall", "precision": "P", "ndcg": "ndcg_cut", "hit_rate": "success"}
Queries = list[tuple[list[int], list[int]]]


@st.composite
def queries(draw: st.DrawFn) -> Queries:
    """Lists, empty ones and such of nothing but hits among them, each with at least one target."""
    items = st.lists(st.integers(0, ITEMS - 1), unique=True, max_size=ITEMS)
    targets = st.lists(st.integers(0, ITEMS - 1), unique=True, min_size=1, max_size=ITEMS)
    return draw(st.lists(st.tuples(items, targets), min_size=1, max_size=5))


def trec(asked: Queries, measures: set[str]) -> list[dict[str, float]]:
    """What trec_eval makes of the lists, given as scores that fall; a query without a list scores 0 everywhere."""
    relevant = {str(number): {f"i{item}": 1 for item in targets} for number, (_, targets) in enumerate(asked)}
    run = {
        str(number): {f"i{item}": float(-place) for place, item in enumerate(ranked)}
        for number, (ranked, _) in enumerate(asked)
        if ranked
    }
    found = pytrec_eval.RelevanceEvaluator(relevant, measures).evaluate(run)
    names = [name for figures in found.values() for name in figures]
    return [found.get(str(number), dict.fromkeys(names, 0.0)) for number in range(len(asked))]


def ours(asked: Queries, name: str, k: int) -> np.ndarray:
    lists = np.full((len(asked), ITEMS), -1)
    for row, (ranked, _) in enumerate(asked):
        lists[row, : len(ranked)] = ranked
    counts = np.array([len(targets) for _, targets in asked])
    items = np.concatenate([np.array(targets) for _, targets in asked])
    hits = metrics.hits(lists, np.concatenate([[0], np.cumsum(counts)]), items)
    return metrics.METRICS[name](hits, counts, k)


@given(queries(), st.integers(1, ITEMS + 8))
def test_recall_precision_ndcg_and_success(asked: Queries, k: int) -> None:
    found = trec(asked, {f"{name}.{k}" for name in SAME.values()})
    for name, theirs in SAME.items():
        expected = [figures.get(f"{theirs}_{k}", 0.0) for figures in found]
        np.testing.assert_allclose(ours(asked, name, k), expected, atol=1e-6, err_msg=name)


@given(queries(), st.integers(1, ITEMS + 8))
def test_reciprocal_rank_is_that_of_the_cut_list(asked: Queries, k: int) -> None:
    cut = [(ranked[:k], targets) for ranked, targets in asked]
    expected = [figures.get("recip_rank", 0.0) for figures in trec(cut, {"recip_rank"})]
    np.testing.assert_allclose(ours(asked, "mrr", k), expected, atol=1e-6)


@given(queries(), st.integers(1, ITEMS + 8))
def test_map_differs_from_trecs_by_its_divisor_alone(asked: Queries, k: int) -> None:
    found = trec(asked, {f"map_cut.{k}"})
    expected = [
        figures.get(f"map_cut_{k}", 0.0) * len(targets) / min(k, len(targets))
        for figures, (_, targets) in zip(found, asked, strict=True)
    ]
    np.testing.assert_allclose(ours(asked, "map", k), expected, atol=1e-6)


def test_a_list_of_nothing_but_hits_scores_one_where_k_places_can() -> None:
    asked = [([3, 1, 2], [1, 2, 3, 4, 5])]
    assert [float(ours(asked, name, 3)[0]) for name in ("map", "ndcg", "capped_recall", "precision")] == [1.0] * 4
    assert trec(asked, {"map_cut.3"})[0]["map_cut_3"] == 3 / 5
