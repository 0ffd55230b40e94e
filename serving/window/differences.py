"""Two bundles on the same query: which items each alone recalls, which moved, how alike the lists are."""

from dataclasses import dataclass

from serving.window.inquiry import Inquiry, Ranked

PERSISTENCE = 0.9  # of the rank-biased overlap: the first ten ranks have 86 % of the weight


@dataclass(frozen=True)
class OnlyHere:
    """An item in one of the lists.

    Attributes:
        item: the item, with rank and score in its list.
        absent: whether the other bundle's catalogue lacks it.
        rank_there: its rank among all items of the other catalogue, by exact search; None if absent.
    """

    item: Ranked
    absent: bool
    rank_there: int | None


@dataclass(frozen=True)
class Shift:
    """An item of both lists: `first` and `second` are its rank and score in each."""

    first: Ranked
    second: Ranked


@dataclass(frozen=True)
class Differences:
    """How two answers differ.

    Attributes:
        only_first: items of the first list alone, by rank.
        only_second: items of the second list alone, by rank.
        both: the items of both lists, by rank in the first.
        overlap: the share of items in both lists, of the longer list; 1 if both are empty.
        rank_biased_overlap: in [0, 1], extrapolated (Webber, Moffat and Zobel 2010, equation 32), `PERSISTENCE`; 1 if
            both are empty.
        scales_differ: why scores of the two lists must not be compared; None if they may: same model and same source.
    """

    only_first: list[OnlyHere]
    only_second: list[OnlyHere]
    both: list[Shift]
    overlap: float
    rank_biased_overlap: float
    scales_differ: str | None


def differences(first: Inquiry, second: Inquiry) -> Differences:
    """Compares the answers of two bundles to the same query."""
    raise NotImplementedError
