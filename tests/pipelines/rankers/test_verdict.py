"""The verdict: what it says for each conclusion, in the report and at the end of a training."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import heldout
from pipelines.evaluation import report_table
from pipelines.ingest import prepare
from pipelines.rankers.baselines import Verdict, report_verdict, validation_verdict
from towers.config.sections import DataConfig

RECENT = "popularity of 60 days, users alike"
ADVICE = (
    "towers tune --dataset 'my data' --budget-minutes 20 --out tuned.toml searches for a recipe that does better; "
    "docs/model/recipes.md says what each setting does"
)
# Value, interval of the difference; the line that is printed and the conclusion.
CASES = [
    (0.1205 + 0.0133, (0.0133, 0.0011, 0.0278), "0.1338: above", "0.0133 (0.0011 to 0.0278)", "proven better"),
    (0.1205 + 0.0033, (0.0033, -0.0011, 0.0078), "0.1238: above", "0.0033 (-0.0011 to 0.0078)", "not proven better"),
    (0.1205 + 0.0133, (0.0133, 0.0, 0.0278), "0.1338: above", "0.0133 (0.0000 to 0.0278)", "not proven better"),
    (0.1205, (0.0, -0.001, 0.001), "0.1205: above", "0.0000 (-0.0010 to 0.0010)", "not proven better"),
    (0.1205 - 0.0033, (-0.0033, -0.0078, 0.0011), "0.1172: below", "0.0033 (-0.0011 to 0.0078)", "not proven worse"),
    (0.1205 - 0.0371, (-0.0371, -0.0442, -0.0299), "0.0834: below", "0.0371 (0.0299 to 0.0442)", "worse"),
    (0.1205 + 0.0033, (0.0033, 4e-5, 0.0078), "0.1238: above", "0.00330 (0.00004 to 0.00780)", "proven better"),
    (0.1205 - 0.0371, (-0.0371, -0.0742, 0.0), "0.0834: below", "0.0371 (0.0000 to 0.0742)", "not proven worse"),
]


@pytest.mark.parametrize(("value", "interval", "side", "by", "conclusion"), CASES)
def test_each_conclusion_has_its_line(
    value: float, interval: tuple[float, float, float], side: str, by: str, conclusion: str
) -> None:
    difference = dict(zip(("value", "low", "high"), interval, strict=True))
    verdict = Verdict("recall@20", value, "popularity_recent", RECENT, 0.1205, difference, 20)
    assert verdict.conclusion == conclusion
    assert verdict.text == f"recall@20 {side} the strongest baseline ({RECENT}: 0.1205) by {by}: {conclusion}"
    chosen = replace(verdict, kind="strongest baseline on validation")
    assert chosen.text == verdict.text.replace("baseline (", "baseline on validation (")
    content = verdict.content()
    assert content == {
        "metric": "recall@20",
        "value": value,
        "baseline": "popularity_recent",
        "baseline_title": RECENT,
        "baseline_value": 0.1205,
        "difference": difference,
        "users": 20,
        "kind": "strongest baseline",
        "higher": None,
        "conclusion": conclusion,
        "text": verdict.text,
    }
    hub = {"name": "hub", "text": "one item is everywhere"}
    shown = report_table.head({"verdict": content, "findings": [hub]}, Path("my data"))
    assert shown == [verdict.text, *([ADVICE] if "below" in side else []), "hub: one item is everywhere"]
    few = replace(verdict, users=19)
    assert few.conclusion == {"proven better": "not proven better", "worse": "not proven worse"}.get(
        conclusion, conclusion
    )
    assert few.text.endswith(f" by {by}: {few.conclusion} (only 19 to judge by)")


def test_a_baseline_that_is_higher_here_than_the_strongest_elsewhere_is_named() -> None:
    """The verdict is about what validation chose; the superlative must not hide a row of the same table."""
    value = {"exact": 0.17, "index": 0.18, "popularity": 0.15, "ease": 0.16, "item_knn": 0.171}
    figures: dict[str, Any] = {"metrics": {}, "differences": {}}
    for name, each in value.items():
        figures["metrics"][name] = {"recall@20": {"value": each}}
        difference = {"value": 0.17 - each, "low": 0.16 - each, "high": 0.18 - each}
        figures["differences"][f"exact_minus_{name}"] = {"recall@20": difference}
    titles = {"popularity": "popularity", "ease": "EASE, lambda 300", "item_knn": "item-kNN of 20 neighbours"}
    verdict = report_verdict(figures, "recall@20", "ease", titles, "strongest baseline on validation", 50)
    assert verdict.text == (
        "recall@20 0.1700: above the strongest baseline on validation (EASE, lambda 300: 0.1600) by 0.0100 "
        "(0.0000 to 0.0200): not proven better; higher here is item-kNN of 20 neighbours (0.1710), the model minus it "
        "-0.0010 (-0.0110 to +0.0090)"
    )
    assert verdict.content()["higher"] == {
        "baseline": "item_knn",
        "title": "item-kNN of 20 neighbours",
        "value": 0.171,
        "difference": figures["differences"]["exact_minus_item_knn"]["recall@20"],
    }
    assert report_verdict(figures, "recall@20", "item_knn", titles, "strongest baseline", 50).higher is None


@pytest.mark.parametrize(("ks", "k"), [((10, 20, 50), 20), ((5, 10, 50), 10), ((7,), 7), ((20, 50), 20)])
def test_the_headline_is_20_or_the_second(ks: tuple[int, ...], k: int) -> None:
    assert report_table.headline(ks) == k


USERS, ITEMS = 60, 16


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """No order of time: only popularity over everything, item-kNN and EASE."""
    folder = tmp_path_factory.mktemp("lists")
    generator = np.random.default_rng(5)
    lists: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    for user in range(USERS):
        first, second, *others = generator.permutation(np.arange(1, ITEMS)).tolist()
        lists["train"].append(f"{user} {first} {second} {others[0]}")
        lists["valid"].append(f"{user} {others[1]}" if user % 3 else f"{user}")
        lists["test"].append(f"{user} {others[2]}")
    for name, lines in lists.items():
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
    prepare.run(DataConfig(), folder, folder / "dataset", format="lightgcn")
    return Dataset.open(folder / "dataset")


def popularity_by_hand(data: Dataset, users: np.ndarray, metric: str, k: int) -> list[float]:
    train, valid = data.events("train"), data.events("valid")
    counts = np.bincount(train.item, minlength=data.manifest.items)
    order = sorted(range(len(counts)), key=lambda item: (-counts[item], item))
    figures = []
    for user in users:
        known, (target,) = set(train.item[train.user == user].tolist()), valid.item[valid.user == user].tolist()
        top = [item for item in order if item not in known][:k]
        rank = top.index(target) + 1 if target in top else None
        gain = 0.0 if rank is None else {"recall": 1.0, "ndcg": 1 / math.log2(rank + 1), "precision": 1 / k}[metric]
        figures.append(gain)
    return figures


@pytest.mark.parametrize("metric", ["recall", "ndcg", "precision"])
def test_validation_is_judged_as_the_report_judges(data: Dataset, metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # With popularity alone the strongest is known.
    monkeypatch.setattr("pipelines.rankers.item_knn.MAX_PAIRS", 0)
    monkeypatch.setattr("pipelines.rankers.ease.MAX_ITEMS", 0)
    users = heldout(data, "valid").users[::2]
    baseline = float(np.mean(popularity_by_hand(data, users, metric, 4)))
    assert 0 < baseline < 1
    perfect = {"recall": 1.0, "ndcg": 1.0, "precision": 0.25}[metric]
    line = validation_verdict(data, users, np.full(len(users), perfect), f"{metric}@4")
    assert line.startswith(f"{metric}@4 {perfect:.4f}: above the strongest baseline (popularity")
    assert line.endswith(": proven better")
    given = float(line.split(": ")[2].split(")")[0])
    # Users have three events each, so that popularity of events and of users are the same.
    assert given == pytest.approx(baseline, abs=5e-5)
    worse = validation_verdict(data, users, np.zeros(len(users)), f"{metric}@4")
    assert worse.startswith(f"{metric}@4 0.0000: below the strongest baseline")
