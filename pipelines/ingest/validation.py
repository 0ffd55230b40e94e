"""Chooses the validation of a given split that resembles its test, and tells the user.

What is best for the next few items of a list is not best for a random part of it: a validation of the other kind
selects settings that the test penalises.
"""

import json

import numpy as np

from pipelines.console import say
from pipelines.ingest.columns.event_table import EventTable
from pipelines.ingest.order import places
from pipelines.ingest.splits import TEST, TRAIN, VALID, respects_time
from towers.config.sections import DataConfig

LEAST, MOST = 0.05, 0.5  # shares that validate where the recipe names none


def like_the_test(events: EventTable, config: DataConfig) -> DataConfig:
    """Returns the recipe with `data.validation = "auto"` of a given split resolved.

    If the test comes after the users' other events, by their times or as far as the lists show an order, the last of
    those validate, unless the files name others: as large a share as the test is of all, from `LEAST` to `MOST`, if the
    recipe names none.

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
    if config.validation != "auto" or not last:
        return config
    like = round(min(MOST, max(LEAST, float(test.mean()))), 2)
    share = config.valid_share if "valid_share" in config.model_fields_set else like
    keys = {"validation": "last", "valid_share": share, **({} if timed else {"ordered": True})}
    if filed:
        advice = ", ".join(f"data.{key} = {json.dumps(value)}" for key, value in keys.items())
        kept = f"the validation file is kept, though the test comes after the lists {reason}"
        say(f"{kept}; to validate like the test: {advice}")
        return config
    say(f"validation: the last {share:.0%} of each user's events, because the test comes after the others {reason}")
    if events.time is None:
        events.time, events.time_unit = np.arange(len(events), dtype=np.int64), "order"
    return config.model_copy(update=keys)


def _in_order(events: EventTable, config: DataConfig) -> tuple[bool, str]:
    """Returns whether the test comes after the lists, as the recipe says or the lists show, and how that is known."""
    declared = events.time_unit == "order"
    if not declared and config.validation != "auto":
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
