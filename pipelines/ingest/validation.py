"""Chooses the validation of a given split that resembles its test, and tells the user.

What is best for the next few items of a list is not best for a random part of it: a validation of the other kind
selects settings that the test penalises.

Without times, the lists tell whether the test comes after them or is a random part of them. Items that users take one
after another stand close to each other in many lists. So the place in a user's list that a held-out item belongs to is
the mean place of the user's items, weighted by how close to it they stand in other users' lists. Over many users the
mean place is 1/2 for a random part, and later for events that follow. How much later differs from one data set to the
next; the same share of each list, taken from its end, shows it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from pipelines.console import say
from pipelines.ingest.columns.event_table import EventTable
from pipelines.ingest.splits import TEST, TRAIN, VALID, respects_time
from towers.config.features import WINDOW
from towers.config.sections import DataConfig
from towers.data.events import Int64s

LEAST, MOST = 0.05, 0.5  # shares that validate where the recipe names none
USERS = 2_000  # a sample; at most half of the users, because the others' lists are what it is compared with
FEWEST_USERS, FEWEST_EVENTS = 100, 5
MOST_EVENTS = 2_000_000  # of the others
ERRORS = 4  # standard errors beyond which a difference is no chance
UNREAD = {"test_share": DataConfig.model_fields["test_share"].default}  # and so in nothing's way

Doubles = NDArray[np.float64]


def like_the_test(events: EventTable, config: DataConfig) -> DataConfig:
    """Returns the recipe with the validation of a given split resolved: which events, and what share of them.

    With `data.validation = "auto"` the last events of each user validate if the test comes after the others, by their
    times or as far as the lists show an order; but a validation file stays if it respects the times or, without times,
    unless the lists show that it is a random part of them. Where the test does not come after the others, the file
    validates, or a random part. Where the recipe names no share, it is the test's of all events, from `LEAST` to
    `MOST`: a small validation selects settings for few held-out items a user, and more popularity than a large test
    rewards.

    Args:
        events: after all filters; get the order of the files as times if the lists turn out to be in order.
        config: how to split.
    """
    if events.split is None or config.split not in ("auto", "given") or not (events.split == TEST).any():
        return config
    test, filed = events.split == TEST, bool((events.split == VALID).any())
    timed = events.time is not None and events.time_unit != "order"
    if timed:
        last = respects_time(events, np.where(test, np.uint8(TEST), np.uint8(TRAIN)))
        last, reason = last and not (filed and respects_time(events, events.split)), "by the times"
    else:
        last, reason = _in_order(events, config)
    named = "valid_share" in config.model_fields_set
    tested = float(test.mean())
    share = config.valid_share if named else round(min(MOST, max(LEAST, tested)), 2)
    if config.validation != "auto" or not last:
        if named or (filed and config.validation in ("auto", "given")):
            return config
        limit = "the most that validate" if tested > MOST else "the least that validate" if tested < LEAST else ""
        say(f"validation: {share:.0%} of the events outside the test, {limit or 'as the test is of all'}")
        return config.model_copy(update={"valid_share": share, **UNREAD})
    if filed and not timed:
        found = places(events, VALID)
        if found is None or not found.random:
            shown = "too few users to tell" if found is None else str(found)
            say(f"validation: its file, which is not known to be a random part of the lists: {shown}")
            return config
    unread = {} if named else UNREAD
    keys = {"validation": "last", "valid_share": share, **unread, **({} if timed else {"ordered": True})}
    others = "; the validation file trains, data.validation = 'given' keeps it" if filed else ""
    said = f"the last {share:.0%} of each user's events, because the test comes after the others {reason}{others}"
    say(f"validation: {said}")
    if events.time is None:
        events.time, events.time_unit = np.arange(len(events), dtype=np.int64), "order"
    return config.model_copy(update=keys)


def _in_order(events: EventTable, config: DataConfig) -> tuple[bool, str]:
    """Returns whether the test comes after the lists, as the recipe says or the lists show, and how that is known."""
    declared = events.time_unit == "order"
    if not declared and (config.validation != "auto" or "ordered" in config.model_fields_set):
        return False, ""
    found = places(events)
    if not declared:
        return found is not None and found.after, f"as the order of the files shows: {found}"
    if found is None or not found.random:
        return True, "as the files are in order"
    say(
        f"warning: data.ordered: the test does not seem to come after the lists: {found}; the order of such lists "
        "gives the test away, so leave data.ordered out"
    )
    return False, ""


@dataclass(frozen=True)
class Places:
    """Where items belong in their users' lists, on average: from 0, the start, to 1, the end; a random part at 1/2.

    Attributes:
        held: of the events of another file.
        error: its standard error.
        end: of items from the ends of the lists.
        end_error: its standard error.
    """

    held: float
    error: float
    end: float
    end_error: float

    @property
    def after(self) -> bool:
        """Whether the lists have an order, and the others come after them."""
        return self._order and self.held - ERRORS * self.error > (0.5 + self.end) / 2

    @property
    def random(self) -> bool:
        """Whether the lists have an order, and the others are a random part of them."""
        return self._order and self.held + ERRORS * self.error < (0.5 + self.end) / 2

    @property
    def _order(self) -> bool:
        return self.end - 0.5 > ERRORS * self.end_error

    def __str__(self) -> str:
        return (
            f"its items belong at place {self.held:.3f} of a user's list on average, from 0, the start, to 1, the end, "
            f"where items from the ends of the lists belong at {self.end:.3f} and a random part at 0.5"
        )


def places(events: EventTable, part: int = TEST) -> Places | None:
    """Returns where the test of a given split, or its validation, belongs; None if there are too few users to tell.

    Args:
        events: in the order of the files.
        part: the file that is compared with the lists of train; the third one is left out.
    """
    assert events.split is not None
    users = len(events.user_ids)
    known, tested = (np.bincount(events.user[events.split == each], minlength=users) for each in (TRAIN, part))
    some = np.flatnonzero((known >= FEWEST_EVENTS) & (tested > 0))
    if len(some) < FEWEST_USERS:
        return None
    chosen = np.sort(np.random.default_rng(0).permutation(some)[: min(USERS, len(some) // 2)])
    is_chosen = np.zeros(users, bool)
    is_chosen[chosen] = True
    is_other = ~is_chosen & (np.cumsum(np.where(is_chosen, 0, known)) <= MOST_EVENTS)
    taken_by = np.flatnonzero((is_chosen | is_other)[events.user] & np.isin(events.split, (TRAIN, part)))
    order = taken_by[np.argsort(events.user[taken_by], kind="stable")]
    user, item, held = events.user[order], events.item[order], events.split[order] == part
    others = is_other[user] & ~held
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
    return Places(*_mean(after), *_mean(last))


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
