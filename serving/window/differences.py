"""Two bundles on the same query: which items each alone recalls, which moved, how alike the lists are."""

from collections.abc import Sequence
from dataclasses import dataclass

from serving.window.inquiry import Inquiry, Ranked, answers

PERSISTENCE = 0.9  # of the rank-biased overlap: the first ten ranks have 86 % of the weight


Alone = tuple[Ranked, int | None]


@dataclass(frozen=True)
class Differences:
    """How two answers differ.

    Attributes:
        only_first: items of the first list alone, by rank; each with its rank by exact search among all items of the
            other catalogue, or None if that lacks it.
        only_second: items of the second list alone, likewise.
        both: the items of both lists, by rank in the first, with rank and score in each.
        overlap: the share of items in both lists, of the longer list; 1 if both are empty.
        rank_biased_overlap: in [0, 1], see `rank_biased_overlap`.
        scales_differ: why scores of the two lists must not be compared; None if they may.
    """

    only_first: list[Alone]
    only_second: list[Alone]
    both: list[tuple[Ranked, Ranked]]
    overlap: float
    rank_biased_overlap: float
    scales_differ: str | None


def differences(first: Inquiry, second: Inquiry) -> Differences:
    """Compares the answers of two bundles to the same query."""
    one, other = answers(first), answers(second)
    places = {item.id: item for item in other}
    both = [(item, places[item.id]) for item in one if item.id in places]
    shared = {item.id for item, _ in both}
    longer = max(len(one), len(other))
    return Differences(
        only_first=[_only(item, second) for item in one if item.id not in shared],
        only_second=[_only(item, first) for item in other if item.id not in shared],
        both=both,
        overlap=len(both) / longer if longer else 1.0,
        rank_biased_overlap=rank_biased_overlap([item.id for item in one], [item.id for item in other]),
        scales_differ=_scales_differ(first, second),
    )


def rank_biased_overlap(first: Sequence[str], second: Sequence[str], persistence: float = PERSISTENCE) -> float:
    """How alike two rankings are, the first ranks most: their overlap at each depth d, weighted by p^d, extrapolated.

    Equation 32 of Webber, Moffat and Zobel, "A similarity measure for indefinite rankings" (TOIS 2010), for lists of
    different lengths s <= l: with X_d shared items among the first d,
    ``(1-p)/p (sum_{d<=l} X_d/d p^d + sum_{s<d<=l} X_s (d-s)/(s d) p^d) + ((X_l - X_s)/l + X_s/s) p^l``.

    Args:
        first: ids, best first, each once.
        second: likewise.
        persistence: p in (0, 1), the weight of the next rank relative to the last.

    Returns:
        In [0, 1]: 1 for equal lists, also for two empty ones, 0 for lists without a shared item.
    """
    short, long = sorted((first, second), key=len)
    if not short:
        return float(not long)
    seen_short, seen_long = set[str](), set[str]()
    shared, at_short, total = 0, 0, 0.0
    for depth, item in enumerate(long, 1):
        seen_long.add(item)
        shared += item in seen_short
        if depth <= len(short):
            seen_short.add(short[depth - 1])
            shared += short[depth - 1] in seen_long
            at_short = shared
        beyond = max(0, depth - len(short))
        total += (shared / depth + at_short * beyond / (len(short) * depth)) * persistence**depth
    rest = (shared - at_short) / len(long) + at_short / len(short)
    return (1 - persistence) / persistence * total + rest * persistence ** len(long)


def _only(item: Ranked, there: Inquiry) -> Alone:
    row = there.items.row_of(item.id)
    return item, None if row is None else int(there.ranks[row])


def _scales_differ(first: Inquiry, second: Inquiry) -> str | None:
    """Scores compare only within one model and its prior, and popular counts only with the same."""
    sources = {
        ("popular counts" if each.plan.source == "popular" else "products of vectors") for each in (first, second)
    }
    if len(sources) > 1:
        return "the scores of one list are popular counts, those of the other products of vectors"
    one, other = first.recaller.bundle.manifest, second.recaller.bundle.manifest
    if one.model_version != other.model_version:
        return "each model has a scale of its own"
    if one.prior != other.prior:
        return "the two bundles have different priors"
    return None
