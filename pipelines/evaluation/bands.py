"""Cuts a number into bands of about equal size."""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

BANDS = 4
MISSING = "missing"

Mask = NDArray[np.bool_]
Part = tuple[str, str, Mask]  # of a group: label, definition, which users or targets


def bands(group: str, what: str, values: NDArray[np.float64] | NDArray[np.int64]) -> Iterator[Part]:
    """Yields parts of about equal size by a number, and that of the missing values (NaN).

    Args:
        group: the name of what is cut.
        what: the same in words, for the definitions.
        values: one for each user or target.
    """
    missing = np.isnan(values)
    some = values[~missing]
    lower = _edges(some)
    upper = [*lower[1:], np.inf][: len(lower)]
    masks = [(values >= low) & (values < end) & ~missing for low, end in zip(lower, upper, strict=True)]
    highest = [values[mask].max() for mask in masks]
    names = _distinct({*lower, *highest})
    for low, high, mask in zip(lower, highest, masks, strict=True):
        label = names[low] if low == high else f"{names[low]} to {names[high]}"
        yield label, f"{what}: {label}", mask
    yield MISSING, f"{group}: no value", missing


def _edges(values: NDArray[np.float64] | NDArray[np.int64]) -> NDArray[Any]:
    """Returns the least value of each band, ascending: every value if there are few, else quantiles.

    A value that fills a band is one of its own; those between two such values are cut by themselves.
    """
    different, counts = np.unique(values, return_counts=True)
    if len(different) <= BANDS:
        return different
    full = BANDS * counts >= len(values)
    begins = np.flatnonzero(full | np.append(True, full[:-1]))
    edges = []
    for begin, end in pairwise([*begins.tolist(), len(different)]):
        some = np.repeat(different[begin:end], counts[begin:end])
        parts = max(1, round(BANDS * len(some) / len(values)))
        edges.append(np.quantile(some, np.linspace(0, 1, parts + 1)[:-1], method="lower"))
    return np.unique(np.concatenate(edges))


def _distinct(values: Iterable[float]) -> dict[float, str]:
    """Returns a text for each number: whole ones in full, others with six digits, or as many as tell them apart."""
    texts: dict[float, str] = {}
    for digits in range(6, 18):
        texts = {each: f"{int(each):,}" if float(each).is_integer() else f"{each:,.{digits}g}" for each in values}
        if len(set(texts.values())) == len(texts):
            break
    return texts
