"""Finds the impressions of every training event: what its user was shown in the same context and did not take.

An impression is an event of weight 0 of a split that trains. Its context is its request, if the recipe names a column
for that, else the time of its user before the event, or all of it in data without times. The result is memory-mapped;
memory holds one block of users.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from pipelines.dataset.arrays import ArrayWriter, map_array, sum_of_offsets
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import user_blocks
from towers.config.loss_section import SampledLoss
from towers.config.recipe import Config
from towers.data.events import Events, Int64s
from towers.data.impressions import AT_ONCE, NEVER, Impressions
from towers.errors import ConfigError

TYPES = {"item": np.int32, "taken": np.int64, "begin": np.int64, "end": np.int64}
KINDS = ("string", "number")  # of a column that can name a request


def refuse_no_impressions(config: Config, data: Dataset) -> Config:
    """Refuses a recipe that wants impressions, or their requests, of a data set without them.

    Raises:
        ConfigError: names the key and what `towers prepare` needs.
    """
    loss = config.loss.sampled
    if loss is None or not loss.impressions:
        return config
    if not any(len(data.events(name)) for name in _parts(data, ("train",))):
        types = data.manifest.config.event_types
        named = f"; data.event_types of the data set keeps {', '.join(types)} alone" if types else ""
        raise ConfigError(
            f"loss.impressions: the data set has no training event of weight 0, an item that was shown and not taken; "
            f"prepare it from events with such weights (data.columns.weight), or set it to 0; got {loss.impressions}"
            f"{named}"
        )
    column, columns = loss.impression_request, data.manifest.event_columns
    if column is not None and columns.get(column) not in KINDS:
        fit = ", ".join(name for name, kind in columns.items() if kind in KINDS) or "none"
        raise ConfigError(
            f"loss.impression_request: must be a column of texts or numbers of the events; the data set has {fit}; got "
            f"{column!r}"
        )
    return config


def impressions_of(
    data: Dataset,
    splits: Sequence[str],
    events: Events,
    context: pl.LazyFrame | None,
    directory: Path,
    loss: SampledLoss | None,
) -> Impressions | None:
    """Finds the impressions of training events.

    Args:
        data: the data set.
        splits: those that train, in time order.
        events: their positive events.
        context: the own columns of those, in the same order.
        directory: gets the files.
        loss: says how many impressions an example has and which column names the request.

    Returns:
        None for a loss without impressions.

    Raises:
        ConfigError: no event has an impression in its context.
        OSError: the disk is full.
    """
    if loss is None or not loss.impressions:
        return None
    names, request = _parts(data, splits), loss.impression_request
    # The events first: of the same moment, they come after what they follow.
    parts = [events, *(data.events(name) for name in names)]
    tables = [] if request is None else [context, *map(data.context, names)]
    columns = [table.select(request) for table in tables if table is not None]
    size, starts, found = sum(map(len, parts[1:])), sum_of_offsets(parts[1:]), False
    directory.mkdir()
    with ExitStack() as opened:
        files = {
            name: opened.enter_context(
                ArrayWriter(directory / f"{name}.npy", (size if name in ("item", "taken") else len(events),), kind)
            )
            for name, kind in TYPES.items()
        }
        for low, high in user_blocks(parts):
            own = [part.between(low, high) for part in parts]
            rows = [(int(part.offsets[low]), len(block)) for part, block in zip(parts, own, strict=True)]
            requests = [column.slice(*row).collect() for column, row in zip(columns, rows, strict=bool(columns))]
            block = _of_block(own, requests, data.manifest.items)
            found = found or bool((block.end > block.begin).any())
            placed = block._replace(begin=block.begin + starts[low], end=block.end + starts[low])
            for name, array in placed._asdict().items():
                files[name].append(array)
    if not found:
        where = "before it" if request is None else f"of its own {request!r}"
        raise ConfigError(f"loss.impressions: no training event has an impression {where}; set it to 0")
    mapped = {name: map_array(directory / f"{name}.npy") for name in TYPES}
    return Impressions(**mapped, nearest=request is None and events.time is not None, number=loss.impressions)


class _Found(NamedTuple):
    """Of a block of users; fields as those of `Impressions`."""

    item: Int64s
    taken: Int64s
    begin: Int64s
    end: Int64s


def _of_block(own: Sequence[Events], requests: Sequence[pl.DataFrame], items: int) -> _Found:
    """`own` holds the positive events of a block of users, then their impressions, split by split."""
    positive = len(own[0])
    user, item = (np.concatenate([getattr(part, name) for part in own]).astype(np.int64) for name in ("user", "item"))
    time = np.concatenate([np.zeros(len(part), np.int64) if part.time is None else part.time for part in own])
    group, when = np.zeros(len(user), np.int64), time
    if requests:
        # A request is one context, whatever the times in it. Without one, nothing shares it.
        named = pl.concat(requests).to_series()
        group = named.rank("dense").fill_null(0).cast(pl.Int64).to_numpy()
        group = np.where((group == 0) & (np.arange(len(group)) < positive), -1, group)
        when = np.zeros_like(time)
    # Of what was shown at one moment, the first rows of a file come last and so are nearest: the top of a list is what
    # was surely seen. An impression comes before the events of its moment.
    order = np.lexsort((-np.arange(len(user)), when, group, user))
    shown = order >= positive
    before: Int64s = np.cumsum(shown) - shown
    context = np.stack([user[order], group[order]])
    starts = np.append(True, (context[:, 1:] != context[:, :-1]).any(axis=0))[: len(order)]
    first = np.maximum.accumulate(np.where(starts, before, 0))
    begin, end = np.empty((2, positive), np.int64)
    begin[order[~shown]], end[order[~shown]] = first[~shown], before[~shown]
    pair = user * items + item
    pairs, earliest = np.unique(pair[:positive], return_index=True)
    wanted = pair[order[shown]]
    place = np.minimum(np.searchsorted(pairs, wanted), max(len(pairs) - 1, 0))
    taken = np.full(len(wanted), NEVER)
    if len(pairs):
        taken = np.where(pairs[place] == wanted, time[earliest[place]], NEVER)
    if requests:
        # What was taken of a page was not left there, whatever was taken of it first.
        _, name = np.unique(pair, return_inverse=True)
        name = name * (len(group) + 2) + group + 1
        taken[np.isin(name[order[shown]], name[:positive])] = AT_ONCE
    return _Found(item[order[shown]], taken, begin, end)


def _parts(data: Dataset, splits: Sequence[str]) -> list[str]:
    """Names of the impressions of splits."""
    return [name for name in data.parts(*splits) if name not in splits]
