"""Folding: the new bundle answers as the old one did with its live changes, and replays only later changes."""

from contextlib import closing
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pipelines.bundles import fold
from pipelines.errors import DataError
from serving.bundle.encoder import Encoder
from serving.bundle.manifest import PriorInfo
from serving.bundle.reader import Bundle
from serving.catalogue.journal import UserEvent
from serving.catalogue.journal_rows import UNTYPED
from serving.catalogue.sqlite_journal import SqliteJournal
from serving.catalogue.updates import CatalogueUpdates
from serving.recall.query import RecallQuery
from serving.recall.recaller import Recaller
from serving.search.exact import ExactIndex
from serving.search.vector_codes import VectorType
from tests.support.worlds.serving import ITEMS, USERS, save_towers, seen_rows, write_world

PRIOR = PriorInfo(now=0.5, past=0.1, mean_count=1.0, new_item=(0.0, 0.0))


def opened(path: Path, live: CatalogueUpdates) -> Recaller:
    bundle = Bundle.open(path)
    recaller = Recaller(bundle, ExactIndex(bundle.item_vectors), Encoder.of_queries(bundle), live.users)
    live.attach(recaller.catalogue)
    return recaller


@pytest.mark.parametrize("kind", ["float32", "float16", "int8"])
def test_a_folded_bundle_answers_as_the_old_one_with_its_changes(kind: VectorType, tmp_path: Path) -> None:
    attributes = pl.DataFrame({"item_id": [f"i{row}" for row in range(ITEMS)], "year": list(range(ITEMS))})
    segments = pl.DataFrame({"segment": ["no"], "rows": [[9, 5, 40]], "counts": [[7, 6, 5]]})
    write_world(
        tmp_path / "old",
        vectors=kind,
        item_attributes=attributes,
        write_towers=save_towers,
        segmented_by="country",
        popular_segments=segments,
        profiles=[{"country": f"g{user % 3}", "age": 0.1} for user in range(USERS)],
        event_types=("buy", "click"),
        seen_types=[type_of(row) for user in range(USERS) for row in seen_rows(user)],
    )
    live = CatalogueUpdates(SqliteJournal.open(tmp_path / "state"), Encoder.of_items)
    old = opened(tmp_path / "old", live)
    live.put(
        old.catalogue, [("new", {"group": "g1", "place": 0.9}, {"year": 7}), ("i5", {"group": "g2", "place": 2.0}, {})]
    )
    live.delete(["i9", "i1", "never there"])
    manifest = fold.run(tmp_path / "old", tmp_path / "state", tmp_path / "folded")
    assert manifest.items == ITEMS + 1 - 2 and manifest.live is not None and manifest.vectors == kind
    # Another bundle answers otherwise; the part of the data set stays.
    version = old.bundle.manifest.model_version
    assert manifest.model_version != version
    assert manifest.model_version.partition("-")[0] == version.partition("-")[0]
    live.put(old.catalogue, [("later", {"group": "g1", "place": 3.0}, {})])
    folded = opened(tmp_path / "folded", live)
    assert len(folded.catalogue.live.view.living) == 1, "only what came later is replayed"
    queries = [
        *(RecallQuery(user_id=f"u{n}", k=70) for n in range(13)),
        RecallQuery(features={"country": "g1"}, k=70),
        RecallQuery(k=70),
        RecallQuery(segment="no", k=70),
    ]
    for query in queries:
        before, after = old.recall(query), folded.recall(query)
        assert dict(zip(before.ids, before.scores, strict=True)) == dict(zip(after.ids, after.scores, strict=True))
        np.testing.assert_array_equal(before.scores, after.scores)
    assert list(folded.bundle.profiles) == list(old.bundle.profiles)
    year = folded.bundle.item_attributes.filter(pl.col("item_id") == "new")["year"]
    assert year.to_list() == [7]
    for user in range(12):
        names = [folded.bundle.item_names[row] for row in folded.bundle.seen(user).tolist()]
        left = [row for row in old.bundle.seen(user).tolist() if row not in (1, 9)]
        assert names == [f"i{row}" for row in left]
        types = folded.bundle.seen_types(user)
        assert types is not None and types.tolist() == [type_of(row) for row in left]


def test_a_history_has_no_place_for_items_that_came_after_training_folded_or_not(tmp_path: Path) -> None:
    """The tower takes the last items, and has no row for these: they would push out those that it knows."""
    write_world(tmp_path / "old", write_towers=save_towers)
    live = CatalogueUpdates(SqliteJournal.open(tmp_path / "state"), Encoder.of_items)
    old = opened(tmp_path / "old", live)
    later = [f"new{row}" for row in range(10)]
    live.put(old.catalogue, [(item_id, {"group": "g1", "place": 0.9}, {}) for item_id in later])
    fold.run(tmp_path / "old", tmp_path / "state", tmp_path / "folded")
    folded = opened(tmp_path / "folded", live)
    query = RecallQuery(history=("i3", "i7", *later), k=70)
    before, after = old.recall(query), folded.recall(query)
    assert (before.source, before.ids) == (after.source, after.ids) and before.source == "history"
    np.testing.assert_array_equal(before.scores, after.scores)


def test_it_says_how_many_seen_events_of_deleted_items_it_leaves_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_world(tmp_path / "old", write_towers=save_towers)
    live = CatalogueUpdates(SqliteJournal.open(tmp_path / "state"), Encoder.of_items)
    live.delete(["never there"])
    fold.run(tmp_path / "old", tmp_path / "state", tmp_path / "same")
    assert "left out" not in capsys.readouterr().err
    live.delete(["i1", "i9"])
    fold.run(tmp_path / "old", tmp_path / "state", tmp_path / "folded")
    dropped = sum(row in (1, 9) for user in range(USERS) for row in seen_rows(user))
    told = f"of deleted items: {dropped} seen events left out, which no history and no exclusion holds now"
    assert dropped > 1 and told in capsys.readouterr().err.splitlines()


def type_of(row: int) -> int:
    return row % 3 - 1


def test_without_a_journal_there_is_nothing_to_fold(tmp_path: Path) -> None:
    write_world(tmp_path / "old")
    with pytest.raises(DataError, match=r"no journal\.sqlite in it"):
        fold.run(tmp_path / "old", tmp_path / "nothing", tmp_path / "new")


def test_a_bundle_without_items_is_none(tmp_path: Path) -> None:
    write_world(tmp_path / "old")
    live = CatalogueUpdates(SqliteJournal.open(tmp_path / "state"), Encoder.of_items)
    live.delete([f"i{row}" for row in range(ITEMS)])
    with pytest.raises(DataError, match="every item of it was deleted"):
        fold.run(tmp_path / "old", tmp_path / "state", tmp_path / "new")


def events_of(bundle: Bundle, item: str) -> float:
    """How many events the popularity of an item counts."""
    return float(bundle.popular_counts[bundle.item_rows[item]])


@pytest.mark.long
@pytest.mark.parametrize(
    ("config", "added"),
    [
        ({"data": {"event_types": ["buy"]}}, {"i57": 1, "i58": 0, "i59": 3}),
        ({"data": {"event_types": ["buy"], "duplicates": "keep"}}, {"i57": 5, "i58": 0, "i59": 3}),
        ({"data": {"duplicates": "last"}}, {"i57": 1, "i58": 4, "i59": 3}),
        ({}, {"i57": 1, "i58": 4, "i59": 3}),
        (None, {"i57": 5, "i58": 4, "i59": 3}),
    ],
)
def test_it_counts_the_events_that_training_would(
    config: dict[str, object] | None, added: dict[str, int], tmp_path: Path
) -> None:
    write_world(
        tmp_path / "old",
        write_towers=save_towers,
        lineage={} if config is None else {"config": config},
        prior=PRIOR,
        item_prior=np.zeros((ITEMS, 2), np.float32),
        popular_counts=np.ones(ITEMS),
    )
    old = Bundle.open(tmp_path / "old")
    assert not any(old.item_rows[item] in old.seen(user) for user in range(USERS) for item in added)
    taken = [("u1", "i57", "buy")] * 5 + [(f"u{n}", "i58", "view") for n in range(4)]
    taken += [("u1", "i59", "buy"), ("u2", "i59", UNTYPED), ("new", "i59", "buy")]
    with closing(SqliteJournal.open(tmp_path / "state")) as journal:
        for n, (user, item, kind) in enumerate(taken):
            journal.add_events([UserEvent(f"e{n}", user, item, 100 + n, kind)])
    fold.run(tmp_path / "old", tmp_path / "state", tmp_path / "folded")
    folded = Bundle.open(tmp_path / "folded")
    for item, count in added.items():
        assert events_of(folded, item) - events_of(old, item) == count, item
    # Until when it counts events is told beside `until`, by which the next fold leaves out events.
    latest = 100 + max(n for n, (_, item, _) in enumerate(taken) if added[item])
    assert folded.manifest.prior == PRIOR.model_copy(update={"folded_until": latest})
    # What was folded before is not counted again, and neither are repeats of it.
    with closing(SqliteJournal.open(tmp_path / "state")) as journal:
        journal.add_events([UserEvent("later", "u1", "i57", 900, "buy")])
    fold.run(tmp_path / "folded", tmp_path / "state", tmp_path / "again")
    again = Bundle.open(tmp_path / "again")
    repeats = config is None or config.get("data", {}).get("duplicates") == "keep"  # type: ignore[attr-defined]
    assert events_of(again, "i57") - events_of(folded, "i57") == (1 if repeats else 0)
    assert again.manifest.prior == PRIOR.model_copy(update={"folded_until": 900 if repeats else latest})


def test_a_prior_tells_the_time_of_the_latest_event_that_was_folded_into_it(tmp_path: Path) -> None:
    """Only of an event that it counts: not of a deleted item, and none is forgotten where nothing came since."""
    prior = PRIOR.model_copy(update={"until": 500})
    shares = np.zeros((ITEMS, 2), np.float32)
    write_world(tmp_path / "old", write_towers=save_towers, prior=prior, item_prior=shares)
    live = CatalogueUpdates(SqliteJournal.open(tmp_path / "state"), Encoder.of_items)
    live.delete(["i9"])
    events = [("i1", 400), ("i1", 700), ("i2", 600), ("i9", 900), ("never there", 950)]
    live.add_events([UserEvent(f"e{n}", f"new{n}", item, time) for n, (item, time) in enumerate(events)])
    first = fold.run(tmp_path / "old", tmp_path / "state", tmp_path / "folded")
    assert first.prior == prior.model_copy(update={"folded_until": 700})
    again = fold.run(tmp_path / "folded", tmp_path / "state", tmp_path / "again")
    assert again.prior == first.prior


@pytest.mark.parametrize("sold_out", [False, True])
def test_events_of_an_item_count_once_it_is_there(sold_out: bool, tmp_path: Path) -> None:
    """They came before the item, or were counted in a bundle from which it was folded out since."""
    shares = np.zeros((ITEMS, 2), np.float32)
    prior = PRIOR.model_copy(update={"until": 500})
    write_world(tmp_path / "0", write_towers=save_towers, prior=prior, item_prior=shares)
    live = CatalogueUpdates(SqliteJournal.open(tmp_path / "state"), Encoder.of_items)
    catalogue = opened(tmp_path / "0", live).catalogue

    def put() -> None:
        live.put(catalogue, [("late", {"group": "g1", "place": 0.9}, {})])

    steps = [put] * sold_out + [lambda: live.add_events([UserEvent(f"e{n}", f"u{n}", "late", 400) for n in range(5)])]
    steps += [lambda: live.delete(["late"])] * sold_out + [put, lambda: None]
    for number, step in enumerate(steps):
        step()
        fold.run(tmp_path / str(number), tmp_path / "state", tmp_path / str(number + 1))
    assert [events_of(Bundle.open(tmp_path / str(len(steps) - back)), "late") for back in (1, 0)] == [5, 5]
