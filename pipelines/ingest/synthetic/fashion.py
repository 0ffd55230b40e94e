"""Fashion: items rise, fade and come back, so what is popular now is not what was popular over all time.

Turns a catalogue with fixed popularity into one with a law for each season. Popularity is constant within a season.
Seasons last a twentieth of the time, the last one twice as long. The log weight of item i in topic z in season s, whose
middle is t_s, is

    log w(z, i, s) = log phi(z, i) + strength (WALK x(i, s) + LIFE h((t_s - b_i) / l_i))

- phi is the Zipf law of a world without fashion.
- x is a mean-reverting walk: x(i, 0) ~ N(0, 1), x(i, s + 1) = MEMORY x(i, s) + sqrt(1 - MEMORY^2) N(0, 1). A
  deviation from the mean halves in log(1/2) / log(MEMORY) seasons.
- h(a) = a exp(1 - a) for a > 0, else 0, is the life of an item: it rises from 0, is 1 at a = 1 and fades slowly.
- b_i is the birth of a late item. Initial items are discovered at a moment drawn uniformly from twice the world's
  length, the first half of it before the start. l_i, the time to the peak, is log-uniform in PEAK_DAYS.

phi(z, i, s) = w(z, i, s) / sum_j w(z, j, s). An event of season s draws item i of topic z with phi(z, i, s) among the
items born by then. The test part of a default split begins after the last birth, in the last season, so the truth of
its events is exactly phi of that season.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipelines.ingest.synthetic.catalogue import LENGTH_S, Catalogue, Doubles, Ints

SEASONS = 19
LAST_SEASON = 0.9
"""Where the last season begins, as a share of the time; the seasons before it are alike in length."""
MEMORY = 0.85
WALK = 0.5
LIFE = 1.2
PEAK_DAYS = (10.0, 60.0)
MOST = 5.0
"""The largest strength: a weight then still fits a float."""


@dataclass(frozen=True)
class Fashion(Catalogue):
    """A catalogue with a law for each season; `share` and `entry_end` are those of the last one.

    Attributes:
        season_end: [S, M] running sum of phi(z, i, s) over the entries, one row per season.
    """

    season_end: Doubles

    @classmethod
    def of(cls, catalogue: Catalogue, strength: float, rng: np.random.Generator, season_end: Doubles) -> "Fashion":
        """Draws the walks and lives.

        Args:
            catalogue: items, births and the law of a world without fashion.
            strength: 0 to `MOST`; 0 leaves that law in every season.
            rng: the random generator.
            season_end: [SEASONS, M] to fill; a memory-mapped file if memory is short.
        """
        item, topic = catalogue.entry_item, catalogue.entry_key // (LENGTH_S + 1)
        slot = np.argmax(catalogue.topics[item] == topic[:, None], axis=1)
        law = catalogue.share[item, slot]
        items = len(catalogue.birth)
        begin = np.where(catalogue.birth > 0, catalogue.birth, rng.uniform(-LENGTH_S, LENGTH_S, items))
        peak = 86_400 * np.exp(rng.uniform(np.log(PEAK_DAYS[0]), np.log(PEAK_DAYS[1]), items))
        walk = rng.standard_normal(items)
        share = np.zeros_like(catalogue.share)
        starts = season_starts()
        middles = (starts + np.append(starts[1:], LENGTH_S)) / 2
        for season, middle in enumerate(middles):
            if season:
                walk = MEMORY * walk + np.sqrt(1 - MEMORY**2) * rng.standard_normal(items)
            weight = law * np.exp(strength * (WALK * walk + LIFE * life((middle - begin) / peak)))[item]
            weight /= np.bincount(topic, weight)[topic]
            season_end[season] = np.cumsum(weight)
        share[item, slot] = weight
        return cls(**vars(catalogue) | {"share": share, "entry_end": season_end[-1], "season_end": season_end})

    def draw(self, topic: Ints, time: Ints, u: Doubles) -> NDArray[np.int32]:
        """Draws an item of each topic by the law of its time's season, among those born; see `Catalogue.draw`."""
        out = np.zeros(len(topic), np.int32)
        season = season_of(time)
        for each in np.unique(season):
            now = np.flatnonzero(season == each)
            out[now] = self.draw_by(self.season_end[each], topic[now], time[now], u[now])
        return out


def season_of(time: Ints) -> Ints:
    """[E] the season of each time; times in seconds after the start."""
    return np.searchsorted(season_starts()[1:], time, side="right")


def season_starts() -> Ints:
    """[SEASONS] the start of each season, in seconds after the world's start, ascending from 0."""
    return np.linspace(0, LAST_SEASON * LENGTH_S, SEASONS).astype(np.int64)


def life(age: Doubles) -> Doubles:
    """Computes a exp(1 - a) for ages in units of the time to the peak; 0 before the item is discovered."""
    age = np.maximum(age, 0.0)
    return np.asarray(age * np.exp(1.0 - age))
