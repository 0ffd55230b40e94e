"""The choice of baselines on validation, in a world where items come into fashion, and what is kept of it."""

import dataclasses
import functools
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import heldout, heldout_users
from pipelines.dataset.popularity import Counting, has_windows
from pipelines.ingest import prepare
from pipelines.rankers import choice, item_knn
from pipelines.rankers.baselines import baselines_of
from pipelines.rankers.cache import Cache
from pipelines.rankers.choice import choose, climb, most_values
from pipelines.rankers.ease import EaseSettings, ease_weights
from pipelines.rankers.fits import Fits, KnnSettings, counting_values
from pipelines.rankers.ordered_knn import OrderedKnn
from pipelines.training.prior import choose_counting
from pipelines.tuning.traits import Traits
from towers.config.recipe import Config, parse_config
from towers.config.sections import DataConfig

BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
USERS, ITEMS, DAYS = 60, 80, 300


def fashion(folder: Path, *, swapped_test: bool = False, valid_share: float = 0.1) -> Dataset:
    """Until day 200 users take items of the first half, then of the second; nobody takes an item twice.

    Days 240 to 270 are validation, those after it the test, of other items where `swapped_test`.
    """
    users, items = np.random.default_rng(1), np.random.default_rng(2)
    rows, taken = [], set()
    for day in range(DAYS):
        first = 0 if day < 200 or (swapped_test and day >= 270) else ITEMS // 2
        for user in users.choice(USERS, 6, replace=False).tolist():
            free = [item for item in range(first, first + ITEMS // 2) if (user, item) not in taken]
            item = int(items.choice(free))
            taken.add((user, item))
            rows.append((f"u{user}", f"i{item}", (BEGIN + timedelta(days=day, minutes=user)).isoformat()))
    folder.mkdir()
    pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row").write_csv(folder / "events.csv")
    config = DataConfig(split="global_time", valid_share=valid_share, test_share=0.1)
    prepare.run(config, folder / "events.csv", folder / "dataset")
    return Dataset.open(folder / "dataset")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return fashion(tmp_path_factory.mktemp("fashion") / "world")


def recall_by_hand(
    data: Dataset, days: int | None, users_alike: bool, k: int = 20, asked: Sequence[int] | None = None
) -> float:
    """Mean recall@k of popularity on validation, one user after the other."""
    train, valid = data.events("train"), data.events("valid")
    end = max(train.time)
    ticks = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[str(data.manifest.time_unit)] * 86_400
    recent = [
        (u, i)
        for u, i, t in zip(train.user, train.item, train.time, strict=True)
        if days is None or t > end - days * ticks
    ]
    events = {user: sum(u == user for u, _ in recent) for user in {u for u, _ in recent}}
    count = dict.fromkeys(range(data.manifest.items), 0.0)
    for user, item in recent:
        count[item] += 1 / events[user] if users_alike else 1
    order = sorted(count, key=lambda item: (-count[item], item))
    figures = []
    for user in sorted(set(valid.user.tolist())) if asked is None else asked:
        known = {i for u, i in zip(train.user, train.item, strict=True) if u == user}
        targets = {i for u, i in zip(valid.user, valid.item, strict=True) if u == user} - known
        if targets:
            top = [item for item in order if item not in known][:k]
            figures.append(len(targets & set(top)) / len(targets))
    return float(np.mean(figures))


def test_what_came_into_fashion_late_makes_recent_popularity_the_strongest(data: Dataset) -> None:
    chosen = choose(data)
    windows = {
        (days, alike): recall_by_hand(data, days, alike) for days in (7, 14, 30, 60, 90) for alike in (False, True)
    }
    assert chosen.recent is not None
    best = max(windows.values())
    assert windows[chosen.recent.days, chosen.recent.users_alike] == pytest.approx(best, abs=1e-9)
    assert chosen.validation["popularity_recent"] == pytest.approx(best, abs=1e-9)
    assert chosen.validation["popularity"] == pytest.approx(recall_by_hand(data, None, False), abs=1e-9)
    assert chosen.validation["popularity_users"] == pytest.approx(recall_by_hand(data, None, True), abs=1e-9)
    assert best > 2 * chosen.validation["popularity"]
    assert chosen.strongest == max(chosen.validation, key=chosen.validation.__getitem__)
    assert chosen.item_knn is not None and chosen.item_knn.fallback.days is not None


@pytest.mark.parametrize("k", [3, 10])
def test_the_prior_counts_as_does_best_on_its_own_users_and_metric(data: Dataset, k: int) -> None:
    held = heldout(data, "valid", heldout_users(data, "valid")[::2])
    ways = [(days, alike) for days in (7, 14, 30, 60, 90, None) for alike in (False, True)]
    values = {way: recall_by_hand(data, *way, k, held.users.tolist()) for way in ways}
    found = counting_values(data, held, "recall", k, Fits(data, ("train",)).of)
    means = {(way.days, way.users_alike): each.mean() for way, each in found.items()}
    assert means == pytest.approx(values, abs=1e-9)
    config = parse_config({"model": {"prior": "validation"}, "train": {"metric": f"recall@{k}"}})
    chosen = choose_counting(config, data, held, ("train",))
    assert max(values[chosen.days, alike] for alike in (False, True)) == max(values.values())
    assert min(values.values()) < 0.9 * max(values.values())


@pytest.mark.parametrize(("errors", "alike"), [(1.9, True), (2.1, False), (-1.0, True), (-9.0, True)])
@pytest.mark.parametrize("days", [7, None])
def test_the_prior_counts_events_only_where_that_is_proven_better(
    data: Dataset, monkeypatch: pytest.MonkeyPatch, days: int | None, errors: float, alike: bool
) -> None:
    noise = np.tile([1.0, -1.0], 200)  # a standard error of 1 / 20
    base = np.random.default_rng(0).random(400)
    values = {Counting(days): base + noise + errors / 20, Counting(days, True): base, Counting(30): base - 9}
    monkeypatch.setattr("pipelines.training.prior.counting_values", lambda *_: values)
    config = parse_config({"model": {"prior": "validation"}, "train": {"metric": "recall@10"}})
    assert choose_counting(config, data, heldout(data, "valid"), ("train",)) == Counting(days, alike)


def test_the_prior_counts_as_the_recipe_says(data: Dataset) -> None:
    given = {"days": 7, "users_alike": True, "now": 0.1, "past": 0.0}
    held = heldout(data, "valid")
    assert choose_counting(parse_config({"model": {"prior": given}}), data, held, ("train",)) == Counting(7, True)


@pytest.mark.parametrize("ordered", [False, True])
def test_without_moments_that_the_split_respects_there_are_no_windows(
    data: Dataset, tmp_path: Path, ordered: bool
) -> None:
    events = pl.read_csv(data.path.parent / "events.csv")
    (events.drop("timestamp") if ordered else events).write_csv(tmp_path / "events.csv")
    split = {"split": "leave_last_out", "ordered": True} if ordered else {"split": "random"}
    prepare.run(DataConfig(**split), tmp_path / "events.csv", tmp_path / "dataset")
    other = Dataset.open(tmp_path / "dataset")
    assert other.manifest.timed == ordered
    assert has_windows(data) and Traits.of(data, Config()).clock
    assert not has_windows(other) and not Traits.of(other, Config()).clock
    assert set(counting_values(other, heldout(other, "valid"), "ndcg", 5, Fits(other, ("train",)).of)) == {
        Counting(),
        Counting(users_alike=True),
    }


def test_other_test_events_change_no_choice(data: Dataset, tmp_path: Path) -> None:
    other = fashion(tmp_path / "world", swapped_test=True)
    assert not np.array_equal(other.events("test").item, data.events("test").item)
    assert other.manifest.events == data.manifest.events
    names = [each.items["item_id"].gather(each.events("train").item).to_list() for each in (data, other)]
    assert names[0] == names[1]
    assert choose(other) == choose(data)


def test_without_validation_events_fixed_settings_are_taken(tmp_path: Path) -> None:
    chosen = choose(fashion(tmp_path / "world", valid_share=0.0))
    assert (chosen.recent, chosen.item_knn, chosen.ease) == (Counting(60), KnnSettings(), EaseSettings())
    assert chosen.ease_recent == EaseSettings(fallback=Counting(60), popularity=0.1)
    assert (chosen.validation, chosen.users) == ({}, 0)
    assert chosen.strongest == "ease"
    assert dataclasses.replace(chosen, left_out={"ease": "too many items"}).strongest == "item_knn"
    assert "no validation events" in chosen.chosen_on


@pytest.mark.parametrize("over", [False, True])
def test_above_its_limit_item_knn_is_fitted_once_with_fixed_settings(
    data: Dataset, over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, fitted = data.events("train").user.tolist(), []
    pairs = sum(train.count(user) ** 2 for user in set(train))
    monkeypatch.setattr(item_knn, "MAX_SEARCH_PAIRS", pairs - over)
    counted = item_knn.nearest_items
    monkeypatch.setattr(
        "pipelines.rankers.fits.nearest_items",
        lambda *args, **options: fitted.append(1) or counted(*args, **options),
    )
    chosen = choose(data)
    assert chosen.item_knn is not None and chosen.validation["item_knn"] > 0
    if not over:
        assert len(fitted) > 1 and chosen.fixed == {}
        return
    assert len(fitted) == 1
    reason = f"fixed settings: {pairs:,} pairs of events of the same user, more than {pairs - 1:,}"
    assert chosen.fixed == {"item_knn": reason} and "item_knn" not in chosen.left_out
    fallback = chosen.item_knn.fallback
    assert chosen.item_knn == KnnSettings(fallback=fallback)
    ways = [(days, alike) for days in (7, 14, 30, 60, 90, None) for alike in (False, True)]
    best = max(recall_by_hand(data, *way) for way in ways)
    assert recall_by_hand(data, fallback.days, fallback.users_alike) == pytest.approx(best, abs=1e-9)


def ease_by_hand(data: Dataset, settings: EaseSettings) -> float:
    """Mean recall@20 of EASE with popularity on validation, one user after the other."""
    train, valid, items = data.events("train"), data.events("valid"), data.manifest.items
    weights = ease_weights(train.user, train.item, (data.manifest.users, items), settings.penalty)
    late = train.time > train.time.max() - settings.fallback.days * 86_400 * 10**6
    count = np.zeros(items)
    for user, item in zip(train.user[late], train.item[late], strict=True):
        count[item] += 1 / (train.user[late] == user).sum() if settings.fallback.users_alike else 1
    figures = []
    for user in sorted(set(valid.user.tolist())):
        known = set(train.item[train.user == user].tolist())
        targets = set(valid.item[valid.user == user].tolist()) - known
        scores = weights[sorted(known)].sum(axis=0) + settings.popularity * np.log(1 + count / count.mean())
        top = [item for item in np.argsort(-scores, kind="stable").tolist() if item not in known][:20]
        if targets and known:
            figures.append(len(targets & set(top)) / len(targets))
    return float(np.mean(figures))


def test_where_both_count_taste_is_joined_with_fashion(data: Dataset) -> None:
    assert data.manifest.time_unit == "us"
    chosen = choose(data)
    assert chosen.ease is not None and chosen.ease_recent is not None and chosen.ease.popularity == 0
    assert (chosen.ease_recent.penalty, chosen.ease_recent.fallback) == (chosen.ease.penalty, chosen.recent)
    ways = {
        weight: ease_by_hand(data, dataclasses.replace(chosen.ease_recent, popularity=weight))
        for weight in choice.RECENT_LADDER
    }
    weight = chosen.ease_recent.popularity
    assert chosen.validation["ease_recent"] == pytest.approx(ways[weight], abs=1e-6)
    place = choice.RECENT_LADDER.index(weight)
    beside = choice.RECENT_LADDER[max(place - 1, 0) : place + 2]
    assert ways[weight] == max(ways[each] for each in beside)
    assert chosen.validation["ease_recent"] > chosen.validation["ease"]
    assert str(chosen.ease_recent) == f"EASE of lambda {chosen.ease.penalty:g} with {chosen.recent}"


def test_once_repeats_count_favourites_are_a_baseline_and_all_are_judged_with_repeats(tmp_path: Path) -> None:
    # A third of a user's 120 events are of four favourites, the others of any of 300 items: more than lists hold.
    generator, rows = np.random.default_rng(4), []
    for user in range(50):
        own = generator.choice(300, 4, replace=False)
        for day in range(120):
            item = generator.choice(own) if generator.random() < 0.35 else generator.integers(300)
            rows.append((f"u{user}", f"i{item}", (BEGIN + timedelta(days=day, minutes=user)).isoformat()))
    pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row").write_csv(tmp_path / "events.csv")
    prepare.run(DataConfig(split="global_time", duplicates="keep"), tmp_path / "events.csv", tmp_path / "dataset")
    data = Dataset.open(tmp_path / "dataset")
    once, again = (baselines_of(data, ("train", "valid"), 20, repeats=repeats) for repeats in (False, True))
    assert "favourites" not in once.rankers and once.choice == choose(data)
    validation = again.choice.validation
    assert again.choice.strongest == max(validation, key=validation.__getitem__)
    assert validation["favourites"] > 1.5 * max(validation["item_knn"], validation["popularity_recent"])
    assert {name: again.settings[name] for name in once.settings} == once.settings
    train, valid = data.events("train"), data.events("valid")
    popular = Fits(data, ("train",)).of(once.choice.popular).order.tolist()  # type: ignore[attr-defined]
    figures, of_popularity = [], []
    everywhere = Fits(data, ("train",)).of(Counting()).order.tolist()[:20]  # type: ignore[attr-defined]
    for user in sorted(set(valid.user.tolist())):
        own, targets = train.item[train.user == user].tolist(), set(valid.item[valid.user == user].tolist())
        of_popularity.append(len(targets & set(everywhere)) / len(targets))
        best = sorted(set(own), key=lambda item: (-own.count(item), own[::-1].index(item)))
        best += [item for item in popular if item not in own]
        figures.append(len(targets & set(best[:20])) / len(targets))
    assert validation["favourites"] == pytest.approx(float(np.mean(figures)), abs=1e-9)
    assert validation["popularity"] == pytest.approx(float(np.mean(of_popularity)), abs=1e-9)
    assert again.choice.users == len(figures)
    content = again.content()["favourites"]
    assert content["title"] == f"own favourites, then {once.choice.popular}"
    assert content["validation"] == {"recall@20": validation["favourites"]}


@pytest.fixture(scope="module")
def walks(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Users walk from an item to the next one, each from another item; every second one is known by one item alone."""
    folder = tmp_path_factory.mktemp("walks")
    steps = [(user, step) for user in range(120) for step in range(12 if user % 2 else 3)]
    rows = [(f"u{user}", f"i{(7 * user + step) % 90}", 200 * step + user) for user, step in steps]
    pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row").write_csv(folder / "events.csv")
    prepare.run(DataConfig(split="leave_last_out"), folder / "events.csv", folder / "dataset")
    return Dataset.open(folder / "dataset")


def test_where_an_item_leads_to_the_next_the_baseline_that_reads_the_order_is_the_strongest(
    walks: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "K", 1)  # among 20 are all that are near
    chosen = choose(walks)
    assert chosen.strongest == "item_knn_ordered" and chosen.ordered is not None
    assert chosen.validation["item_knn_ordered"] > chosen.validation["item_knn"]
    held = heldout(walks, "valid")
    first = Fits(walks, ("train",)).of(chosen.ordered).lists(held.seen_offsets, held.seen_items, 1)[:, 0]
    assert (first == held.target_items).mean() > 0.9


def test_a_count_in_order_is_kept_for_its_own_settings_alone(walks: Dataset) -> None:
    fits, offsets = Fits(walks, ("train",)), np.concatenate([[0], np.cumsum(np.bincount(walks.events("train").user))])
    made = [OrderedKnn(backward=0.0), OrderedKnn(backward=1.0), OrderedKnn(shrinkage=3.0), OrderedKnn(window=1)]
    for settings in made:
        found = fits.of(settings)
        own = settings.similarity(offsets, walks.events("train").item, walks.manifest.items)
        np.testing.assert_array_equal(found.similarity.toarray(), own.toarray())  # type: ignore[attr-defined]
    other = fits.of(dataclasses.replace(made[-1], half_life=5.0))
    assert other.similarity is found.similarity and other.half_life == 5.0  # type: ignore[attr-defined]


def test_its_pairs_are_limited_by_the_window(walks: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    events = len(walks.events("train"))
    for most, window in ((3 * events, 3), (3 * events - 1, 1), (events - 1, None)):
        monkeypatch.setattr("pipelines.rankers.ordered_knn.MOST_PAIRS", most)
        monkeypatch.setattr(choice, "MOST_PAIRS", most)
        chosen = choose(walks)
        if window is None:
            told = f"left out: {events:,} pairs of events in a row, more than {most:,}"
            assert chosen.ordered is None and chosen.left_out["item_knn_ordered"] == told
        else:
            assert chosen.ordered is not None and chosen.ordered.window <= window


def test_a_list_without_times_has_no_recent_popularity(tmp_path: Path) -> None:
    folder = tmp_path / "lists"
    folder.mkdir()
    generator = np.random.default_rng(0)
    for name in ("train", "valid", "test"):
        lines = [f"{user} " + " ".join(map(str, generator.integers(0, 12, 4))) for user in range(20)]
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
    prepare.run(DataConfig(), folder, tmp_path / "dataset", format="lightgcn")
    chosen = choose(Dataset.open(tmp_path / "dataset"))
    assert chosen.recent is None
    assert "no times" in chosen.left_out["popularity_recent"]
    assert chosen.ordered is None and "no order" in chosen.left_out["item_knn_ordered"]
    assert chosen.ease_recent is None and chosen.left_out["ease_recent"] == chosen.left_out["popularity_recent"]
    assert set(chosen.validation) == {"popularity", "popularity_users", "item_knn", "ease"}


@given(
    ladders=st.dictionaries(st.sampled_from("abc"), st.integers(1, 5), min_size=1),
    places=st.lists(st.integers(0, 4), min_size=3, max_size=3),
    seed=st.integers(0, 1000),
)
def test_climb_ends_on_a_top_and_asks_for_nothing_twice(ladders: dict[str, int], places: list[int], seed: int) -> None:
    made = dataclasses.make_dataclass("Made", [(name, int) for name in ladders], frozen=True)
    start = made(*(place % length for place, length in zip(places, ladders.values(), strict=False)))
    hills = np.random.default_rng(seed).integers(0, 9, tuple(ladders.values()))
    asked = []

    def value(settings: object) -> float:
        asked.append(settings)
        return float(hills[dataclasses.astuple(settings)])  # type: ignore[call-overload]

    lists = {name: tuple(range(length)) for name, length in ladders.items()}
    best, most = climb(start, lists, value)  # type: ignore[type-var]
    assert (
        len(asked) == len(set(asked)) and most == hills[dataclasses.astuple(best)] >= hills[dataclasses.astuple(start)]
    )
    for name, places_of in lists.items():
        for near in {getattr(best, name) - 1, getattr(best, name) + 1} & {*places_of}:
            assert hills[dataclasses.astuple(dataclasses.replace(best, **{name: near}))] <= most


@pytest.mark.parametrize("begin", range(5))
def test_climb_may_need_all_values_announced(begin: int) -> None:
    ladders = {"neighbours": (20, 50, 100, 200, 500)}
    start = KnnSettings(neighbours=ladders["neighbours"][begin])
    asked: list[int] = []

    def told(sign: int, settings: KnnSettings) -> float:
        asked.append(settings.neighbours)
        return sign * settings.neighbours

    needed = []
    for sign in (1, -1):  # all the way up, or one step up and all the way down
        asked.clear()
        climb(start, ladders, functools.partial(told, sign))
        needed.append(len(asked))
    assert max(needed) == most_values(start, ladders)


def test_climb_ends_where_no_step_of_one_setting_is_better() -> None:
    tried = []

    def value(settings: KnnSettings) -> float:
        tried.append(settings)
        return -abs(settings.neighbours - 200) - abs(settings.shrinkage - 10)

    ladders = {"shrinkage": (0.0, 10.0, 30.0, 100.0), "neighbours": (20, 50, 100, 200, 500)}
    best, most = climb(KnnSettings(neighbours=50, shrinkage=100.0), ladders, value)
    assert (best.neighbours, best.shrinkage, most) == (200, 10.0, 0)
    # The start; two steps and one too far, for either setting; then the neighbours of the first one once more.
    assert len(tried) == 1 + (2 + 1) + (2 + 1) + 2


def test_the_window_of_item_knn_counts_late_events_only(data: Dataset) -> None:
    train = data.events("train")
    assert train.time is not None
    day = 86_400 * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[str(data.manifest.time_unit)]
    late = train.time > train.time.max() - 30 * day
    assert 0 < late.sum() < len(late)
    fits = Fits(data, ("train",))
    found = fits.of(KnnSettings(days=30)).similarity
    items_of = {user: set(train.item[late & (train.user == user)].tolist()) for user in range(data.manifest.users)}
    pairs = {(i, j) for own in items_of.values() for i in own for j in own if i != j}
    assert set(zip(*(place.tolist() for place in found.nonzero()), strict=True)) == pairs


class TestCache:
    def test_a_second_report_searches_and_fits_nothing(self, data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
        first = baselines_of(data, ("train", "valid"), 5)
        monkeypatch.setattr(choice, "_search", lambda _: pytest.fail("searched again"))
        monkeypatch.setattr("pipelines.rankers.fits.nearest_items", lambda *_, **__: pytest.fail("fitted again"))
        monkeypatch.setattr("pipelines.rankers.fits.ease_weights", lambda *_: pytest.fail("fitted again"))
        again = baselines_of(Dataset.open(data.path), ("train", "valid"), 5)
        assert again.choice == first.choice
        assert again.content() == first.content()
        folder = Cache.beside(data.path).folder
        assert folder == data.path.parent / ".dataset.baselines"

    @pytest.mark.parametrize("damage", ["cut", "text", "other key", "no choice", "not a choice"])
    def test_a_damaged_or_stale_file_is_made_again(self, tmp_path: Path, damage: str) -> None:
        data = fashion(tmp_path / "world")
        chosen = choose(data)
        file = Cache.beside(data.path).folder / "choice.npz"
        whole = file.read_bytes()
        with np.load(file) as kept:
            key, text = kept["key"], kept["choice"]
        stale = np.asarray(str(text).replace('"users":', '"users":1'))
        if damage == "cut":
            file.write_bytes(whole[: len(whole) // 2])
        elif damage == "text":
            file.write_text("no archive")
        elif damage == "other key":
            np.savez(file, key=np.asarray("other"), choice=stale)
        elif damage == "no choice":
            np.savez(file, key=key)
        else:
            np.savez(file, key=key, choice=np.asarray('{"recent": 1}'))
        assert choose(data) == chosen
        with np.load(file) as again:
            assert (again["key"], again["choice"]) == (key, text)

    def test_a_place_that_cannot_be_written_is_said_and_fails_nothing(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        data = fashion(tmp_path / "world")
        (data.path.parent / ".dataset.baselines").write_text("a file in the way")
        assert choose(data).validation
        assert "choice is not kept for the next report" in capsys.readouterr().err
