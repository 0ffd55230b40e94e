"""Removes a user from a data set: row, events, what was rejected, and the caches beside it.

The other users keep their order. Items are renumbered, because their number of training events orders them. What
`towers prepare` decided with the user stays: items that only this user took, with their ids, and where the split cuts.
"""

import json
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import polars as pl

from pipelines.dataset.arrays import CONTEXT, DTYPES, SPLITS, ArrayWriter, map_array, select_events
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.manifest import MANIFEST, SCHEMA_VERSION, digest_files, with_fingerprint
from pipelines.ingest.formats.rejects import without_value, without_values
from pipelines.rankers.cache import Cache
from serving.files.access import keep_all_access
from serving.files.lock import exclusive
from serving.files.staging import remove, staged
from towers.data.events import Events, Int32s

REJECTS = "rejects.csv"
CUT_BYTES = 80  # a value of so many may be cut in the middle of an id


def forget_in_dataset(path: Path, user: str, *, dry_run: bool) -> dict[str, int]:
    """Removes a user from a data set.

    Args:
        path: the data set; it holds other users.
        user: the user's id.
        dry_run: only count.

    Returns:
        What was found, by name; zeros for a user who is not in it.

    Raises:
        BusyError: another process is removing a user from it.
        FileNotFoundError: it was removed meanwhile.
    """
    busy = f"{path}: another 'towers forget' is changing it; give the command again later"
    with exclusive(path, busy, create=False):
        data = Dataset.open(path)
        place = data.users["user_id"].index_of(user)
        rejects = _rejects(path)
        rejected = named = 0
        if rejects is not None:
            rejected, named = rejects.select(pl.col("value") == user, named=_names(user)).sum().row(0)
        events = 0
        if place is not None:
            events = sum(len(part.between(place, place + 1)) for part in map(data.events, data.parts()))
        found = {"users": int(place is not None), "events": events, "bad rows": named}
        if count := sum(_is_of(user, name, data) for name in data.manifest.source.files):
            found["names of files"] = count
        if dry_run or not any(found.values()):
            return found
        with staged(path, overwrite=True, marker=MANIFEST, check=data.refuse_replaced) as directory:
            directory.mkdir()
            _write(data, place, directory)
            if rejects is not None and rejects.height > rejected:
                rest = rejects.filter(pl.col("value").ne_missing(user))
                # The row stays: most that name the user beside other words are lines of others.
                rest = rest.with_columns(value=pl.when(~_names(user)).then("value"))
                without_values(rest, data.manifest.roles["user"]).write_csv(directory / REJECTS)
            _write_manifest(data, directory, rejected)
            keep_all_access(directory, path)
            Dataset.open(directory)
            remove(Cache.beside(path).folder)  # not later: after a kill, the next attempt would find no user
        return found


def _is_of(user: str, file: str, data: Dataset) -> bool:
    """Whether a file in partitions of users is a user's: earlier versions kept such names whole."""
    keys = (folder.partition("=") for folder in file.split("/")[:-1])
    return (data.manifest.roles["user"], user) in ((unquote(key), unquote(value)) for key, _, value in keys)


def _rejects(path: Path) -> pl.DataFrame | None:
    file = path / REJECTS
    return pl.read_csv(file, infer_schema=False, glob=False) if file.is_file() else None


def _names(user: str) -> pl.Expr:
    """Whether a rejected value names a user: some readers keep a whole line, JSON Lines its first 80 bytes."""
    value = pl.col("value")
    forms = {user, json.dumps(user)[1:-1]}
    word = value.str.contains(rf"(?:^|\W)(?:{'|'.join(map(pl.escape_regex, forms))})(?:\W|$)")
    last = value.str.strip_chars_end("\ufffd")  # stands for a letter that was cut
    starts = {form[:length] for form in forms for length in range(1, len(form) + 1)}
    return word | ((value.str.len_bytes() >= CUT_BYTES) & pl.any_horizontal(map(last.str.ends_with, starts)))


def _write(data: Dataset, place: int | None, directory: Path) -> None:
    """Writes all but the manifest and the rejected rows."""
    gone = np.zeros(data.users.height, np.bool_)
    taken = np.zeros(data.items.height, np.int64)
    if place is not None:
        gone[place] = True
        for part in map(data.events, data.parts("train")):
            taken += np.bincount(part.between(place, place + 1).item, minlength=data.items.height)
    counted = data.items.with_columns(train_count=pl.col("train_count") - pl.Series(taken.astype(np.uint32)))
    items = counted.with_row_index("__row__").sort("train_count", "item_id", descending=[True, False])
    order = items["__row__"].to_numpy()
    number = np.empty(len(order), np.int32)
    number[order] = np.arange(len(order), dtype=np.int32)
    items.drop("__row__").write_parquet(directory / "items.parquet")
    data.users.filter(pl.Series(~gone)).write_parquet(directory / "users.parquet")
    for name in data.parts():
        part, context = data.events(name), data.context(name)
        begin, end = (0, 0) if place is None else (int(part.offsets[place]), int(part.offsets[place + 1]))
        _write_events(directory / name, _without(part, place, number))
        if context is not None:
            pl.concat([context.head(begin), context.slice(end)]).collect().write_parquet(directory / name / CONTEXT)
    if (data.path / "truth").is_dir():
        (directory / "truth").mkdir()
        for name, rows in (("query_vectors", np.flatnonzero(~gone)), ("item_vectors", order)):
            np.save(directory / "truth" / f"{name}.npy", map_array(data.path / "truth" / f"{name}.npy")[rows])


def _write_events(directory: Path, events: Events) -> None:
    directory.mkdir()
    for name, dtype in DTYPES.items():
        values = getattr(events, name)
        if values is not None:
            with ArrayWriter(directory / f"{name}.npy", values.shape, dtype) as file:
                file.append(values)


def _without(events: Events, place: int | None, number: Int32s) -> Events:
    """A split without the events of the user at `place`, its items renumbered."""
    if place is not None:
        events = select_events(events, events.user != place)
        user = events.user - (events.user > place).astype(np.int32)
        events = replace(events, user=user, offsets=np.delete(events.offsets, place))
    return replace(events, item=number[events.item])


def _write_manifest(data: Dataset, directory: Path, rejected: int) -> None:
    files, content = digest_files(directory)
    users = pl.scan_parquet(directory / "users.parquet", glob=False).select(pl.len()).collect().item()
    names = (without_value(name, data.manifest.roles["user"]) for name in data.manifest.source.files)
    manifest = data.manifest.model_copy(
        update={
            "schema_version": SCHEMA_VERSION,
            "before_forget": (*data.manifest.before_forget, data.manifest.fingerprint),
            "users": users,
            "events": {
                split: sum(len(map_array(directory / part / "item.npy")) for part in data.parts(split))
                for split in SPLITS
            },
            "rejected": data.manifest.rejected - rejected,
            "source": data.manifest.source.model_copy(update={"files": tuple(names)}),
            "files": files,
        }
    )
    manifest = with_fingerprint(manifest, content)
    (directory / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
