"""Reads what `task = "similarity"` learns from: classes or pairs of items, and which items are held out.

A share of the labelled items never trains: one half chooses the epoch, the other is for the report alone. The split
depends only on `data.seed`, so recipes that differ in other settings and seeds hold out the same items. The file that
`similarity.pairs` names, also packed (``.gz``) or behind a URL, is csv, tsv, parquet or jsonl with the columns `item_a`
and `item_b`. A bad row is a `DataError` that names the file and the row.
"""

import difflib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from pipelines.dataset.arrays import offsets_of
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.manifest import digest_of
from pipelines.errors import DataError
from pipelines.ingest.formats.copies import local_copies
from pipelines.ingest.formats.rejects import Rejects
from pipelines.ingest.id_files import read_ids
from serving.client.address import shown_place
from towers.config.recipe import Config
from towers.data.events import Int32s, Int64s
from towers.data.item_relations import ByClass, ByPair, Relation, counts
from towers.errors import ConfigError

TRAINING, VALIDATION, HELD_OUT = 0, 1, 2
DEFAULT_METRIC = "precision@10"  # for class labels; pairs use recall@k, as retrieval does
COLUMNS = ("item_a", "item_b")
EXACT = 2**53  # floats below hold every whole number


@dataclass(frozen=True)
class Labels:
    """Labelled items, indexed by place.

    Attributes:
        items: [n] item numbers, ascending.
        part: [n] `TRAINING`, `VALIDATION` or `HELD_OUT`.
        relation: which items are similar, by place.
        classes: class names, those with the most training items first; empty for pairs.
    """

    items: Int32s
    part: Int64s
    relation: Relation
    classes: tuple[str, ...]

    def places(self, *parts: int) -> Int64s:
        """The places of the items in these parts, ascending."""
        return np.flatnonzero(np.isin(self.part, parts)).astype(np.int64)

    def training(self) -> tuple[Int32s, Relation]:
        """The training items, and which of them are similar, by rank among them.

        Leaves out classes without a training item and, for pairs, items whose partners are all held out.
        """
        places = self.places(TRAINING)
        if isinstance(self.relation, ByClass):
            labels = self.relation.labels[places]
            trained = np.flatnonzero(np.asarray(labels.sum(axis=0)).ravel())
            return self.items[places], ByClass(labels[:, trained])
        places = places[counts(self.relation, places, places) > 0]
        return self.items[places], self.relation.only(places)


def read_labels(config: Config, data: Dataset) -> Labels:
    """Reads the classes or pairs and splits their items.

    Raises:
        ConfigError: the column is missing or holds no classes, or too few items train, are held out or can be measured.
        DataError: the pairs file is wrong.
    """
    labels = _of_pairs(config, data) if config.similarity.column is None else _of_column(config, data)
    _refuse_too_little(config, labels)
    _refuse_depth(config, labels)
    return labels


def _of_column(config: Config, data: Dataset) -> Labels:
    name = config.similarity.column or ""
    columns = data.manifest.item_columns
    if name not in columns:
        near = difflib.get_close_matches(name, columns, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(
            f"similarity.column: the data set's items have no column {name!r}; they have "
            f"{', '.join(columns) or 'none'}{hint}"
        )
    if columns[name] == "vector":
        raise ConfigError(
            f"similarity.column: {name!r} holds vectors; a class is a string, a list of strings or a whole number"
        )
    values = data.items[name]
    if columns[name] == "number" and (values.drop_nulls().drop_nans() % 1 != 0).any():
        raise ConfigError(
            f"similarity.column: {name!r} holds numbers that are not whole; a class is a string, a list of strings or "
            "a whole number"
        )
    if values.dtype.is_float() and (values.drop_nulls().drop_nans().abs() >= EXACT).any():
        raise ConfigError(
            f"similarity.column: {name!r} holds numbers of 2^53 or more, which floats round; write the classes as text"
        )
    frame = pl.DataFrame({"item": np.arange(len(values), dtype=np.int64), "class": _lists(values)})
    frame = frame.explode("class").filter(pl.col("class").is_not_null() & (pl.col("class") != "")).unique()
    if not len(frame):
        raise ConfigError(f"similarity.column: no item has a value in {name!r}; there is nothing to learn from")
    items = np.unique(frame["item"].to_numpy()).astype(np.int32)
    part = _split(len(items), config)
    place = np.searchsorted(items, frame["item"].to_numpy())
    marked = frame.with_columns(pl.Series("trains", part[place] == TRAINING)).group_by("class")
    names = marked.agg(pl.col("trains").sum()).sort(["trains", "class"], descending=[True, False])["class"]
    if len(names) < 2:
        raise ConfigError(f"similarity.column: all labelled items of {name!r} are {names[0]!r}; it takes two classes")
    number = {each: rank for rank, each in enumerate(names.to_list())}
    classes = np.array([number[each] for each in frame["class"].to_list()], np.int64)
    order = np.lexsort((classes, place))
    offsets = offsets_of(place, len(items))
    return Labels(items, part, ByClass.of(offsets, classes[order], len(names)), tuple(names.to_list()))


def _lists(values: pl.Series) -> pl.Series:
    """Returns each item's classes as a list of strings."""
    if values.dtype == pl.List:
        return values.cast(pl.List(pl.String))
    if values.dtype.is_float():
        values = values.fill_nan(None).cast(pl.Int64)  # 12.0 is the class 12
    return values.cast(pl.String).reshape((-1, 1)).arr.to_list()


def _of_pairs(config: Config, data: Dataset) -> Labels:
    numbers = read_pairs(config.similarity.pairs or "", data.items["item_id"])
    items, places = np.unique(numbers, return_inverse=True)
    part = _split(len(items), config)
    return Labels(items.astype(np.int32), part, ByPair.of(places.reshape(-1, 2), len(items)), ())


def _split(count: int, config: Config) -> Int64s:
    part = np.full(count, TRAINING, np.int64)
    order = np.random.default_rng(config.data.seed).permutation(count)
    held = round(config.similarity.holdout_share * count)
    part[order[: held // 2]] = VALIDATION
    part[order[held // 2 : held]] = HELD_OUT
    return part


def _refuse_too_little(config: Config, labels: Labels) -> None:
    key = "similarity.pairs" if config.similarity.column is None else "similarity.column"
    items, relation = labels.training()
    if len(items) < 2:
        raise ConfigError(f"{key}: {len(items)} of {len(labels.items)} labelled items train; it takes at least 2")
    if isinstance(relation, ByClass):
        each, classes = np.diff(relation.labels.indptr), relation.labels.shape[1]
        if classes < 2 or (each == classes).all():
            raise ConfigError(f"{key}: every training item is of all {classes} classes; there is nothing to learn")
        alone = int(np.asarray(relation.labels.sum(axis=0)).max()) < 2
        if config.similarity.against == "items" and alone:
            raise ConfigError(f"{key}: no two training items share a class; set similarity.against = 'centres'")
    if not config.similarity.holdout_share:
        return
    share = f"similarity.holdout_share: {config.similarity.holdout_share:g} of {len(labels.items)} labelled items"
    if not len(labels.places(VALIDATION)):
        raise ConfigError(f"{share} leaves none to validate on; raise it, or set it to 0")
    for part in (VALIDATION, HELD_OUT):
        if not len(questions(labels, part)[1]):
            raise ConfigError(f"{share} holds out no item that is like another one left; change it, or set it to 0")


def _refuse_depth(config: Config, labels: Labels) -> None:
    k, candidates = int(config.train.metric.partition("@")[2]), len(labels.places(TRAINING, VALIDATION))
    if config.similarity.holdout_share and k >= candidates:
        raise ConfigError(
            f"train.metric: {config.train.metric} asks for {k} neighbours, and validation has {candidates} items in "
            "all; take a smaller k"
        )


def questions(labels: Labels, part: int) -> tuple[Int64s, Int64s]:
    """Returns the candidates, and the items of a part that are similar to another candidate; both by place, ascending.

    Validation sees the training items and its own half; the report sees all.
    """
    seen = (TRAINING, VALIDATION) if part == VALIDATION else (TRAINING, VALIDATION, HELD_OUT)
    candidates, asked = labels.places(*seen), labels.places(part)
    return candidates, asked[counts(labels.relation, asked, candidates) > 0]


def read_pairs(place: Path | str, item_ids: pl.Series) -> Int64s:
    """Reads pairs of different items.

    Args:
        place: the file, a path or a URL that fsspec knows.
        item_ids: [N] ids by item number.

    Returns:
        Item numbers [P, 2], in the order of the file.

    Raises:
        DataError: the file is missing, of an unknown kind or lacks the columns; or a row has an empty or unknown id, or
            the same item twice.
    """
    rejects = Rejects(hint="")
    with local_copies() as copies:
        path = copies.local(place)
        pairs = read_ids(path, COLUMNS, rejects, copies)
    pairs = rejects.split_off(pairs, pl.col("item_a") == pl.col("item_b"), path, "item_b", "an item beside itself")
    known = pl.DataFrame({"id": item_ids, "number": np.arange(len(item_ids))})
    numbers = [
        pairs.join(known, left_on=column, right_on="id", how="left", maintain_order="left") for column in COLUMNS
    ]
    unknown = [pairs.filter(each["number"].is_null())[column] for column, each in zip(COLUMNS, numbers, strict=True)]
    if count := len(pl.concat(unknown).unique()):
        first = next(each[0] for each in unknown if len(each))
        raise DataError(
            f"{path}: {count:,} item ids, {first!r} for one, are not in the data set; leave their pairs out "
            "(data.min_item_events may have left the items out)"
        )
    return np.stack([each["number"].to_numpy().astype(np.int64) for each in numbers], axis=1)


def pairs_digest(place: Path | str) -> str:
    """Returns the file's SHA-256, packed as it is, by which a report recognises it.

    Raises:
        DataError: it cannot be read.
    """
    with local_copies() as copies:
        try:
            return digest_of(copies.local(place))
        except OSError as error:
            raise DataError(f"{shown_place(place)}: cannot be read: {error.strerror}") from None
