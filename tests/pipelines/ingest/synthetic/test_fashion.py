"""Fashion in the synthetic world: one law for each season, as the formula says, and the truth of the last one."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy import stats

from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import heldout
from pipelines.dataset.popularity import Counting, item_counts
from pipelines.ingest import prepare
from pipelines.ingest.synthetic import fashion, synth
from pipelines.ingest.synthetic.catalogue import LENGTH_S, Catalogue, topics_for
from pipelines.ingest.synthetic.fashion import Fashion, season_of, season_starts
from pipelines.ingest.synthetic.world import START_S
from towers.config.sections import DataConfig

ITEMS = 1_000
WORLD = {"users": 2_000, "items": 2_000, "events": 80_000}
Doubles = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def in_fashion(strength: float, seed: int = 1) -> tuple[Catalogue, Fashion]:
    plain = Catalogue.make(ITEMS, np.random.default_rng(seed))
    ends = np.full((fashion.SEASONS, len(plain.entry_item)), np.nan)
    return plain, Fashion.of(plain, strength, np.random.default_rng(seed + 1), ends)


def topic_of_entries(catalogue: Catalogue) -> Doubles:
    return np.repeat(np.arange(topics_for(ITEMS)), np.diff(catalogue.topic_start))


def laws(changing: Fashion) -> Doubles:
    """[S, M] phi of each entry in each season."""
    return np.diff(changing.season_end, axis=1, prepend=0.0)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("fashion") / "world"
    synth.run(out, **WORLD, seed=3, fashion=1.0)
    return out


@pytest.fixture(scope="module")
def data(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    out = tmp_path_factory.mktemp("fashion") / "set"
    prepare.run(DataConfig(), world, out)
    return Dataset.open(out)


def test_the_law_of_each_topic_sums_to_one_in_every_season() -> None:
    _, changing = in_fashion(3.0)
    topic = topic_of_entries(changing)
    for law in laws(changing):
        assert law.min() >= 0
        np.testing.assert_allclose(np.bincount(topic, law), 1, atol=1e-9)


def test_the_truth_is_the_law_of_the_last_season() -> None:
    _, changing = in_fashion(1.0)
    truth = changing.vectors(0, ITEMS)
    for entry, law in enumerate(laws(changing)[-1]):
        topic = np.searchsorted(changing.topic_start, entry, side="right") - 1
        assert truth[changing.entry_item[entry], topic] == pytest.approx(law, rel=1e-5)
    np.testing.assert_allclose(truth.sum(axis=0), 1, atol=1e-5)


def relative(strength: float) -> Doubles:
    """[S, M] log phi over log phi without fashion, less its mean within each topic, which the norm of phi shifts."""
    plain, changing = in_fashion(strength)
    gap = np.log(laws(changing)) - np.log(np.diff(plain.entry_end, prepend=0.0))
    topic = topic_of_entries(plain)
    return np.stack([row - (np.bincount(topic, row) / np.bincount(topic))[topic] for row in gap])


def test_log_weights_are_proportional_to_the_strength() -> None:
    one = relative(1.0)
    assert one.std() > 0.1
    np.testing.assert_allclose(relative(2.5), 2.5 * one, atol=1e-6)
    np.testing.assert_allclose(relative(0.0), 0, atol=1e-6)


def test_the_walk_has_unit_variance_and_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fashion, "LIFE", 0.0)
    walk = relative(1.0) / fashion.WALK
    # 1,500 entries of 1,000 items: six deviations of a correlation are 0.15.
    assert np.var(walk, axis=1) == pytest.approx(np.ones(fashion.SEASONS), abs=0.2)
    for lag in (1, 4):
        found = [np.corrcoef(walk[s], walk[s + lag])[0, 1] for s in range(fashion.SEASONS - lag)]
        assert np.mean(found) == pytest.approx(fashion.MEMORY**lag, abs=0.08)


def test_an_item_lives_once_from_its_birth_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fashion, "WALK", 0.0)
    plain, changing = in_fashion(1.0)
    starts = season_starts().tolist()
    middle = (np.array(starts) + np.array([*starts[1:], LENGTH_S])) / 2
    ratio = laws(changing) / np.diff(plain.entry_end, prepend=0.0)
    topic = topic_of_entries(plain)
    # The norm is that of all items of a topic; those not yet discovered show it.
    norm = np.stack([[row[topic == z].min() for z in range(topics_for(ITEMS))] for row in ratio])
    lift = np.log(ratio / norm[:, topic]) / fashion.LIFE
    birth = plain.birth[plain.entry_item]
    late = birth > 0
    assert late.sum() > 50
    np.testing.assert_allclose(np.where(middle[:, None] <= birth, lift, 0.0)[:, late], 0, atol=1e-6)
    assert (np.where(middle[:, None] > birth, lift, 1.0)[:, late] > 0).all()
    assert lift.max() == pytest.approx(1, abs=0.01)
    rises = np.sign(np.diff(np.round(lift, 9), axis=0))
    turns = [np.count_nonzero(np.diff(column[column != 0])) for column in rises.T]
    assert max(turns) == 1  # up, then down, never up again


def test_the_peak_of_a_life_is_one_at_the_age_of_one() -> None:
    ages = np.linspace(-2, 20, 2_201)
    lives = fashion.life(ages)
    assert (lives[ages <= 0] == 0).all()
    assert ages[lives.argmax()] == pytest.approx(1) and lives.max() == pytest.approx(1)
    assert fashion.life(np.array([3.0]))[0] == pytest.approx(3 * np.exp(-2))


def test_a_draw_follows_the_law_of_its_season_among_the_items_born() -> None:
    _, changing = in_fashion(2.0)
    topic, draws = 5, 40_000
    time = int(0.5 * (0.85 + 0.9) * LENGTH_S)  # some late items are not born yet
    u = np.random.default_rng(2).random(draws)
    item = changing.draw(np.full(draws, topic), np.full(draws, time), u)
    season = max(place for place, start in enumerate(season_starts()) if start <= time)
    law = np.zeros(ITEMS)
    begin, end = changing.topic_start[topic : topic + 2]
    law[changing.entry_item[begin:end]] = laws(changing)[season][begin:end]
    law[changing.birth > time] = 0
    assert law.sum() < 0.9999
    law /= law.sum()
    # Six standard deviations of a binomial count for each item.
    counts = np.bincount(item, minlength=ITEMS)
    assert (np.abs(counts - draws * law) <= 6 * np.sqrt(draws * law * (1 - law)) + 1e-9).all()


def test_a_season_lasts_a_twentieth_of_the_time_and_the_last_one_a_tenth() -> None:
    starts = season_starts()
    assert starts.tolist() == [season * LENGTH_S // 20 for season in range(19)]
    times = [0, LENGTH_S // 20 - 1, LENGTH_S // 20, LENGTH_S * 9 // 10 - 1, LENGTH_S * 9 // 10, LENGTH_S - 1]
    assert season_of(np.array(times)).tolist() == [0, 0, 1, 17, 18, 18]


def test_events_of_the_last_season_follow_the_truth(tmp_path: Path) -> None:
    synth.run(tmp_path / "world", users=20_000, items=ITEMS, events=20_000, seed=5, fashion=2.0)
    synth.run(tmp_path / "plain", users=20_000, items=ITEMS, events=20_000, seed=5)
    events = pl.read_parquet(tmp_path / "world" / "events.parquet")
    # A user's first event is never drawn again, so it follows P(item | user) without any condition.
    first = events.sort("user_id", "time").unique("user_id", keep="first", maintain_order=True)
    last_birth = pl.read_parquet(tmp_path / "world" / "items.parquet")["created"].max()
    chosen = first.filter(pl.col("time") >= last_birth)
    assert chosen.height > 1_000
    user, item = (chosen[f"{side}_id"].str.slice(1).cast(pl.Int64).to_numpy() for side in ("user", "item"))
    theta = np.load(tmp_path / "world" / "truth" / "query_vectors.npy")[user].astype(np.float64).sum(axis=0)
    counts = np.bincount(item, minlength=ITEMS)

    def p_value(folder: str) -> float:
        expected = np.load(tmp_path / folder / "truth" / "item_vectors.npy").astype(np.float64) @ theta
        frequent = expected >= 5
        cells = [np.append(each[frequent], each[~frequent].sum()) for each in (counts, expected)]
        assert len(cells[0]) > 30
        return float(stats.chisquare(cells[0], cells[1] * cells[0].sum() / cells[1].sum()).pvalue)

    assert p_value("world") > 0.001
    assert p_value("plain") < 1e-9, "the test could tell another law"


def test_the_test_part_of_a_default_split_lies_within_the_last_season(data: Dataset) -> None:
    begin = data.manifest.split.boundaries["test"]
    assert begin >= START_S + season_starts()[-1]
    assert data.items["created"].to_numpy().max() < begin


def test_what_is_popular_now_beats_what_was_popular_over_all_the_time(data: Dataset) -> None:
    truth, held = data.truth(), heldout(data, "test")
    assert truth is not None
    probability = (truth[0][held.users] @ truth[1].T).astype(np.float64)
    user = np.repeat(np.arange(len(held.users)), np.diff(held.seen_offsets))
    probability[user, held.seen_items] = 0  # nobody takes an item twice
    probability /= probability.sum(axis=1, keepdims=True)

    def caught(scores: Doubles) -> float:
        """The mean probability that a user's next event is among the 20 best items that they have not seen."""
        top = np.argsort(np.where(probability > 0, -scores, np.inf), axis=1, kind="stable")[:, :20]
        return float(np.take_along_axis(probability, top, axis=1).sum(axis=1).mean())

    parts = [data.events("train"), data.events("valid")]
    ever, now = (
        caught(item_counts(parts, WORLD["items"], Counting(days), time_unit=data.manifest.time_unit))
        for days in (None, 14)
    )
    assert 1.3 * ever < now < 2.5 * ever
    assert caught(probability) > 2 * now, "taste still matters"


def test_only_the_popularity_differs_from_the_world_without_fashion(world: Path, tmp_path: Path) -> None:
    synth.run(tmp_path / "plain", **WORLD, seed=3)
    for same in ("users.parquet", "items.parquet", "truth/query_vectors.npy"):
        assert (tmp_path / "plain" / same).read_bytes() == (world / same).read_bytes()
    for other in ("events.parquet", "truth/item_vectors.npy"):
        assert (tmp_path / "plain" / other).read_bytes() != (world / other).read_bytes()


def test_the_same_seed_gives_the_same_bytes_and_another_seed_another_fashion(world: Path, tmp_path: Path) -> None:
    for seed in (3, 4):
        synth.run(tmp_path / str(seed), **WORLD, seed=seed, fashion=1.0)
    names = sorted(path.relative_to(world).as_posix() for path in world.rglob("*") if path.is_file())
    assert len(names) == 5
    for name in names:
        assert (tmp_path / "3" / name).read_bytes() == (world / name).read_bytes()
        assert (tmp_path / "4" / name).read_bytes() != (world / name).read_bytes()
