"""Measures an opened bundle by real searches: recall of its index, latency, agreement with another bundle."""

from collections.abc import Iterator, Sequence
from time import perf_counter

import numpy as np

from pipelines.bundles.blessing import Judgement
from pipelines.console import amount
from pipelines.errors import DataError
from pipelines.launch.rules import AgreementRule, IndexRule, LatencyRule, Limit
from serving.recall.query import RecallQuery
from serving.recall.recaller import Recaller
from serving.recall.self_test import index_recall

SAMPLE, WARM_UP, SEED = 1_000, 50, 0
INDEX_SEED = 2  # another sample than the tuning's, of seed 0, and the report's curve, of seed 1


def judge_index(recaller: Recaller, rule: IndexRule) -> Judgement:
    """Recall@k against exact search of a sample of the stored queries.

    Raises:
        BundleError: the index gives what is no answer.
        DataError: the bundle has no vectors to search with.
    """
    queries = recaller.bundle.sample_queries(SAMPLE, INDEX_SEED)
    if not len(queries):
        raise DataError(f"{recaller.bundle.path}: all its vectors are zero; its index cannot be measured")
    k = min(rule.k, recaller.bundle.manifest.items)
    what, note = f"recall@{rule.k} of the index against exact search", amount(len(queries), "queries")
    return Limit(at_least=rule.at_least).judge(what, index_recall(recaller, queries, k), note)


def judge_latency(recaller: Recaller, rule: LatencyRule) -> Iterator[Judgement]:
    """Milliseconds of whole answers to single queries of `_queries`, or by vectors where no user is known."""
    bundle = recaller.bundle
    k = min(rule.k, bundle.manifest.items)
    queries = _queries(recaller, k) or [
        RecallQuery(vector=vector.tolist(), k=k) for vector in bundle.item_vectors[:SAMPLE]
    ]
    for query in queries[:WARM_UP]:
        recaller.recall(query)
    took_ms = []
    for query in queries:
        start = perf_counter()
        recaller.recall(query)
        took_ms.append(1_000 * (perf_counter() - start))
    for percent, limit in ((50, rule.p50_ms), (99, rule.p99_ms)):
        if limit is not None:
            what, note = f"latency of {amount(rule.k, 'items')}, p{percent} in ms", amount(len(queries), "queries")
            yield Limit(at_most=limit).judge(what, float(np.percentile(took_ms, percent)), note)


def judge_agreement(candidate: Recaller, baseline: Recaller, rule: AgreementRule) -> Judgement:
    """The mean share of the baseline's first k items that the candidate answers, too, over `_queries`.

    Raises:
        DataError: the baseline knows no users, or has no item for them.
    """
    queries = _queries(baseline, min(rule.k, baseline.bundle.manifest.items))
    both = zip(baseline.recall_many(queries), candidate.recall_many(queries), strict=True)
    shares = [len({*one.ids} & {*two.ids}) / len(one.ids) for one, two in both if one.ids]
    if not shares:
        lacks = "has no item left for any list" if queries else "knows no users"
        raise DataError(f"{baseline.bundle.path}: {lacks}, so there are no lists to compare")
    what, note = (
        f"share of the baseline's first {amount(rule.k, 'items')}",
        "items" if queries[0].similar_to else "users",
    )
    return Limit(at_least=rule.at_least).judge(what, float(np.mean(shares)), amount(len(queries), note))


def _queries(recaller: Recaller, k: int) -> Sequence[RecallQuery]:
    """A sample of the known users; of a bundle of item similarity, which knows popular items for them, of the items."""
    of_items = recaller.bundle.manifest.is_similarity
    names = recaller.bundle.item_ids if of_items else recaller.bundle.query_names
    rows = np.random.default_rng(SEED).choice(len(names), size=min(SAMPLE, len(names)), replace=False)
    asked = [names[row] for row in rows.tolist()]
    return [RecallQuery(similar_to=[name], k=k) if of_items else RecallQuery(user_id=name, k=k) for name in asked]
