"""`towers synth`: writes a synthetic world with known truth, as Parquet files that `towers prepare` reads.

Writes `events.parquet`, `users.parquet`, `items.parquet` and `truth/`. The same arguments give the same bytes. See
`pipelines.ingest.synthetic.world` for the model and `pipelines.ingest.synthetic.fashion` for what changes over time.
"""

from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.console import amount, phases, progress, say
from pipelines.dataset.arrays import new_array
from pipelines.errors import DataError
from pipelines.ingest.synthetic.catalogue import Catalogue
from pipelines.ingest.synthetic.fashion import MOST, SEASONS, Fashion
from pipelines.ingest.synthetic.words import ADJECTIVES, AGE_GROUPS, COUNTRIES, DEVICES, PLACES, TOPICS
from pipelines.ingest.synthetic.world import START_S, Population, UserBlock
from serving.files.staging import remove, staged

ITEM_BLOCK = 1 << 18
ITEM_LIMITS = (1_000, 10_000_000)
# Items that exist from the start were created in the three years before it.
OLDEST_S = 3 * 365 * 86_400


def run(
    out: Path,
    *,
    users: int = 6_000,
    items: int = 21_000,
    events: int = 480_000,
    seed: int = 0,
    fashion: float = 0.0,
    overwrite: bool = False,
) -> None:
    """Writes a world.

    Args:
        out: the folder.
        users: number of users.
        items: number of items, 1,000 to 10,000,000.
        events: approximate number of events; slightly fewer if users run out of items.
        seed: the same seed gives the same files.
        fashion: how much the popularity of items changes over time, 0 to 5; 0 fixes it (`synthetic/fashion.py`).
        overwrite: replace an existing `out`.

    Raises:
        DataError: a size or the strength of fashion is out of range.
        OutputExistsError: `out` exists and may not be replaced.
    """
    low, high = ITEM_LIMITS
    if not low <= items <= high:
        raise DataError(f"--items {items}: allowed are {low:,} to {high:,}")
    if users < 1 or seed < 0:
        raise DataError(f"--users {users} --seed {seed}: users must be at least 1, a seed at least 0")
    if not users <= events <= users * items // 10:
        raise DataError(
            f"--events {events}: allowed are {users:,} to {users * items // 10:,} for that many users and items"
        )
    if not 0 <= fashion <= MOST:
        raise DataError(f"--fashion {fashion:g}: allowed are 0 to {MOST:g}")
    with staged(out, overwrite=overwrite, marker="truth/item_vectors.npy") as staging:
        phases("synth", "make items", "make events")
        (staging / "truth").mkdir(parents=True)
        parts = staging / "parts"
        parts.mkdir()
        items_seed, names_seed, users_seed, fashion_seed = np.random.SeedSequence(seed).spawn(4)
        catalogue = Catalogue.make(items, np.random.default_rng(items_seed))
        if fashion:
            ends = new_array(parts / "seasons.npy", (SEASONS, len(catalogue.entry_item)), np.float64)
            catalogue = Fashion.of(catalogue, fashion, np.random.default_rng(fashion_seed), ends)
        _write_items(staging, catalogue, names_seed)
        population = Population(users, events, catalogue, users_seed)
        count = _write_users_and_events(staging, population)
        remove(parts)
    say(f"{out}: {amount(users, 'users')}, {amount(items, 'items')}, {amount(count, 'events')}")


def _write_items(staging: Path, catalogue: Catalogue, seed: np.random.SeedSequence) -> None:
    items = len(catalogue.birth)
    blocks = range(0, items, ITEM_BLOCK)
    vectors = new_array(staging / "truth" / "item_vectors.npy", (items, len(catalogue.topic_start) - 1), np.float32)
    parts: list[Path] = []
    with progress("make items", total=items, unit="items") as advance:
        for first, block_seed in zip(blocks, seed.spawn(len(blocks)), strict=True):
            last = min(first + ITEM_BLOCK, items)
            vectors[first:last] = catalogue.vectors(first, last)
            frame = item_rows(catalogue, first, last, np.random.default_rng(block_seed))
            parts.append(staging / "parts" / f"items-{len(parts):05}.parquet")
            frame.write_parquet(parts[-1])
            advance(last - first)
    vectors.flush()
    _join(parts, staging / "items.parquet")


def item_rows(catalogue: Catalogue, first: int, last: int, rng: np.random.Generator) -> pl.DataFrame:
    """Draws the attributes of a range of items; they reveal the topics, but not the popularity."""
    size = last - first
    topics = catalogue.topics[first:last].astype(np.int64)
    names = list(TOPICS)
    words = np.asarray([TOPICS[name] for name in names])
    # Two different tags of the main topic, one of each other topic.
    pick = rng.integers(0, words.shape[1], (size, 3))
    second = (pick[:, 0] + 1 + rng.integers(0, words.shape[1] - 1, size)) % words.shape[1]
    one_of_each = words[topics, pick]
    tags = np.insert(one_of_each, 1, words[topics[:, 0], second], axis=1).astype(object)
    tags[:, 2:][topics[:, 1:] < 0] = None
    title = (
        _gathered(ADJECTIVES, rng.integers(0, len(ADJECTIVES), size))
        + " "
        + pl.Series(tags[:, 0].tolist()).str.to_titlecase()
        + " of "
        + _gathered(PLACES, rng.integers(0, len(PLACES), size))
    )
    birth = catalogue.birth[first:last]
    created = np.where(birth > 0, START_S + birth, START_S - rng.integers(1, OLDEST_S, size))
    return pl.DataFrame(
        {
            "item_id": _ids("i", first, last, len(catalogue.birth)),
            "title": _told_apart(title),
            "category": _gathered(names, topics[:, 0]),
            "tags": pl.Series(tags.tolist(), dtype=pl.List(pl.String)).list.drop_nulls(),
            "created": created,
        }
    )


def _told_apart(titles: pl.Series) -> pl.Series:
    """Numbers equal titles of a block as parts of a series, so two items seldom look like one recommended twice."""
    part = pl.int_range(pl.len()).over("title") + 1
    numbered = pl.format("{}, part {}", "title", part)
    frame = titles.rename("title").to_frame()
    return frame.select(pl.when(part == 1).then("title").otherwise(numbered).alias("title")).to_series()


def _write_users_and_events(staging: Path, population: Population) -> int:
    Z = len(population.catalogue.topic_start) - 1
    vectors = new_array(staging / "truth" / "query_vectors.npy", (population.users, Z), np.float32)
    user_parts, event_parts, count = [], [], 0
    with progress("make events", total=int(population.activity.sum()), unit="events") as advance:
        for number, block in enumerate(population.blocks()):
            last = block.first + len(block.theta)
            vectors[block.first : last] = block.theta
            user_parts.append(staging / "parts" / f"users-{number:05}.parquet")
            event_parts.append(staging / "parts" / f"events-{number:05}.parquet")
            _user_rows(block, population.users).write_parquet(user_parts[-1])
            _event_rows(block, population).write_parquet(event_parts[-1])
            count += len(block.user)
            advance(len(block.user))
    vectors.flush()
    _join(user_parts, staging / "users.parquet")
    _join(event_parts, staging / "events.parquet")
    return count


def _user_rows(block: UserBlock, users: int) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "user_id": _ids("u", block.first, block.first + len(block.theta), users),
            "age_group": _gathered(AGE_GROUPS, block.age_group),
            "country": _gathered(COUNTRIES, block.country),
        }
    )


def _event_rows(block: UserBlock, population: Population) -> pl.DataFrame:
    items = len(population.catalogue.birth)
    last = block.first + len(block.theta)
    return pl.DataFrame(
        {
            "user_id": _ids("u", block.first, last, population.users).gather(block.user - block.first),
            "item_id": _numbered("i", pl.Series(block.item, dtype=pl.Int64), items),
            "time": block.time,
            "device": _gathered(DEVICES, block.device),
        }
    )


def _ids(letter: str, first: int, last: int, total: int) -> pl.Series:
    return _numbered(letter, pl.int_range(first, last, eager=True), total)


def _numbered(letter: str, numbers: pl.Series, total: int) -> pl.Series:
    return letter + numbers.cast(pl.String).str.zfill(max(len(str(total - 1)), 6))


def _gathered(words: tuple[str, ...] | list[str], places: NDArray[np.int64]) -> pl.Series:
    return pl.Series(words, dtype=pl.String).gather(pl.Series(places))


def _join(parts: list[Path], out: Path) -> None:
    pl.scan_parquet(parts, glob=False).sink_parquet(out, maintain_order=True)
