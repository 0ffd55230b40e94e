"""Which features show an example what comes after it: found by changing what comes after, and named by the commands."""

from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from pipelines.bundles import export
from pipelines.dataset.dataset import Dataset
from pipelines.evaluation import report
from pipelines.ingest import prepare
from pipelines.training import check, train
from pipelines.training.stage import build_training
from towers.config.look_ahead import look_ahead
from towers.config.recipe import Config, parse_config
from towers.config.sections import DataConfig
from towers.errors import ConfigError
from towers.training.prefetch import as_tensors

USERS, LENGTH, ITEMS, LATE = 40, 10, 15, 5
QUERY: dict[str, Any] = {
    "user_id": {"kind": "id"},
    "earlier": {"kind": "history"},
    "others": {"kind": "history", "window": "others"},
    "past": {"kind": "sequence", "blocks": 1},
    "before": {"kind": "neighbours", "window": "earlier", "recency": 4.0},
    "graph": {"kind": "neighbours", "window": "all"},
    "near": {"kind": "neighbours", "window": "earlier", "cooccurrence": 2.0},
    "hour": {"kind": "hour"},
}
CANDIDATE: dict[str, Any] = {
    "item_id": {"kind": "id"},
    "audience": {"kind": "neighbours"},
    "nearby": {"kind": "cooccurrence"},
}


def recipe(**query: Any) -> Config:
    features = {"query": query or QUERY, "candidate": CANDIDATE}
    return parse_config({"features": features, "model": {"dimension": 8}, "train": {"batch_size": 1_000, "epochs": 1}})


def prepared(folder: Path, *, other_end: bool) -> Dataset:
    """Users who take items at random; `other_end` exchanges their late training items, as often taken as before."""
    rng = np.random.default_rng(2)
    item = rng.integers(0, ITEMS, (USERS, LENGTH))
    if other_end:
        late = item[:, LATE : LENGTH - 2]
        item[:, LATE : LENGTH - 2] = rng.permutation(late.ravel()).reshape(late.shape)
    rows = [(f"u{u}", f"i{item[u, n]}", 3_600 * n + u) for u in range(USERS) for n in range(LENGTH)]
    pl.DataFrame(rows, schema=["user_id", "item_id", "time"], orient="row").write_csv(folder / "events.csv")
    prepare.run(DataConfig(split="leave_last_out", duplicates="keep"), folder / "events.csv", folder / "dataset")
    return Dataset.open(folder / "dataset")


def vectors(folder: Path, *, other_end: bool) -> dict[str, np.ndarray]:
    """What each feature adds to the early examples' vectors, by key."""
    folder.mkdir()
    data = prepared(folder, other_end=other_end)
    config = check.check_recipe(recipe(), data)
    training = build_training(config, data, ("train",), folder, folder, validated=False)
    batch, towers = as_tensors(training.batches.batch(0, 0)), training.task.towers
    time = np.asarray(training.batches.events.time)
    early = time < 3_600 * LATE
    assert len(batch.user) == len(time) and early.sum() == USERS * LATE
    inputs = {"query": batch.query, "candidate": training.task.features_of(batch.item[:, 0])}
    return {
        f"features.{side}.{encoder.spec.name}": encoder.embed(inputs[side][encoder.spec.name]).numpy()[early]
        for side, tower in (("query", towers.query_tower), ("candidate", towers.candidate_tower))
        for encoder in tower.encoders
    }


def test_the_features_that_are_named_are_those_that_see_what_comes_later(tmp_path: Path) -> None:
    one, other = (vectors(tmp_path / str(end), other_end=end) for end in (False, True))
    changed = {key for key, value in one.items() if np.abs(value - other[key]).max() > 1e-6}
    named = {line.partition(":")[0] for line in look_ahead(recipe().features, timed=True)}
    assert named == changed
    assert {"features.query.earlier", "features.query.past", "features.query.before"} <= one.keys() - changed
    assert look_ahead(recipe().features, timed=False) == []


@pytest.mark.long
def test_check_train_and_report_name_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = prepared(tmp_path, other_end=False)
    config = recipe(taken={"kind": "neighbours", "window": "all"}, before={"kind": "history"})
    shown = check.describe(check.run(config, data.path), data.path)
    lines = look_ahead(config.features, timed=True)
    assert [line.partition(":")[0].rpartition(".")[2] for line in lines] == ["taken", "audience", "nearby"]
    assert [f"# looks ahead: {line}" for line in lines] == [each for each in shown.splitlines() if "ahead" in each]
    assert train.run(config, data.path, tmp_path / "run")["looks_ahead"] == lines
    assert [f"looks ahead: {line}" for line in lines] == [
        each for each in capsys.readouterr().err.splitlines() if "ahead" in each
    ]
    export.run(tmp_path / "run", tmp_path / "bundle")
    assert report.run(tmp_path / "bundle", data.path, tmp_path / "report")["looks_ahead"] == lines
    printed = capsys.readouterr().out
    page, text = ((tmp_path / "report" / f"report.{end}").read_text(encoding="utf-8") for end in ("html", "md"))
    for line in lines:
        assert f"a feature that looks ahead: {line}\n" in printed
        assert f"trained with a feature that looks ahead</strong>: {line}</li>" in unescape(page)
        assert f"- **trained with a feature that looks ahead**: {line}\n" in text


@pytest.mark.parametrize(
    ("split", "window", "message"),
    [
        ("leave_last_out", {}, r"features\.query\.taken\.window: in timed data name .* 'earlier', or 'all'"),
        ("random", {"window": "earlier"}, r"features\.query\.taken\.window: 'earlier' needs the order of the events"),
    ],
)
def test_a_window_that_looks_ahead_is_asked_for_by_name(
    split: str, window: dict[str, str], message: str, tmp_path: Path
) -> None:
    prepared(tmp_path, other_end=False)
    data_config = DataConfig.model_validate({"split": split})
    prepare.run(data_config, tmp_path / "events.csv", tmp_path / "other")
    with pytest.raises(ConfigError, match=message):
        check.run(recipe(taken={"kind": "neighbours", **window}), tmp_path / "other")
