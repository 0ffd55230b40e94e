"""The prior of live items: of the bundle, of new items, of what was taken since; in the service and folded."""

import math
from pathlib import Path

import numpy as np
import pytest

from pipelines.bundles import fold
from serving.bundle.encoder import Encoder
from serving.bundle.manifest import PriorInfo
from serving.bundle.reader import Bundle
from serving.catalogue.catalogue import Wanted
from serving.catalogue.journal import UserEvent
from serving.catalogue.sqlite_journal import SqliteJournal
from serving.catalogue.updates import CatalogueUpdates
from serving.errors import BundleError
from serving.recall.loading import open_index
from serving.recall.query import RecallQuery
from serving.recall.recaller import Recaller
from serving.search.exact import ExactIndex
from tests.support.worlds.serving import ITEMS, USERS, item_vectors, save_towers, write_world

MEAN, WEIGHT = 2.0, 0.5
PRIOR = PriorInfo(now=0.4, past=0.2, mean_count=MEAN, event_weight=WEIGHT, new_item=(-1.5, -2.25))
COUNTS = np.arange(ITEMS)[::-1] % 7
SHARES = np.stack([np.log(COUNTS / MEAN + 0.1), np.sin(np.arange(ITEMS))], axis=1).astype(np.float32)


def write(path: Path) -> Bundle:
    write_world(path, write_towers=save_towers, prior=PRIOR, item_prior=SHARES, popular_counts=COUNTS.astype(float))
    return Bundle.open(path)


@pytest.fixture
def live(tmp_path: Path) -> tuple[Recaller, CatalogueUpdates]:
    bundle = write(tmp_path / "bundle")
    changes = CatalogueUpdates(SqliteJournal.open(tmp_path / "state"), Encoder.of_items)
    recaller = Recaller(bundle, open_index(bundle), Encoder.of_queries(bundle), changes.users)
    changes.attach(recaller.catalogue)
    return recaller, changes


def scores(recaller: Recaller, group: int) -> dict[str, float]:
    """What a user of a group would get, all items."""
    recalled = recaller.recall(RecallQuery(features={"country": f"g{group}"}, k=ITEMS + 5))
    return dict(zip(recalled.ids, recalled.scores.tolist(), strict=True))


def score(vector: np.ndarray, group: int, now: float, past: float) -> float:
    """By hand, of a query without a history."""
    return float(vector[group] + vector[7]) + 0.4 * now - 0.2 * past


def test_every_item_has_its_own_prior(live: tuple[Recaller, CatalogueUpdates]) -> None:
    found = scores(live[0], 2)
    for row in range(ITEMS):
        wanted = score(item_vectors()[row], 2, *SHARES[row].tolist())
        assert found[f"i{row}"] == pytest.approx(wanted, abs=1e-5)


def test_a_new_item_has_the_prior_of_new_items_until_it_is_taken(live: tuple[Recaller, CatalogueUpdates]) -> None:
    recaller, changes = live
    changes.put(
        recaller.catalogue, [("new", {"group": "g1", "place": 0.5}, {}), ("i5", {"group": "g1", "place": 0.25}, {})]
    )
    vector = np.zeros(8)
    vector[[1, 7]] = 1, 0.5
    changed = vector.copy()
    changed[7] = 0.25
    assert scores(recaller, 1)["new"] == pytest.approx(score(vector, 1, -1.5, -2.25), abs=1e-5)
    assert scores(recaller, 1)["i5"] == pytest.approx(score(changed, 1, *SHARES[5].tolist()), abs=1e-5), (
        "it keeps its own"
    )
    events = [UserEvent(f"e{n}", f"s{n}", "new", n) for n in range(8)]
    changes.add_events([*events, UserEvent("other", "s", "i5", 9)])
    now = math.log(8 * WEIGHT / MEAN + 0.1)
    assert scores(recaller, 1)["new"] == pytest.approx(score(vector, 1, now, -2.25), abs=1e-5)
    assert scores(recaller, 1)["i5"] == pytest.approx(score(changed, 1, *SHARES[5].tolist()), abs=1e-5)


def test_one_taking_does_not_make_a_new_item_less_than_new(live: tuple[Recaller, CatalogueUpdates]) -> None:
    recaller, changes = live
    changes.put(recaller.catalogue, [("new", {"group": "g1", "place": 0.5}, {})])
    before = scores(recaller, 1)["new"]
    changes.add_events([UserEvent("e", "s", "new", 1)])
    assert math.log(WEIGHT / MEAN + 0.1) > -1.5
    assert scores(recaller, 1)["new"] > before


def test_after_a_forget_a_new_item_has_the_prior_that_it_had_before_the_users_events(
    live: tuple[Recaller, CatalogueUpdates],
) -> None:
    recaller, changes = live
    changes.put(recaller.catalogue, [("new", {"group": "g1", "place": 0.5}, {})])
    before = scores(recaller, 1)["new"]
    changes.add_events([UserEvent(f"e{n}", "u", "new", n) for n in range(8)])
    assert scores(recaller, 1)["new"] > before
    changes.journal.forget("u")
    changes.refresh()
    assert scores(recaller, 1)["new"] == before


def test_repeats_count_in_the_length_of_a_history_alone_and_in_a_batch(tmp_path: Path) -> None:
    write_world(
        tmp_path / "bundle",
        prior=PRIOR.model_copy(update={"length": 0.5}),
        item_prior=SHARES,
        popular_counts=COUNTS.astype(float),
        seen_offsets=np.arange(USERS + 1) * 4,
        seen_items=np.ravel([[1, 1, 5, 1]] * USERS),
    )
    bundle = Bundle.open(tmp_path / "bundle")
    recaller, query = Recaller(bundle, ExactIndex(bundle.recall_vectors)), RecallQuery(user_id="u1", k=5)
    alone = recaller.recall(query).scores.tolist()
    assert [each.scores.tolist() for each in recaller.recall_many([query] * 16)] == [alone] * 16


def test_a_fold_moves_the_prior_by_the_events_since(live: tuple[Recaller, CatalogueUpdates], tmp_path: Path) -> None:
    recaller, changes = live
    changes.put(recaller.catalogue, [("new", {"group": "g1", "place": 0.5}, {})])
    changes.add_events([UserEvent(f"e{n}", f"s{n}", "new" if n % 2 else "i7", n) for n in range(8)])
    fold.run(tmp_path / "bundle", tmp_path / "state", tmp_path / "folded")
    folded = Bundle.open(tmp_path / "folded")
    assert folded.item_prior is not None and folded.manifest.live is not None
    now = folded.item_prior[:, 0]
    assert now[folded.item_rows["i7"]] == pytest.approx(math.log((COUNTS[7] + 4 * WEIGHT) / MEAN + 0.1), rel=1e-5)
    new = (math.exp(-1.5) - 0.1) * MEAN + 4 * WEIGHT
    assert now[folded.item_rows["new"]] == pytest.approx(math.log(new / MEAN + 0.1), rel=1e-5)
    assert now[folded.item_rows["i8"]] == SHARES[8, 0]
    assert folded.popular_counts[folded.item_rows["i7"]] == COUNTS[7] + 4 * WEIGHT
    again = fold.run(tmp_path / "folded", tmp_path / "state", tmp_path / "again")
    assert again.live == folded.manifest.live
    twice = Bundle.open(tmp_path / "again").item_prior
    assert twice is not None
    np.testing.assert_array_equal(twice, folded.item_prior, "no event counts twice")


def test_a_fold_of_a_prior_without_weights_moves_only_the_popular_items(tmp_path: Path) -> None:
    weightless = PRIOR.model_copy(update={"now": 0.0, "past": 0.0})
    write_world(tmp_path / "b", write_towers=save_towers, prior=weightless, item_prior=SHARES, popular_counts=COUNTS)
    bundle = Bundle.open(tmp_path / "b")
    changes = CatalogueUpdates(SqliteJournal.open(tmp_path / "state"), Encoder.of_items)
    recaller = Recaller(bundle, open_index(bundle), Encoder.of_queries(bundle), changes.users)
    changes.attach(recaller.catalogue)
    changes.put(recaller.catalogue, [("new", {"group": "g1", "place": 0.5}, {})])
    changes.add_events([UserEvent(f"e{n}", f"s{n}", "new", n) for n in range(20)])
    assert scores(recaller, 1)["new"] == 1.5 and scores(recaller, 1)["i5"] == item_vectors()[5][[1, 7]].sum()
    fold.run(tmp_path / "b", tmp_path / "state", tmp_path / "folded")
    folded = Bundle.open(tmp_path / "folded")
    assert "recall_vectors.npy" not in folded.manifest.files
    assert folded.popular_counts[folded.item_rows["new"]] == 20 * WEIGHT
    found = Recaller(folded, open_index(folded), Encoder.of_queries(folded), changes.users)
    assert scores(found, 1) == scores(recaller, 1)
    assert found.recall(RecallQuery(k=1)).ids == ["new"]


def test_a_fold_leaves_out_what_the_prior_has_counted(live: tuple[Recaller, CatalogueUpdates], tmp_path: Path) -> None:
    _, changes = live
    changes.add_events([UserEvent("before", "s", "i7", 500), UserEvent("since", "t", "i8", 501)])
    counted = PRIOR.model_copy(update={"until": 500})
    write_world(tmp_path / "later", write_towers=save_towers, prior=counted, item_prior=SHARES, popular_counts=COUNTS)
    fold.run(tmp_path / "later", tmp_path / "state", tmp_path / "folded")
    folded = Bundle.open(tmp_path / "folded")
    assert folded.popular_counts[folded.item_rows["i7"]] == COUNTS[7]
    assert folded.popular_counts[folded.item_rows["i8"]] == COUNTS[8] + WEIGHT


def test_popular_items_are_those_of_the_counts(live: tuple[Recaller, CatalogueUpdates]) -> None:
    recalled = live[0].recall(RecallQuery(k=5))
    order = np.argsort(-COUNTS, kind="stable")[:5]
    assert recalled.source == "popular"
    assert recalled.ids == [f"i{row}" for row in order]
    assert recalled.scores.tolist() == COUNTS[order].tolist()
    # Only the four last, of which the last is the least popular.
    among = live[0].recall(RecallQuery(k=3, wanted=Wanted(allow=("i3", "i5", "i6"))))
    assert COUNTS[[3, 5, 6]].tolist() == [0, 5, 4]
    assert among.ids == ["i5", "i6", "i3"]


def test_a_prior_of_another_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=rf"item_prior\.npy: must be \[{ITEMS}, 2\], got \[{ITEMS}, 3\]"):
        write_world(tmp_path / "bundle", prior=PRIOR, item_prior=np.zeros((ITEMS, 3), np.float32))
    assert not (tmp_path / "bundle").exists()
