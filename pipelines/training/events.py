"""Builds the training events and their batches: joins several splits into one set of files, if wanted with impressions.

The events and their context are memory-mapped or read in blocks, so memory holds one block at most.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from pipelines.dataset.arrays import DTYPES, ArrayWriter, map_events, sum_of_offsets
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import user_blocks
from towers.config.recipe import Config
from towers.data.events import Events, Int64s
from towers.data.examples import Examples, UserExamples, longest
from towers.data.feature_tables import FeatureTables
from towers.data.history import history_ends
from towers.data.impressions import Impressions
from towers.data.item_ranks import ItemRanks
from towers.data.sequence_examples import SequenceExamples
from towers.errors import ConfigError
from towers.ops.replicas import Replicas


def training_events(
    dataset: Dataset, splits: Sequence[str], directory: Path, *, impressions: bool
) -> tuple[Events, pl.LazyFrame | None]:
    """Joins several splits in the layout of `train/`; each user's events keep the order of `splits`, then their own.

    Args:
        dataset: the data set.
        splits: split names in time order, for example ``("train", "valid")``.
        directory: an existing directory for the files; a single split without impressions is read in place.
        impressions: add the events of weight 0, which the user did not act on. Histories never hold them.

    Returns:
        The events, and their own columns in the same order, or None if the data set has no such columns.

    Raises:
        OSError: the disk is full.
    """
    names = dataset.parts(*splits)
    if not impressions or not any(len(dataset.events(name)) for name in names if name not in splits):
        return _joined(dataset, splits, directory)
    (positives := directory / "positives").mkdir()
    events, context = _joined(dataset, names, directory)
    return replace(events, positives=_joined(dataset, splits, positives, columns=False)[0]), context


def training_examples(
    config: Config,
    events: Events,
    tables: FeatureTables,
    catalogue: ItemRanks,
    impressions: Impressions | None,
    replicas: Replicas,
    *,
    alone: bool,
) -> Examples:
    """Returns the batches of events; whole histories if a feature reads them in order, whole users if the loss does."""
    kind: Callable[..., Examples] = partial(SequenceExamples, alone=alone) if tables.sequences else Examples
    every = longest(events)
    positives = min(config.loss.positives, every)  # the rest of each row would be empty, and scored all the same
    if config.loss.of_users:
        kind, positives = UserExamples, every
    examples = kind(
        events,
        tables,
        catalogue,
        config.train.batch_size,
        config.train.seed,
        weighted=config.train.weighted,
        recency=config.train.recency,
        balance=config.train.balance,
        positives=positives,
        known=getattr(config.loss, "known_positives", 0),
        impressions=impressions,
        worker=replicas.rank,
        workers=replicas.count,
    )
    if not len(examples):
        raise ConfigError(
            "features.query: no training event has an earlier one of its user whose item has a row (`min_count`), and "
            "nothing else describes a query"
        )
    return examples


def _joined(
    dataset: Dataset, names: Sequence[str], directory: Path, *, columns: bool = True
) -> tuple[Events, pl.LazyFrame | None]:
    parts = [dataset.events(name) for name in names]
    tables = [table for name in names if columns and (table := dataset.context(name)) is not None]
    if len(parts) == 1:
        return parts[0], tables[0] if tables else None
    files = _write(parts, tables, directory)
    return map_events(directory), pl.scan_parquet(files, glob=False) if tables else None


def _write(parts: Sequence[Events], tables: Sequence[pl.LazyFrame], directory: Path) -> list[Path]:
    """Writes the arrays that the parts have, joined; returns the files of the events' own columns."""
    positives = [part for part in parts if part.place is None]
    offsets, starts = sum_of_offsets(parts), sum_of_offsets(positives)
    names = [name for name in ("user", "item", "time", "weight", "type") if getattr(parts[0], name) is not None]
    files: list[Path] = []
    out: dict[str, ArrayWriter] = {}
    with ExitStack() as opened, ArrayWriter(directory / "offsets.npy", offsets.shape, np.int64) as file:
        file.append(offsets)
        for low, high in user_blocks(parts):
            own = [part.between(low, high) for part in parts]
            order = _order(own, low)
            values = {name: np.concatenate([getattr(part, name) for part in own])[order] for name in names}
            positive = np.repeat([part.place is None for part in own], [len(part) for part in own])[order]
            before = starts[low] + np.cumsum(positive) - positive
            if "time" in names:
                ends = history_ends(offsets[low : high + 1] - offsets[low], values["time"])
                values["history_end"] = before[ends]
            if len(positives) < len(parts):
                values["place"] = before - starts[values["user"]]
            for name, array in values.items():
                if name not in out:
                    path = directory / f"{name}.npy"
                    out[name] = opened.enter_context(ArrayWriter(path, (int(offsets[-1]),), DTYPES[name]))
                out[name].append(array)
            if tables:
                files.append(directory / f"context-{len(files):05}.parquet")
                rows = zip(tables, parts, own, strict=True)
                frames = [table.slice(int(part.offsets[low]), len(block)).collect() for table, part, block in rows]
                pl.concat(frames)[order].write_parquet(files[-1])
    return files


def _order(own: Sequence[Events], low: int) -> Int64s:
    """Returns the order of a block's events: by user, by split, then as in the split; places in the parts."""
    user = np.concatenate([part.user for part in own])
    if all(part.place is None for part in own):
        # Stable, so a user's events keep the order of the splits and, within a split, of time.
        return np.argsort(user, kind="stable")
    # After each split come its impressions; one lies before the positive event of its place.
    split = np.repeat(np.arange(len(own)) // 2, [len(part) for part in own])
    place = [np.arange(len(p)) - p.offsets[p.user - low] + 0.5 if p.place is None else p.place for p in own]
    return np.lexsort((np.concatenate(place), split, user))
