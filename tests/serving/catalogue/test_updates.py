"""Live changes through the journal: validated, kept, seen by every worker, replayed onto the next bundle."""

import math
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from serving.bundle.manifest import LiveInfo
from serving.bundle.reader import Bundle
from serving.catalogue.item_columns import checked_attributes
from serving.catalogue.journal import JournalError, UserEvent
from serving.catalogue.sqlite_journal import SqliteJournal
from serving.catalogue.updates import CatalogueUpdates
from serving.errors import BundleError, RequestError
from serving.recall.query import RecallQuery
from serving.recall.recaller import Recaller
from serving.search.exact import ExactIndex
from tests.support.worlds.serving import DIMENSION, ITEM_FEATURES, ITEMS, ArithmeticEncoder, write_world


class GroupEncoder:
    """The candidate tower as arithmetic: group in dimensions 0 to 3, place in 7; an item without group is unknown."""

    def encode(self, requests: Sequence[Mapping[str, Any]]) -> np.ndarray:
        vectors = np.zeros((len(requests), DIMENSION), np.float32)
        for row, request in enumerate(requests):
            if request.get("group") in ("g0", "g1", "g2", "g3"):
                vectors[row, int(request["group"][1:])] = 1
                vectors[row, 7] = request.get("place") or 0
        return vectors


class NothingLearnt:
    """A candidate tower whose training knew no item."""

    def encode(self, requests: Sequence[Mapping[str, Any]]) -> np.ndarray:
        return np.zeros((len(requests), DIMENSION), np.float32)


def opened(path: Path, **changes: Any) -> Recaller:
    attributes = pl.DataFrame({"title": [f"Title {row}" for row in range(ITEMS)], "year": list(range(ITEMS))})
    if not path.exists():
        write_world(path, item_attributes=attributes, **changes)
    bundle = Bundle.open(path)
    return Recaller(bundle, ExactIndex(bundle.item_vectors), ArithmeticEncoder())


def worker(tmp_path: Path, recaller: Recaller) -> CatalogueUpdates:
    live = CatalogueUpdates(SqliteJournal.open(tmp_path / "state"), lambda bundle: GroupEncoder())
    recaller.planner.users = live.users
    live.attach(recaller.catalogue)
    return live


def best(recaller: Recaller, group: int, k: int = 1) -> list[str]:
    return recaller.recall(RecallQuery(features={"country": f"g{group}"}, k=k)).ids


def test_a_put_item_is_the_best_in_every_worker_and_after_a_restart(tmp_path: Path) -> None:
    here, there = opened(tmp_path / "bundle"), opened(tmp_path / "bundle")
    live, other = worker(tmp_path, here), worker(tmp_path, there)
    assert best(here, 2) == ["i2"]
    seq = live.put(here.catalogue, [("new", {"group": "g2", "place": 9.0}, {"title": "New", "year": 5})])
    assert best(here, 2) == ["new"] and best(there, 2) == ["i2"]
    assert other.refresh() and best(there, 2) == ["new"]
    assert not other.refresh(), "nothing is new"
    again = opened(tmp_path / "bundle")
    worker(tmp_path, again)
    assert best(again, 2) == ["new"]
    assert live.delete(["new", "i2", "never there"]) > seq
    assert best(here, 2) == ["i6"] and other.refresh() and best(there, 2, 60)[0] == "i6"


def test_the_journal_is_replayed_unless_the_bundle_holds_it(tmp_path: Path) -> None:
    first = opened(tmp_path / "first")
    live = worker(tmp_path, first)
    held = live.put(first.catalogue, [("a", {"group": "g1", "place": 5.0}, {})])
    live.put(first.catalogue, [("b", {"group": "g1", "place": 7.0}, {})])
    assert live.journal is not None
    for name, journal, expected in (("same", live.journal.identity, ["b"]), ("other", "another", ["b", "a"])):
        next_one = opened(tmp_path / name, live=LiveInfo(journal=journal, items=held))
        live.attach(next_one.catalogue)
        assert best(next_one, 1, 2)[: len(expected)] == expected
        assert ("a" in best(next_one, 1, 70)) == (name == "other")


def test_a_bundle_that_holds_later_changes_than_the_journal_is_refused(tmp_path: Path) -> None:
    """As of a snapshot of the state from before a fold: its next changes would get numbers that the bundle holds."""
    first = opened(tmp_path / "first")
    live = worker(tmp_path, first)
    live.delete(["i1"])
    live.add_events([UserEvent("e", "u1", "i2", 5), UserEvent("f", "u1", "i3", 6)])
    assert live.journal is not None and live.journal.numbers()[:2] == (1, 2)
    for items, events in ((1, 2), (2, 2), (1, 3)):
        info = LiveInfo(journal=live.journal.identity, items=items, events=events)
        after = opened(tmp_path / f"{items} {events}", live=info)
        if (items, events) == (1, 2):
            live.attach(after.catalogue)
        else:
            told = f"{items} {events}: it holds item change {items}, event {events}; this state ends at 1, 2: "
            with pytest.raises(BundleError, match=f"{told}restore a later one with `towers state restore`$"):
                live.attach(after.catalogue)


def test_an_item_that_the_next_bundle_cannot_encode_stays_as_that_has_it(tmp_path: Path) -> None:
    first = opened(tmp_path / "first")
    live = worker(tmp_path, first)
    live.put(first.catalogue, [("i2", {"group": "g3", "place": 5.0}, {}), ("new", {"group": "g3", "place": 6.0}, {})])
    assert best(first, 3, 2) == ["new", "i2"]
    other = Recaller(
        bundle := Bundle.open(_without_group(tmp_path)), ExactIndex(bundle.item_vectors), ArithmeticEncoder()
    )
    live.attach(other.catalogue)
    assert best(other, 2) == ["i2"] and "new" not in best(other, 3, 70)


def test_an_item_of_which_the_next_model_learnt_nothing_stays_as_that_has_it(tmp_path: Path) -> None:
    first = opened(tmp_path / "first")
    live = worker(tmp_path, first)
    live.put(first.catalogue, [("i2", {"group": "g3", "place": 5.0}, {}), ("new", {"group": "g3", "place": 6.0}, {})])
    assert live.journal is not None
    later = CatalogueUpdates(live.journal, lambda bundle: NothingLearnt())
    other = opened(tmp_path / "first")
    later.attach(other.catalogue)
    assert best(other, 2) == ["i2"] and "new" not in best(other, 3, 70)


@pytest.mark.parametrize("fits", [False, True], ids=["a feature is unknown", "nothing is learnt"])
def test_workers_agree_on_an_item_that_one_of_their_bundles_cannot_encode(tmp_path: Path, fits: bool) -> None:
    """Each change reaches the one that runs; one that starts finds only the last of each item."""
    first = opened(tmp_path / "first")
    known = {} if fits else {"candidate_features": ITEM_FEATURES[:2]}  # without the place
    strange = {"group": "g3", "place": 5.0}

    class Encoder(GroupEncoder):
        def encode(self, requests: Sequence[Mapping[str, Any]]) -> np.ndarray:
            return super().encode([{} if request.get("place") == 5.0 else request for request in requests])

    def worker_of() -> tuple[Recaller, CatalogueUpdates]:
        canary = opened(tmp_path / "canary", **known)
        live = CatalogueUpdates(
            SqliteJournal.open(tmp_path / "state"),
            lambda bundle: Encoder() if bundle is canary.bundle else GroupEncoder(),
        )
        live.attach(canary.catalogue)
        return canary, live

    canary, live = worker_of()
    live.attach(first.catalogue)
    live.put(first.catalogue, [("i6", strange, {}), ("new", {"group": "g2"}, {}), ("i10", {"group": "g3"}, {})])
    live.delete(["i2", "i6"])
    before = best(canary, 2, ITEMS)
    assert before[0] == "i14" and "new" in before and not {"i2", "i6"} & {*before}
    live.put(first.catalogue, [(name, strange, {}) for name in ("i2", "i6", "new", "i10")])
    assert {*best(first, 3, 4)} == {"i2", "i6", "new", "i10"}
    restarted, _ = worker_of()
    answers = [each.recall(RecallQuery(features={"country": "g2"}, k=ITEMS + 1)) for each in (canary, restarted)]
    assert answers[0].ids == answers[1].ids and "new" not in answers[0].ids
    assert answers[0].ids[:4] == ["i2", "i6", "i10", "i14"]
    assert answers[0].scores.tolist() == answers[1].scores.tolist()


def _without_group(tmp_path: Path) -> Path:
    write_world(tmp_path / "other", candidate_features=ITEM_FEATURES[:1])
    return tmp_path / "other"


@pytest.mark.parametrize(
    ("item", "field", "said"),
    [
        (("", {"group": "g1"}, {}), "items.1.id", "must not be empty"),
        (("x", {"grup": "g1"}, {}), "items.1.features.grup", "no such feature; this model knows group, item, place"),
        (("x", {"place": "far"}, {}), "items.1.features.place", "must be a finite number"),
        (("x", {"group": "g9"}, {}), "items.1.features", "training learnt nothing of these values"),
        (
            ("x", {"group": "g1"}, {"colour": "red"}),
            "items.1.attributes.colour",
            "no such column; there are title, year",
        ),
        (("x", {"group": "g1"}, {"year": 1.5}), "items.1.attributes.year", "must be a whole number .* got 1.5"),
        (("x", {"group": "g1"}, {"year": 2**70}), "items.1.attributes.year", "must be a whole number"),
        (("x", {"group": "g1"}, {"title": ["a"]}), "items.1.attributes.title", "must be a string, got a list"),
    ],
)
def test_one_wrong_item_refuses_them_all(
    tmp_path: Path, item: tuple[str, dict[str, Any], dict[str, Any]], field: str, said: str
) -> None:
    recaller = opened(tmp_path / "bundle")
    live = worker(tmp_path, recaller)
    with pytest.raises(RequestError, match=said) as raised:
        live.put(recaller.catalogue, [("good", {"group": "g1", "place": 9.0}, {}), item])
    assert raised.value.field == field and raised.value.message.startswith(field)
    assert best(recaller, 1) == ["i1"] and live.journal is not None and not live.journal.items_since(0)


@pytest.mark.parametrize(
    ("dtype", "value", "right"),
    [
        (pl.Float32(), 3.4e38, True),
        (pl.Float32(), -1e39, False),
        (pl.Float64(), 1e39, True),
        (pl.Float64(), 10**400, False),
        (pl.Float64(), math.inf, False),
        (pl.Float64(), math.nan, False),
        (pl.Float64(), True, False),
    ],
)
def test_a_number_of_an_item_fits_its_column(dtype: pl.DataType, value: float, right: bool) -> None:
    if right:
        assert checked_attributes({"price": value}, {"price": dtype}) == {"price": value}
    else:
        with pytest.raises(RequestError, match=r"attributes.price: must be a number from -.* to "):
            checked_attributes({"price": value}, {"price": dtype})


def test_events_count_once_and_are_seen_by_every_worker(tmp_path: Path) -> None:
    here, there = opened(tmp_path / "bundle"), opened(tmp_path / "bundle")
    live, other = worker(tmp_path, here), worker(tmp_path, there)
    events = [UserEvent("e1", "u5", "i9", 100), UserEvent("e2", "u5", "i13", 50), UserEvent("e1", "u5", "i17", 0)]
    assert live.add_events(events) == 2 and live.add_events(events) == 0
    assert other.refresh()
    for recaller in (here, there):
        assert [each.item_id for each in recaller.planner.users.taken("u5")] == ["i13", "i9"]
        assert recaller.recall(RecallQuery(user_id="u5", k=1)).ids == ["i17"]


def test_without_a_journal_nothing_is_taken_in(tmp_path: Path) -> None:
    recaller = opened(tmp_path / "bundle")
    live = CatalogueUpdates(None, lambda bundle: GroupEncoder())
    live.attach(recaller.catalogue)
    assert not live.refresh()
    for change in (lambda: live.delete(["i1"]), lambda: live.add_events([UserEvent("e", "u", "i", 0)])):
        with pytest.raises(RequestError, match="start it with --state DIR") as raised:
            change()
        assert raised.value.code == "no_state"


def test_whole_numbers_may_come_as_floats_and_one_bundles_type_is_not_anothers(tmp_path: Path) -> None:
    first = opened(tmp_path / "first")
    live = worker(tmp_path, first)
    live.put(first.catalogue, [("new", {"group": "g1", "place": 9.0}, {"year": 2010.0, "title": "T"})])
    items = first.catalogue.snapshot()
    row = items.row_of("new")
    assert items.values("year", np.array([row])) == [2010]
    write_world(tmp_path / "other", item_attributes=pl.DataFrame({"year": ["then"] * ITEMS, "title": ["t"] * ITEMS}))
    bundle = Bundle.open(tmp_path / "other")
    other = Recaller(bundle, ExactIndex(bundle.item_vectors), ArithmeticEncoder())
    live.attach(other.catalogue)
    assert best(other, 1) == ["new"]
    items = other.catalogue.snapshot()
    row = items.row_of("new")
    assert items.values("title", np.array([row])) == ["T"] and items.values("year", np.array([row])) == [None]


def test_a_bundle_that_fails_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, whole = opened(tmp_path / "bundle"), opened(tmp_path / "bundle")
    live = worker(tmp_path, broken)
    live.attach(whole.catalogue)

    def fails(changes: object) -> None:
        raise ValueError("defect")

    monkeypatch.setattr(broken.catalogue.live, "apply", fails)
    live.put(whole.catalogue, [("new", {"group": "g1", "place": 9.0}, {})])
    assert best(whole, 1) == ["new"] and best(broken, 1) == ["i1"]
    assert live.add_events([UserEvent("e", "u1", "i9", 1)]) == 1


def test_a_bundle_that_failed_once_is_caught_up_by_the_next_refresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recaller = opened(tmp_path / "bundle")
    live = worker(tmp_path, recaller)

    def fails(changes: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(recaller.catalogue.live, "apply", fails)
        live.delete(["i1"])
    assert best(recaller, 1) == ["i1"]
    assert live.refresh() and best(recaller, 1) == ["i5"]
    assert not live.refresh(), "nothing is left to do"


def test_a_bundle_that_goes_on_failing_is_tried_ever_more_rarely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, whole = opened(tmp_path / "bundle"), opened(tmp_path / "bundle")
    live = worker(tmp_path, broken)
    live.attach(whole.catalogue)
    now, tried = 1_000.0, []
    monkeypatch.setattr("time.monotonic", lambda: now)

    def fails(changes: object) -> None:
        tried.append(now)
        raise ValueError("defect")

    with monkeypatch.context() as patched:
        patched.setattr(broken.catalogue.live, "apply", fails)
        live.delete(["i1"])
        assert best(whole, 1) == ["i5"]
        for second in range(200):
            now = 1_000.0 + second
            live.put(whole.catalogue, [("new", {"group": "g1", "place": second}, {})])
    assert np.diff(tried).tolist() == [0, 1, 3, 7, 15, 31, 60, 60]
    now += 60
    assert live.refresh() and best(broken, 1) == best(whole, 1) == ["new"]


def test_changes_go_on_while_a_bundle_that_opens_takes_in_the_journal(tmp_path: Path) -> None:
    first, second = opened(tmp_path / "bundle"), opened(tmp_path / "bundle")
    encoding, go_on = threading.Event(), threading.Event()

    class Slow(GroupEncoder):
        def encode(self, requests: Sequence[Mapping[str, Any]]) -> np.ndarray:
            encoding.set()
            assert go_on.wait(30)
            return super().encode(requests)

    live = worker(tmp_path, first)
    live.put(first.catalogue, [("before", {"group": "g1", "place": 5.0}, {})])
    slow = CatalogueUpdates(live.journal, lambda bundle: Slow() if bundle is second.bundle else GroupEncoder())
    slow.attach(first.catalogue)
    attaching = threading.Thread(target=slow.attach, args=(second.catalogue,))
    attaching.start()
    assert encoding.wait(30)
    putting = threading.Thread(target=slow.put, args=(first, [("meanwhile", {"group": "g1", "place": 7.0}, {})]))
    putting.start()
    putting.join(30)
    visible = best(first, 1)
    go_on.set()
    attaching.join(30)
    assert visible == ["meanwhile"]
    assert best(second, 1, 2) == ["meanwhile", "before"]


def test_what_is_on_the_disk_is_acknowledged_even_where_it_cannot_be_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recaller = opened(tmp_path / "bundle")
    live = worker(tmp_path, recaller)
    assert live.journal is not None

    def fails(seq: int) -> list[Any]:
        raise JournalError("no memory")

    with monkeypatch.context() as patched:
        patched.setattr(live.journal, "items_since", fails)
        assert live.put(recaller.catalogue, [("new", {"group": "g1", "place": 9.0}, {})]) == 1
    assert live.refresh() and best(recaller, 1) == ["new"]


@pytest.mark.parametrize("readings", [0, 1])
def test_a_bundle_whose_first_catch_up_fails_is_caught_up_by_the_next_refresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, readings: int
) -> None:
    """`readings` of the journal succeed: the first is made before the lock is taken, the second under it."""
    first, second = opened(tmp_path / "bundle"), opened(tmp_path / "bundle")
    live = worker(tmp_path, first)
    live.put(first.catalogue, [("new", {"group": "g2", "place": 1.5}, {})])
    live.delete(["i1"])
    assert live.journal is not None
    whole, left = live.journal.items_since, [readings]

    def fails(seq: int) -> list[Any]:
        if not left[0]:
            raise JournalError("no memory")
        left[0] -= 1
        return whole(seq)

    with monkeypatch.context() as patched:
        patched.setattr(live.journal, "items_since", fails)
        with pytest.raises(JournalError):
            live.attach(second.catalogue)
        with pytest.raises(JournalError):
            live.refresh()
    assert live.refresh()
    assert best(second, 1) == best(first, 1) == ["i5"] and best(second, 2) == ["new"]


def test_events_that_the_bundle_holds_change_nothing(tmp_path: Path) -> None:
    recaller = opened(tmp_path / "bundle")
    live = worker(tmp_path, recaller)
    before = recaller.recall(RecallQuery(user_id="u5", k=3))
    seen = [recaller.bundle.item_names[row] for row in recaller.bundle.seen(5).tolist()]
    live.add_events([UserEvent(f"e{item}", "u5", item, 1) for item in seen])
    after = recaller.recall(RecallQuery(user_id="u5", k=3))
    assert seen and (before.source, before.ids) == (after.source, after.ids) == ("user", before.ids)


def test_deleting_what_nobody_knows_leaves_nothing_behind(tmp_path: Path) -> None:
    recaller = opened(tmp_path / "bundle")
    live = worker(tmp_path, recaller)
    live.put(recaller.catalogue, [("new", {"group": "g1", "place": 9.0}, {})])
    live.delete(["new", *(f"unknown {n}" for n in range(50))])
    assert not recaller.catalogue.live.view.rows
