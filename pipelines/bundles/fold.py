"""`towers bundles fold`: merges a bundle and the live changes since into a new bundle.

The new bundle is of the same model and has no index. Its manifest records the last change it holds, so a service
replays only later ones.
"""

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.console import amount, phase, phases, progress, say
from pipelines.errors import DataError
from pipelines.service.state import open_journal
from pipelines.service.verify import VERIFY, refuse_changed, verify
from serving.bundle.arrays import CANDIDATE_TOWER, QUERY_TOWER, SEEN_ITEMS, SEEN_OFFSETS, SEEN_TYPES, open_array
from serving.bundle.encoder import Encoder
from serving.bundle.manifest import MANIFEST, LiveInfo, Manifest
from serving.bundle.prior import count_of, log_share
from serving.bundle.reader import Bundle
from serving.bundle.writer import READ_BACK, WRITE, version_after, write_bundle
from serving.catalogue.journal import UserEvent
from serving.catalogue.journal_rows import UNTYPED
from serving.catalogue.overlay import OverlayView
from serving.catalogue.updates import CatalogueUpdates
from serving.files.database_url import DatabaseUrl
from serving.files.staging import refuse_existing
from serving.recall.recaller import Recaller
from serving.search.exact import ExactIndex
from serving.search.index import Rows

CHANGES = "read changes"


def run(bundle: Path, state: Path | DatabaseUrl, out: Path, *, overwrite: bool = False) -> Manifest:
    """Merges a service's live items into a bundle.

    Args:
        bundle: the bundle, of any model whose candidate tower takes the live items' features.
        state: the service's directory or database of live changes.
        out: the new bundle.
        overwrite: replace an existing bundle.

    Raises:
        DataError: there is no journal.
        OutputExistsError: `out` exists.
        BundleError: the bundle is damaged, or was replaced meanwhile.
    """
    refuse_existing(out, overwrite=overwrite, marker=MANIFEST)
    with open_journal(state) as journal:
        phases("fold", VERIFY, CHANGES, WRITE, READ_BACK)
        (opened,) = verify(bundle)
        with phase(CHANGES):
            live = CatalogueUpdates(journal, Encoder.of_items)
            recaller = Recaller(opened, ExactIndex(opened.recall_vectors))
            # Before the changes are read: those added meanwhile are simply replayed again.
            last = max((change.seq for change in journal.items_since(0)), default=0)
            live.attach(recaller.catalogue)
            before, prior = opened.manifest.live, opened.manifest.prior
            counted = before.events if before is not None and before.journal == journal.identity else 0
            events = journal.events_since(0)
        held = LiveInfo(journal=journal.identity, items=last, events=events[-1][0] if events else counted)
    # Events that the prior already counted in its own data must not count twice. Of an item that the bundle does not
    # hold it has counted none: they came before the item, or it was left out, or deleted and folded out.
    until = -1 if prior is None or prior.until is None else prior.until
    trained = _as_in_training(opened, events)
    later = [
        event
        for number, event in trained
        if event.item_id not in opened.item_rows or (event.time > until and number > counted)
    ]
    view = recaller.catalogue.live.view
    seen = len(open_array(bundle, SEEN_ITEMS, np.int32, (None,)))
    folded = _write(opened, view, later, held, out, overwrite=overwrite)
    if dropped := seen - len(open_array(out, SEEN_ITEMS, np.int32, (None,))):
        say(f"of deleted items: {amount(dropped, 'seen events')} left out, which no history and no exclusion holds now")
    if folded.segmented_by is not None and later:
        say(f"the popular items of each {folded.segmented_by} stay those of before; an export of a run counts them")
    items = f"{amount(folded.items, 'items')} (before: {opened.manifest.items:,})"
    say(f"{out}: {items}, {len(view.living):,} of them new or changed, {amount(folded.queries, 'users')}")
    return folded


def _as_in_training(bundle: Bundle, events: Sequence[tuple[int, UserEvent]]) -> Iterator[tuple[int, UserEvent]]:
    """Yields the events that training would count: of its types or of none, and each pair once unless it keeps repeats.

    All events where the bundle does not tell how it was trained.
    """
    config = bundle.manifest.lineage.get("config")
    data = {"duplicates": "keep"} if config is None else config.get("data", {})
    types, repeats = data.get("event_types"), data.get("duplicates", "first") == "keep"
    prior = bundle.manifest.prior
    # Of a stored pair the last event is the one that counts, and comes into the window.
    moves = data.get("duplicates") == "last" and prior is not None and prior.days is not None
    pairs: set[tuple[str, str]] = set()
    stored: dict[str, set[int]] = {}
    for number, event in events:
        if types and event.type not in (*types, UNTYPED):
            continue
        if not repeats:
            pair, user = (event.user_id, event.item_id), bundle.query_rows.find(event.user_id)
            if event.user_id not in stored:
                stored[event.user_id] = {*bundle.seen(user).tolist()} if user >= 0 else set()
            if pair in pairs or (not moves and bundle.item_rows.find(event.item_id) in stored[event.user_id]):
                continue
            pairs.add(pair)
        yield number, event


def _write(
    bundle: Bundle, view: OverlayView, later: Sequence[UserEvent], live: LiveInfo, out: Path, *, overwrite: bool
) -> Manifest:
    """Writes the bundle's rows in order: changed ones in place, new ones at the end, without the deleted ones."""
    names, base = bundle.item_names, view.base
    source = np.arange(base)
    for item_id, row in view.rows.items():
        if item_id in bundle.item_rows:
            source[bundle.item_rows[item_id]] = row
    new = [row for item_id, row in view.rows.items() if row >= 0 and item_id not in bundle.item_rows]
    source = np.concatenate([source, np.array(new, np.int64)])
    kept = source >= 0
    row_of = np.where(kept, np.cumsum(kept) - 1, -1)
    ids = pl.Series("item_id", [*names, *(view.ids[row - base] for row in new)], pl.String).filter(pl.Series(kept))
    vectors = np.concatenate([np.asarray(bundle.item_vectors), view.vectors])[source[kept]]
    attributes = pl.concat([bundle.item_attributes, view.attributes])[source[kept]]
    popularity = np.concatenate([bundle.popularity, np.zeros(len(new), np.int64)])[kept]
    seen_offsets, seen_items, seen_types = _seen(bundle, kept, row_of)
    manifest = bundle.manifest
    if not kept.any():
        raise DataError(f"{bundle.path}: every item of it was deleted; a bundle holds at least one")
    return write_bundle(
        out,
        model_version=version_after(manifest.model_version, live.model_dump_json()),
        metric=manifest.metric,
        query_features=manifest.query_features,
        candidate_features=manifest.candidate_features,
        item_ids=ids,
        item_vectors=vectors,
        item_attributes=attributes,
        popularity=popularity,
        query_ids=bundle.query_ids,
        query_vectors=bundle.query_vectors,
        seen_offsets=seen_offsets,
        seen_items=seen_items,
        event_types=manifest.event_types,
        seen_types=seen_types,
        write_towers=lambda directory: _copy_towers(bundle, directory),
        libraries=manifest.libraries,
        lineage=manifest.lineage | {"folded": {"from": bundle.path.name, "items": len(view.living)}},
        training=manifest.training,
        vectors=manifest.vectors,
        live=live,
        **_prior_with_events(bundle, ids, later),
        segmented_by=manifest.segmented_by,
        popular_segments=_segments(bundle, row_of),
        profiles=bundle.profiles,
        overwrite=overwrite,
        check=partial(refuse_changed, bundle),
        progress=progress,
    )


def _seen(bundle: Bundle, kept: NDArray[np.bool_], row_of: Rows) -> tuple[Rows, Rows, NDArray[np.int16] | None]:
    """Returns what each user has seen and is kept, by its new rows: offsets [Q + 1], items, any types."""
    offsets = open_array(bundle.path, SEEN_OFFSETS, np.int64, (bundle.manifest.queries + 1,))
    items = open_array(bundle.path, SEEN_ITEMS, np.int32, (None,))
    there, types = kept[items], None
    if bundle.manifest.event_types:
        types = open_array(bundle.path, SEEN_TYPES, np.int16, (len(items),))[there]
    return np.concatenate([[0], np.cumsum(there)])[offsets], row_of[items[there]], types


def _prior_with_events(bundle: Bundle, ids: pl.Series, later: Sequence[UserEvent]) -> dict[str, Any]:
    """Adds later events to the prior and the popular counts; each counts as much as the window's mean event.

    Args:
        bundle: the old bundle.
        ids: [N] ids of the new bundle.
        later: the events since.
    """
    prior = bundle.manifest.prior
    if prior is None or bundle.item_prior is None:
        return {}
    there_now = set(ids)
    counted = [event for event in later if event.item_id in there_now]
    taken = Counter(event.item_id for event in counted)
    # Not `until`, by which the next fold leaves out events: one that arrives late may be older than these.
    times = [event.time for event in counted] + ([] if prior.folded_until is None else [prior.folded_until])
    prior = prior.model_copy(update={"folded_until": max(times, default=None)})
    known = np.array([bundle.item_rows.get(item_id, -1) for item_id in ids], np.int64)
    there = known >= 0
    more = prior.event_weight * np.array([taken.get(item_id, 0) for item_id in ids], np.float64)
    shares = np.where(there[:, np.newaxis], bundle.item_prior[known], np.array(prior.new_item, np.float32))
    counts = count_of(shares[:, 0], prior.mean_count) + more
    shares[:, 0] = np.where(more > 0, log_share(counts, prior.mean_count), shares[:, 0])
    popular = np.where(there, bundle.popular_counts[known], 0) + more
    return {"prior": prior, "item_prior": shares, "popular_counts": popular}


def _segments(bundle: Bundle, row_of: Rows) -> pl.DataFrame | None:
    """Returns the popular items of each segment by their new rows."""
    if bundle.manifest.segmented_by is None:
        return None
    renumbered = [(segment, row_of[rows], counts) for segment, (rows, counts) in bundle.segments.items()]
    lists = [(segment, rows[rows >= 0].tolist(), counts[rows >= 0].tolist()) for segment, rows, counts in renumbered]
    schema: dict[str, Any] = {"segment": pl.String, "rows": pl.List(pl.Int64), "counts": pl.List(pl.Int64)}
    return pl.DataFrame(lists, schema=schema, orient="row")


def _copy_towers(bundle: Bundle, directory: Path) -> None:
    for name in (QUERY_TOWER, CANDIDATE_TOWER):
        shutil.copytree(bundle.path / name, directory / name)
