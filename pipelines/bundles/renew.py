"""`towers export --prior-from`: renews a bundle's prior from newer events, without training.

The new bundle keeps the towers, vectors, weights and the popular items of each segment; its prior, popular items and
index are those of EVENTS, which are read as `towers prepare` reads them.
"""

from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np

from pipelines.bundles import build_index
from pipelines.bundles.prior import BundlePrior
from pipelines.console import amount, phases, progress, say
from pipelines.dataset.popularity import DAY_S, TICKS_PER_S, Counting, item_counts, last_time
from pipelines.errors import DataError
from pipelines.ingest.clocks import warn_of_clocks
from pipelines.ingest.columns.ids import IdForm, IdForms
from pipelines.ingest.events import PHASE as EVENTS
from pipelines.ingest.events import read_events
from pipelines.ingest.filters import narrow
from pipelines.ingest.formats.copies import local_copies
from pipelines.ingest.formats.rejects import Rejects
from pipelines.ingest.formats.source import open_source
from pipelines.service.events import EVENT_COLUMNS
from pipelines.service.verify import VERIFY, refuse_changed, verify
from serving.bundle.manifest import MANIFEST, Manifest, read_manifest
from serving.bundle.prior import weighs
from serving.bundle.reader import Bundle
from serving.bundle.writer import READ_BACK, WRITE, replace_prior
from serving.client.address import shown_place
from serving.files.staging import refuse_existing, staged
from serving.recall.self_test import LEAST_RECALL
from towers.config.recipe import parse_config
from towers.config.sections import Columns, PriorConfig
from towers.data.events import Events, Floats

FIELDS = ("days", "users_alike", "now", "past", "length")


def run(bundle: Path, events: Path | str, out: Path, *, format: str = "auto", overwrite: bool = False) -> Manifest:
    """Renews the prior of a bundle.

    Args:
        bundle: BUNDLE.
        events: EVENTS, as `pipelines.ingest.prepare` reads them; must reach back as far as the prior's window.
        out: the new bundle.
        format: format of the files; auto detects it.
        overwrite: replace an existing bundle.

    Raises:
        BundleError: BUNDLE is damaged, or was replaced meanwhile.
        DataError: it has no prior, EVENTS cannot be read, hold none of its items or end before those of its prior, or
            a window of days lacks times.
        OutputExistsError: `out` exists.
    """
    refuse_existing(out, overwrite=overwrite, marker=MANIFEST)
    manifest = read_manifest(bundle)
    before, old = manifest.index, manifest.prior
    if old is None:
        raise DataError(f"{bundle}: has no prior; with validation events, model.prior = 'validation' trains one")
    of_index = () if before is None else build_index.phases_of(before.kind)
    phases("export", VERIFY, EVENTS, WRITE, READ_BACK, *of_index)
    (opened,) = verify(bundle)
    assert opened.item_prior is not None
    given = PriorConfig(**{name: getattr(old, name) for name in FIELDS})
    made, counted, of_others = _made(opened, events, format, given, opened.item_prior[:, 1])
    # The events alone do not tell which items are new, so a new item's share relative to the mean stays.
    info = made.info.model_copy(update={"new_item": old.new_item})
    refuse_changed(opened)  # reading the events took long, and the files are copied by name
    # The index is built before publishing, so the bundle is complete or absent.
    with staged(out, overwrite=overwrite, marker=MANIFEST, check=partial(refuse_changed, opened)) as directory:
        replace_prior(opened, directory, info, made.shares, made.counts, progress)
        if before is not None:
            target = max(before.measured.get("target_recall", build_index.TARGET_RECALL), LEAST_RECALL)
            build_index.run(directory, target_recall=target, target_k=before.target_k, kind=before.kind, like=before)
    say(f"{out}: the prior counts {amount(counted, 'events')}; {of_others:,} more of items not in {bundle}")
    if manifest.segmented_by is not None:
        say(f"the popular items of each {manifest.segmented_by} stay those of before; an export of a run counts them")
    if not weighs(info):
        say("its weights are 0: no score changes, only the popular items, the answer to users of whom nothing is known")
    return read_manifest(out)


def _made(
    bundle: Bundle, path: Path | str, format: str, given: PriorConfig, past: Floats
) -> tuple[BundlePrior, int, int]:
    """Makes the prior of a file of events; also returns how many are in its window, and how many of other items."""
    raw = bundle.manifest.lineage.get("config", {}).get("data", {})
    config = parse_config({"data": raw}, origin=f"{bundle.path}: lineage").data
    user, item = config.columns.user or "user_id", config.columns.item or "item_id"
    remedy = f"name the columns as in training; for ids {user!r} and {item!r} are understood"
    rejects = Rejects(hint="fix the file, or leave the rows out")
    with local_copies() as copies:
        source = open_source(path, None, None, format, config, copies, skip=False)
        # What `towers events export` writes has its own names, seconds and weights, whatever the training data had.
        if all(set(table.columns) == set(EVENT_COLUMNS) for _, table in source.events):
            config = config.model_copy(update={"columns": Columns(), "time_unit": "s", "min_weight": None})
        # Newer events may be few, so none of them need be of a type that training had.
        table = read_events(source, config, None, rejects, IdForms(IdForm), remedy=remedy, every_type=False)
    warn_of_clocks(table)
    # Repeated pairs are treated as in training; minimum counts do not apply here.
    narrow(table, config.model_copy(update={"min_user_events": 1, "min_item_events": 1}))
    time, unit = (table.time, table.time_unit) if table.time_unit in TICKS_PER_S else (None, None)
    if given.days is not None and time is None:
        raise DataError(
            f"{shown_place(path)}: the events have no times; this prior counts those of the last {given.days} days"
        )
    if time is not None and unit is not None:
        _check_times(path, bundle, int(time.min()) // TICKS_PER_S[unit], int(time.max()) // TICKS_PER_S[unit])
    row = np.array([*map(bundle.item_rows.find, table.item_ids.to_list())], np.int64)[table.item]
    known = row >= 0 if table.weight is None else (row >= 0) & (table.weight > 0)
    if not known.any():
        forms = f": {table.item_ids[0]!r} here, {bundle.item_ids[0]!r} there; write the ids as in training"
        why = " and has a weight" if (row >= 0).any() else forms
        raise DataError(f"{shown_place(path)}: none of its {len(table):,} events is of an item of {bundle.path}{why}")
    times = None if time is None else time[known]
    # In file order, which does not matter for counting.
    part = Events(table.user[known], row[known].astype(np.int32), np.array([0, np.count_nonzero(known)]), times)
    items, until = bundle.manifest.items, last_time([part])
    until_s = None if until is None or unit is None else until // TICKS_PER_S[unit]
    counts = item_counts([part], items, Counting(given.days, given.users_alike), time_unit=unit, until=until)
    events = int(item_counts([part], items, Counting(given.days), time_unit=unit, until=until).sum())
    new = np.zeros(items, np.bool_)
    made = BundlePrior.make(given, counts=counts, past=past, new=new, until=until_s, events=events)
    return made, events, int(np.count_nonzero(row < 0))


def _check_times(path: Path | str, bundle: Bundle, first: int, last: int) -> None:
    """Refuses events that end before those of the prior, in seconds; warns of those that may not fill its window."""
    old, shown = bundle.manifest.prior, shown_place(path)
    assert old is not None
    if old.until is not None and last < old.until:
        end, counted = (datetime.fromtimestamp(seconds, UTC) for seconds in (last, old.until))
        raise DataError(f"{shown}: ends at {end}, before the events of {bundle.path}, {counted}; give newer events")
    if old.days is not None and (days := (last - first) / DAY_S) < old.days:
        say(f"warning: {shown}: its events are of {days:.1f} days, and the prior counts those of the last {old.days}")
