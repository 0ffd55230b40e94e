"""Bundles of item similarity before a launch: what compare and the gate refuse, and what the gate measures instead."""

import re
from pathlib import Path

import numpy as np
import pytest

from pipelines.errors import DataError
from pipelines.evaluation import report
from pipelines.launch import compare, gate, searches
from pipelines.launch.rules import AgreementRule, LatencyRule
from serving.recall.loading import open_recaller
from serving.recall.query import RecallQuery
from tests.support.worlds import alike
from tests.support.worlds.alike import ITEMS


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two bundles, and the report of the first."""
    folder = tmp_path_factory.mktemp("similar")
    dataset = alike.write_dataset(folder)
    for name, noise in (("one", 0.5), ("two", 1.5)):
        alike.write_bundle(dataset, name, noise=noise)
    report.run(folder / "one", dataset, folder / "report", ks=[5], maps=[])
    return folder


def test_compare_takes_neither_bundles_nor_reports_of_neighbours(world: Path, tmp_path: Path) -> None:
    one, two = str(world / "one"), str(world / "two")
    with pytest.raises(DataError, match=r"one: task = 'similarity'; compare takes bundles that recall items for users"):
        compare.run([one, two], tmp_path / "out", dataset=world / "dataset")
    with pytest.raises(DataError, match=r"report: a report of item neighbours .* allowed are reports of recall"):
        compare.run([str(world / "report"), two], tmp_path / "out", dataset=world / "dataset")
    assert not (tmp_path / "out").exists()


METRICS = '[[metrics]]\nmetric = "recall@20"\nbound = "low"\nat_least = 0.1\n'


@pytest.mark.parametrize("rules", [METRICS, '[findings]\nclean = ["all"]\n'])
def test_the_gate_says_which_rules_judge_such_a_bundle(
    world: Path, tmp_path: Path, rules: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "probed", lambda path: open_recaller(path, tower=False))
    (tmp_path / "rules.toml").write_text(rules)
    allowed = re.escape("judged by [index], [latency] and [agreement] alone")
    for given in (None, world / "report"):
        with pytest.raises(DataError, match=f"task = 'similarity'; such a bundle is {allowed}"):
            gate.run(tmp_path / "rules.toml", world / "one", report=given)
    assert not (world / "one.blessing.json").exists()


def test_agreement_and_latency_are_those_of_neighbours(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All users get popular items: over them any two bundles would agree, and an answer would need no search."""
    one, two = (open_recaller(world / name, tower=False) for name in ("one", "two"))
    lists = [
        [recaller.recall(RecallQuery(similar_to=[f"i{item}"], k=5)).ids for item in range(ITEMS)]
        for recaller in (one, two)
    ]
    expected = np.mean([len({*first} & {*second}) / 5 for first, second in zip(*lists, strict=True)])
    judged = searches.judge_agreement(two, one, AgreementRule(k=5, at_least=0.9))
    assert judged.figure == pytest.approx(expected) and 0 < expected < 0.9
    assert (judged.passed, judged.note) == (False, f"{ITEMS} items")
    asked: list[RecallQuery] = []
    monkeypatch.setattr(one, "recall", asked.append)
    (timed,) = searches.judge_latency(one, LatencyRule(k=5, p99_ms=1e9))
    assert timed.note == f"{ITEMS} queries"
    assert {query.similar_to[0] for query in asked if query.similar_to} == {f"i{item}" for item in range(ITEMS)}
