"""`towers prepare`: writes a data set from raw events, items and users.

The data set directory of docs/project/design.md is written whole or not at all.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import polars as pl

from pipelines.console import amount, phases, progress, say
from pipelines.dataset.arrays import IMPRESSIONS, SPLITS
from pipelines.dataset.column_lines import column_lines
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.manifest import (
    MANIFEST,
    DatasetManifest,
    Kind,
    SourceInfo,
    SplitInfo,
    digest_files,
    with_fingerprint,
)
from pipelines.ingest.clocks import warn_of_clocks, warn_of_small_times
from pipelines.ingest.columns.attributes import read_attributes, refuse_unknown_columns
from pipelines.ingest.columns.event_table import renumber
from pipelines.ingest.columns.ids import IdForm, IdForms, refuse_strangers
from pipelines.ingest.columns.likely_times import without_times
from pipelines.ingest.events import PHASE as EVENTS
from pipelines.ingest.events import read_events
from pipelines.ingest.filters import narrow
from pipelines.ingest.formats.column_names import event_roles, id_column
from pipelines.ingest.formats.copies import local_copies
from pipelines.ingest.formats.rejects import Rejects, short_name, without_value
from pipelines.ingest.formats.source import Source, open_source
from pipelines.ingest.formats.table import Table
from pipelines.ingest.impressions import refuse_impressions_alone
from pipelines.ingest.odd_ids import warn_of_ids
from pipelines.ingest.splits import TRAIN, split_events
from pipelines.ingest.validation import like_the_test
from pipelines.ingest.writer import PHASE as SORT
from pipelines.ingest.writer import number_entities, write_splits, write_truth
from serving.files.staging import refuse_existing, staged
from towers.config.sections import DataConfig

FILTER = "filter and split"


def run(
    config: DataConfig,
    events: Path | str,
    out: Path,
    *,
    items: Path | str | None = None,
    users: Path | str | None = None,
    format: str = "auto",
    on_bad_rows: Literal["error", "skip"] = "error",
    overwrite: bool = False,
) -> DatasetManifest:
    """Prepares a data set.

    Args:
        config: how to read and split.
        events: a file or a folder: a path, or a URL that fsspec knows, such as ``s3://bucket/events``.
        out: the data set's directory.
        items: attributes of items; by default those in the events' folder.
        users: attributes of users; likewise.
        format: of the events; "auto" detects it by file names.
        on_bad_rows: "error" stops at the first bad row; "skip" counts them and writes `rejects.csv`.
        overwrite: replace an existing `out`.

    Raises:
        DataError: the input is wrong; names file, column and row.
        OutputExistsError: `out` exists and may not be replaced, or holds what is read.
    """
    refuse_existing(out, overwrite=overwrite, marker=MANIFEST, inputs=[events, items, users])
    with staged(out, overwrite=overwrite, marker=MANIFEST) as staging, local_copies() as copies:
        rejects = Rejects(skip=on_bad_rows == "skip")
        source = open_source(events, items, users, format, config, copies, skip=rejects.skip)
        tables = [f"read {table.path.name}" for table in (source.items, source.users) if table is not None]
        phases("prepare", *tables, EVENTS, FILTER, SORT)
        manifest = _write(staging, source, config, rejects)
        (staging / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
    data = Dataset.open(out)
    say("\n".join(column_lines(data)))
    say(_summary(data, manifest))
    for warning in rejects.warnings():
        say(warning)
    return manifest


def _write(staging: Path, source: Source, config: DataConfig, rejects: Rejects) -> DatasetManifest:
    forms, first = IdForms(IdForm), source.events[0][1]
    roles = event_roles(first.path, first.columns, config.columns)
    items, item_columns = _attributes(source.items, "item", roles.item, rejects, forms["item"])
    users, user_columns = _attributes(source.users, "user", roles.user, rejects, forms["user"])
    table = read_events(source, config, None if items is None else items["item_id"], rejects, forms, staging.parent)
    if source.users is not None and users is not None:
        told = refuse_strangers("user", users["user_id"], source.users.path, table.user_ids, table.paths[0])
        if told:
            say(told)
    refuse_unknown_columns(config, {**item_columns, **user_columns, **table.context_kinds})
    with progress(FILTER, total=5, unit="steps") as advance:
        refuse_impressions_alone(table)
        narrow(table, config)
        advance(1)
        config = like_the_test(table, config)
        advance(1)
        split = split_events(table, config, rejects)
        if split.kind == "random" and config.split == "auto":
            say(without_times(table.context))
        table.release("row", "file")  # they name bad rows, and the last of these is found
        advance(1)
        train = split.label == TRAIN
        item_rows, number = number_entities(table.item, train, table.item_ids, items, "item_id")
        renumber(table.item, number)
        advance(1)
        user_rows, number = number_entities(table.user, train, table.user_ids, users, "user_id")
        renumber(table.user, number)
        advance(1)
    del train, number
    warn_of_ids("user", user_rows["user_id"], table.user)
    warn_of_ids("item", item_rows["item_id"], table.item)
    if split.timed:  # else the times are not kept
        warn_of_clocks(table)
        if config.time_unit == "auto":
            warn_of_small_times(table)
    staging.mkdir()
    item_rows.write_parquet(staging / "items.parquet")
    user_rows.drop("train_count").write_parquet(staging / "users.parquet")
    counts = write_splits(staging, table, split, user_rows.height)
    if source.truth is not None:
        ids = {"query": (user_rows["user_id"], users), "item": (item_rows["item_id"], items)}
        write_truth(staging / "truth", source.truth, ids)
    rejects.write(staging / "rejects.csv", roles.user)
    files, content = digest_files(staging)
    manifest = DatasetManifest(
        fingerprint=content,
        users=user_rows.height,
        items=item_rows.height,
        events=counts,
        split=SplitInfo(kind=split.kind, boundaries=split.boundaries),
        timed=split.timed,
        time_unit=table.time_unit if split.timed else None,
        user_columns=user_columns,
        item_columns=item_columns,
        event_columns=table.context_kinds,
        roles=table.roles.columns,
        event_types=table.types,
        weighted=table.weight is not None,
        config=config,
        source=SourceInfo(format=source.format, files=_names(source, roles.user)),
        rejected=rejects.count,
        dropped={rule: count for rule, count in table.dropped.items() if count},
        files=files,
    )
    return with_fingerprint(manifest, content)


def _attributes(
    table: Table | None, side: str, of_events: str, rejects: Rejects, form: IdForm
) -> tuple[pl.DataFrame | None, dict[str, Kind]]:
    if table is None:
        return None, {}
    column = id_column(table.path, table.columns, side, of_events)
    return read_attributes(table, column, f"{side}_id", rejects, form)


def _names(source: Source, user: str) -> tuple[str, ...]:
    tables = [table for _, table in source.events] + [t for t in (source.items, source.users) if t is not None]
    return tuple(without_value(short_name(table.path), user) for table in tables)


def _summary(data: Dataset, manifest: DatasetManifest) -> str:
    shown = {name: len(data.events(name + IMPRESSIONS)) for name in SPLITS if name + IMPRESSIONS in data.parts()}
    counts = _counts({name: count - shown.get(name, 0) for name, count in manifest.events.items()})
    lost = "".join(f"; {count:,} dropped by {rule}" for rule, count in manifest.dropped.items())
    bad = f"; {amount(manifest.rejected, 'bad rows')} in {data.path / 'rejects.csv'}" if manifest.rejected else ""
    sizes = f"{amount(manifest.users, 'users')}, {amount(manifest.items, 'items')}"
    line = f"{data.path}: {sizes}; {counts} events by {manifest.split.kind}{lost}{bad}"
    if not shown:
        return line
    column = manifest.roles["weight"]
    return f"{line}\nimpressions, by a weight of 0 or less (column {column!r}): {_counts(shown)} events"


def _counts(events: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in events.items())
