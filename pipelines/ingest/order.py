"""Doubts `data.ordered` where a given test split is a random part of ordered lists instead of what comes after them.

The order of such lists gives the test away: between two train items that stand side by side, an item is missing. There
are no times to look at, but items that users take one after another stand close to each other in many lists. So the
place in a user's list that a held-out item belongs to is the mean place of the user's items, weighted by how close to
it they stand in other users' lists. Over many users the mean place is 1/2 for a random part, and later for events that
follow. How much later differs from one data set to the next; the same share of each list, taken from its end, shows it.
"""

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from pipelines.ingest.columns.event_table import EventTable
from pipelines.ingest.splits import TEST
from towers.config.features import WINDOW
from towers.data.events import Int64s

USERS = 2_000  # a sample; at most half of the users, because the others' lists are what it is compared with
FEWEST_USERS, FEWEST_EVENTS = 100, 5
MOST_EVENTS = 2_000_000  # of the others
ERRORS = 4  # standard errors beyond which a difference is no chance

Doubles = NDArray[np.float64]


def doubt(events: EventTable, label: NDArray[np.uint8]) -> str | None:
    """Returns why the test events do not seem to follow the others in time; None if they do, or nothing shows it.

    Args:
        events: in the order of the files.
        label: [E] the split of each.
    """
    assert events.time is not None
    order = np.lexsort((events.time, events.user))
    user, item, held = events.user[order], events.item[order], label[order] == TEST
    users = len(events.user_ids)
    known, tested = (np.bincount(user[part], minlength=users) for part in (~held, held))
    some = np.flatnonzero((known >= FEWEST_EVENTS) & (tested > 0))
    if len(some) < FEWEST_USERS:
        return None
    chosen = np.sort(np.random.default_rng(0).permutation(some)[: min(USERS, len(some) // 2)])
    others = ~held & ~np.isin(user, chosen)
    others &= np.cumsum(others) <= MOST_EVENTS
    close = _closeness(user[others], item[others], len(events.item_ids))
    share = tested[some].sum() / (known[some] + tested[some]).sum()
    after, last = [], []
    for each in chosen:
        low, high = np.searchsorted(user, [each, each + 1])
        own, test = item[low:high], held[low:high]
        taken = own[~test]
        cut = len(taken) - max(1, round(share * len(taken)))
        after.append(_place(close, taken, own[test]))
        last.append(_place(close, taken[:cut], taken[cut:]))
    (place, error), (end, end_error) = _mean(after), _mean(last)
    ordered, random = end - 0.5 > ERRORS * end_error, place + ERRORS * error < (0.5 + end) / 2
    if not (ordered and random):
        return None
    return (
        f"data.ordered: the test does not seem to come after the lists: its items belong at place {place:.3f} of a "
        f"user's list on average, from 0, the begin, to 1, the end, where items from the ends of the lists belong at "
        f"{end:.3f} and a random part at 0.5; the order of such lists gives the test away, so leave data.ordered out"
    )


def _closeness(user: Int64s, item: Int64s, items: int) -> sparse.csr_array:
    """[items, items] how often and how near each other items are taken, relative to the second's total."""
    pairs = [sparse.coo_array((items, items)).tocsr()]
    for distance in range(1, WINDOW + 1):
        same = user[:-distance] == user[distance:]
        one, other = item[:-distance][same], item[distance:][same]
        pairs.append(sparse.coo_array((np.full(len(one), 1 / distance), (one, other)), (items, items)).tocsr())
    counts = sum(pairs[1:], pairs[0])
    counts = counts + counts.T
    total: Doubles = counts.sum(axis=0)
    return sparse.csr_array(counts @ sparse.diags_array(1 / np.sqrt(np.where(total > 0, total, np.inf))))


def _place(close: sparse.csr_array, taken: Int64s, asked: Int64s) -> float:
    """Returns the mean place, from 0 to 1, that items `asked` have in the list `taken`; NaN if nothing is close."""
    weight = close[asked][:, taken].toarray()
    total = weight.sum(axis=1)
    place = weight @ ((np.arange(len(taken)) + 0.5) / len(taken))
    return float(np.mean(place[total > 0] / total[total > 0])) if total.any() else np.nan


def _mean(values: list[float]) -> tuple[float, float]:
    """Returns the mean of what is not NaN, and its standard error."""
    some = np.array([value for value in values if not np.isnan(value)])
    return (float(some.mean()), float(some.std() / np.sqrt(len(some)))) if len(some) else (0.5, np.inf)
