"""Users whose means over seeds are equal count as equal: fractions against stored float32."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import polars as pl

from pipelines.launch.differences import metric_tests, user_changes
from pipelines.launch.sides import Member, Side
from pipelines.rankers.evaluate import column
from pipelines.rankers.ranker import EXACT

USERS, METRIC = 400, "recall@20"


def test_users_with_equal_means_over_seeds_are_ties() -> None:
    generator = np.random.default_rng(3)
    targets = generator.integers(1, 12, USERS)
    hits = generator.integers(0, targets + 1, (4, USERS))  # of two seeds of one recipe, then two of the other
    exact = [[Fraction(int(hit), int(of)) for hit, of in zip(seed, targets, strict=True)] for seed in hits]
    gains = [c + d - a - b for a, b, c, d in zip(*exact, strict=True)]
    about = {"targets": targets, "history": targets}

    def side(name: str, seeds: list[list[Fraction]]) -> Side:
        tables = [
            pl.DataFrame(about | {column(EXACT, "recall", 20): np.array([float(each) for each in seed], np.float32)})
            for seed in seeds
        ]
        return Side(name, tuple(Member(Path(f"{name}-{place}"), "", {}, rows) for place, rows in enumerate(tables)))

    old, new = side("old", exact[:2]), side("new", exact[2:])
    test = metric_tests((old, new), [METRIC], lambda _: None)["new"][METRIC]
    found = (test["wins"], test["losses"], test["ties"])
    assert found == (sum(each > 0 for each in gains), sum(each < 0 for each in gains), gains.count(Fraction(0)))
    equal = [row for row, gain in enumerate(gains) if gain == 0]
    alike = [
        Side(each.name, tuple(Member(one.path, "", {}, one.rows[equal]) for one in each.members)) for each in (old, new)
    ]
    assert user_changes(*alike, METRIC, named=False) == {"gain": [], "lose": []}
