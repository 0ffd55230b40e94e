"""Losses that learn from the events' weights: what the data set must hold, and what weight 0 is to the others."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipelines.dataset.dataset import Dataset
from pipelines.ingest import prepare
from pipelines.training import check, train
from towers.config.losses import Bce
from towers.config.recipe import parse_config
from towers.config.sections import DataConfig
from towers.errors import ConfigError


def dataset(directory: Path, weight: Any) -> Path:
    """40 users, 12 items, 10 events each; user u takes items of its parity with weight above 0."""
    rows = [
        (f"u{u}", f"i{(u * 3 + n) % 12}", 1000 + n, weight(u, (u * 3 + n) % 12)) for u in range(40) for n in range(10)
    ]
    frame = pl.DataFrame(rows, schema=["user", "item", "time", "rating"], orient="row")
    if rows[0][3] is None:
        frame = frame.drop("rating")
    frame.write_csv(directory / "events.csv")
    prepare.run(DataConfig(), directory / "events.csv", directory / "dataset")
    return directory / "dataset"


def impressions(user: int, item: int) -> int:
    return 2 if (user + item) % 2 else 0


THIRTEEN = {"name": "uniform", "negatives": 13, "distinct": True}
REFUSED: list[tuple[dict[str, Any], Any, str]] = [
    ({"loss": {"name": "bce"}}, lambda u, i: None, r"loss\.name = 'bce': the data set has no weights"),
    ({"loss": {"name": "graded_hinge"}}, lambda u, i: 1, r"loss\.name = 'graded_hinge': every weight .* is 1; equal"),
    ({"loss": {"name": "bce"}}, lambda u, i: i - 3, r"loss\.name = 'bce': weights must not be negative; .* is -3"),
    ({"loss": {"name": "bce", "max_label": 1.5}}, impressions, r"loss\.max_label: .* the largest is 2; got 1\.5"),
    (
        {"loss": {"name": "full_softmax", "label_shares": "weight", "positives_per_query": 2}},
        lambda u, i: None,
        r"loss\.label_shares = 'weight': the data set has no weights",
    ),
    (
        {"sampler": THIRTEEN},
        impressions,
        r"sampler\.negatives = 13 with distinct = true: only 12 items can be drawn; ask for fewer",
    ),
    (
        {
            "sampler": {
                "name": "mixed",
                "parts": [{"name": "in_batch"}, {"name": "uniform", "negatives": 13, "distinct": True}],
            }
        },
        impressions,
        r"sampler\.parts\.1\.negatives = 13 with distinct = true: only 12 items",
    ),
]


@pytest.mark.parametrize(("sections", "weight", "message"), REFUSED)
def test_what_cannot_be_learnt_from_is_refused(
    sections: dict[str, Any], weight: Any, message: str, tmp_path: Path
) -> None:
    path = dataset(tmp_path, weight)
    with pytest.raises(ConfigError, match=message):
        check.run(parse_config(sections), path)


def test_the_largest_label_is_spelt_out(tmp_path: Path) -> None:
    loss = check.run(parse_config({"loss": {"name": "bce"}}), dataset(tmp_path, impressions)).loss
    assert isinstance(loss, Bce)
    assert loss.max_label == 2


@pytest.mark.parametrize(
    "sections",
    [
        {"train": {"weighted": True}},
        {"loss": {"name": "full_softmax", "label_shares": "weight", "positives_per_query": 2}},
    ],
    ids=["weighted", "shares"],
)
def test_the_weights_of_impressions_that_do_not_train_are_not_judged(sections: dict[str, Any], tmp_path: Path) -> None:
    config = parse_config(sections)
    assert check.run(config, dataset(tmp_path, lambda u, i: 1 if (u + i) % 2 else -1)).train == config.train


def test_impressions_are_no_training_events(tmp_path: Path) -> None:
    rows = {"train": [("u", "a", 1, 1), *(("v", item, 2, 0) for item in "abcd")], "test": [("u", "b", 3, 1)]}
    (tmp_path / "given").mkdir()
    for name, events in rows.items():
        frame = pl.DataFrame(events, schema=["user", "item", "time", "weight"], orient="row")
        frame.write_csv(tmp_path / "given" / f"{name}.csv")
    prepare.run(DataConfig(), tmp_path / "given", tmp_path / "dataset")
    with pytest.raises(ConfigError, match="1 training events; training needs at least 2"):
        check.run(parse_config({}), tmp_path / "dataset")


@pytest.mark.slow
@pytest.mark.parametrize(("loss", "all_of_them"), [("bce", True), ("graded_hinge", True), ("sampled_softmax", False)])
def test_an_impression_is_a_label_or_no_example(loss: str, all_of_them: bool, tmp_path: Path) -> None:
    path = dataset(tmp_path, impressions)
    config = parse_config(
        {
            "loss": {"name": loss},
            "model": {"dimension": 8},
            "features": {"query": {"user_id": {"kind": "id"}}, "candidate": {"item_id": {"kind": "id"}}},
            "train": {"batch_size": 32, "epochs": 2},
        }
    )
    train.run(config, path, tmp_path / "run")
    data = Dataset.open(path)
    parts = data.parts("train") if all_of_them else ["train"]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["stages"][0]["examples"] == sum(len(data.events(part)) for part in parts)
