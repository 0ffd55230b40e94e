"""`towers tune`: a recipe found by validation alone, within its budget, however often the search is cut off."""

import itertools
import json
import re
import shutil
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import Mock

import numpy as np
import polars as pl
import pytest

from pipelines.dataset.dataset import Dataset
from pipelines.errors import DataError
from pipelines.ingest import prepare
from pipelines.training import check, train
from pipelines.tuning import clock, search, training, tune
from pipelines.tuning.space import Family, families
from pipelines.tuning.study import ATTEMPTS
from pipelines.tuning.training import Epoch, Run
from serving.files.staging import OutputExistsError
from tests.support.paths import PROCESSES, ROOT
from tests.support.processes.tuned_run import FIXED, METRIC, SEED, shorten
from towers.config.recipe import load_config, parse_config
from towers.config.sections import DataConfig
from towers.errors import ConfigError

pytestmark = pytest.mark.long  # whole searches, over a minute in all

TRIALS = 5
EPOCH = Epoch(cost=1.0, metric=0.1, criterion=0.1, train_seconds=1.0, seconds=1.0, norm_exponent=0.0)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch.setattr)


class Tuned(NamedTuple):
    """An undisturbed search: its recipe, its trials, and how many trainings it took."""

    out: Path
    rows: list[tune.Row]
    trainings: int


@pytest.fixture(scope="module")
def tuned(dataset: Path) -> Iterator[Tuned]:
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch.setattr)
        trained = Mock(side_effect=search.train)
        patch.setattr(search, "train", trained)
        out = dataset.parent / "tuned.toml"
        rows = tuned_to(dataset, out)
        yield Tuned(out, rows, trained.call_count)


def tuned_to(dataset: Path, out: Path, **options: Any) -> list[tune.Row]:
    given = {"config": parse_config(FIXED), "trials": TRIALS, "metric": METRIC, "seed": SEED} | options
    return tune.run(dataset, out, **given)


def settings(recipe: Path) -> dict[str, Any]:
    return tomllib.loads(recipe.read_text(encoding="utf-8"))


def without(family: Family, name: str) -> Family:
    return replace(family, settings={key: value for key, value in family.settings.items() if key != name})


def without_times(rows: list[tune.Row]) -> list[tune.Row]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def test_the_recipe_is_better_than_chance_fits_the_data_and_trains(dataset: Path, tuned: Tuned, tmp_path: Path) -> None:
    out, rows, _ = tuned
    # A user has about 5 items of the 30 in training; 5 of the other 25 at random find a fifth.
    assert len(rows) == TRIALS
    assert rows[0]["metric"] > 0.4
    assert [row["metric"] for row in rows] == sorted((row["metric"] for row in rows), reverse=True)
    raw = settings(out)
    # What was given stays; a random split's validation events train in the end.
    assert (raw["features"], raw["model"]["dimension"], raw["train"]["batch_size"]) == (FIXED["features"], 8, 16)
    assert raw["data"] == {"split": "random", "valid_share": 0.2, "test_share": 0.2, "refit": True}
    config = check.run(load_config(out), dataset)
    assert not config.train.choose_epoch
    summary = train.run(load_config(out), dataset, tmp_path / "run")
    assert [(each["stage"], each["epochs"]) for each in summary["stages"]] == [("refit", raw["train"]["epochs"])]
    assert summary["stages"][0]["examples"] == sum(Dataset.open(dataset).manifest.events[s] for s in ("train", "valid"))
    assert "validation events alone" in out.read_text(encoding="utf-8")
    assert pl.read_csv(out.with_suffix(".trials.csv")).height == TRIALS
    assert f"{rows[0]['metric']:.4f}" in tune.describe(rows).splitlines()[1]
    assert not list(out.parent.glob(".tuned*"))


def searching(dataset: Path, out: Path, kill_at: int = 0) -> subprocess.CompletedProcess[str]:
    """A search in a process of its own, killed in a training."""
    words = [sys.executable, str(PROCESSES / "tuned_run.py"), str(dataset), str(out), str(TRIALS)]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    killed = [str(kill_at)] if kill_at else []
    return subprocess.run([*words, *killed], capture_output=True, text=True, check=False, env=environment)


def test_a_killed_search_goes_on_and_ends_as_an_undisturbed_one(dataset: Path, tuned: Tuned, tmp_path: Path) -> None:
    out = tmp_path / "r.toml"
    assert searching(dataset, out, 3).returncode == -9
    assert not out.exists()
    killed_again = searching(dataset, out, 4)  # in the first of the finals
    assert killed_again.returncode == -9
    # The two finished trials are kept, the third goes on from its checkpoint.
    trials = [line.split()[1] for line in killed_again.stderr.splitlines() if line.startswith("trial ")]
    assert trials == ["2", "3", "4"]
    assert searching(dataset, out, tuned.trainings - TRIALS).returncode == -9
    again = searching(dataset, out)
    assert again.returncode == 0, again.stderr[-2000:]
    assert "continuing the unfinished search" in again.stderr
    # All that is left is the last training with a falling rate, in which it was killed again.
    assert not [line for line in again.stderr.splitlines() if line.startswith("trial ")]
    [last] = [line for line in again.stderr.splitlines() if line.startswith("final: ")]
    assert "rate falling over" in last
    assert settings(out) == settings(tuned.out)
    kept = pl.read_csv(out.with_suffix(".trials.csv")).drop("seconds")
    assert kept.equals(pl.read_csv(tuned.out.with_suffix(".trials.csv")).drop("seconds"))


def test_a_final_that_kills_the_process_is_given_up(dataset: Path, tuned: Tuned, tmp_path: Path) -> None:
    out = tmp_path / "r.toml"
    for kill_at in (tuned.trainings, 1, 1):  # of the second and the third process it is the first training
        assert searching(dataset, out, kill_at).returncode == -9
    last = searching(dataset, out)
    assert last.returncode == 0, last.stderr[-2000:]
    assert not [line for line in last.stderr.splitlines() if line.startswith("final: ")]
    check.run(load_config(out), dataset)
    assert pl.read_csv(out.with_suffix(".trials.csv")).height == TRIALS


def test_other_test_events_give_the_same_recipe(dataset: Path, tuned: Tuned, tmp_path: Path) -> None:
    other = tmp_path / "dataset"
    shutil.copytree(dataset, other)
    data = Dataset.open(dataset)
    taken = {(u, i) for s in ("train", "valid") for u, i in zip(data.events(s).user, data.events(s).item, strict=True)}
    items = np.array(data.events("test").item)
    for place, user in enumerate(data.events("test").user):
        items[place] = next(i for i in range(data.manifest.items) if (user, i) not in taken)
        taken.add((user, items[place]))
    assert (items != data.events("test").item).mean() > 0.8
    np.save(other / "test" / "item.npy", items)
    manifest = json.loads((other / "dataset.json").read_text())
    manifest["files"]["test/item.npy"]["sha256"] = sha256((other / "test" / "item.npy").read_bytes()).hexdigest()
    (other / "dataset.json").write_text(json.dumps(manifest))
    rows = tuned_to(other, tmp_path / "r.toml")
    assert settings(tmp_path / "r.toml") == settings(tuned[0])
    assert without_times(rows) == without_times(tuned[1])


def test_ctrl_c_writes_the_best_so_far_and_the_same_command_goes_on(
    dataset: Path, tuned: Tuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, calls, trained = tmp_path / "r.toml", itertools.count(1), search.train

    def interrupted(*args: Any) -> Any:
        if 3 <= next(calls) < 3 + ATTEMPTS:
            raise KeyboardInterrupt
        return trained(*args)

    monkeypatch.setattr(search, "train", interrupted)
    for _ in range(ATTEMPTS):  # of deaths of the process so many would end the trial
        with pytest.raises(KeyboardInterrupt):
            tuned_to(dataset, out)
    check.run(load_config(out), dataset)
    table = out.with_suffix(".trials.csv")
    assert pl.read_csv(table).height == 2
    kept = table.read_bytes()
    table.write_bytes(kept + b"by hand")
    with pytest.raises(OutputExistsError, match=rf"{table.name} already exists"):
        tuned_to(dataset, out)
    table.write_bytes(kept)
    out.unlink()  # the table alone is the search's own, too
    key = (tmp_path / ".r.toml.unfinished" / "key").read_text()
    for other in ({"seed": 4}, {"metric": "recall@3"}, {"trials": 9}, {"budget_minutes": 5.0}, {"config": None}):
        with pytest.raises(DataError, match=r"another data set or other settings is in the way.*--fresh"):
            tuned_to(dataset, out, **other)
    with monkeypatch.context() as older:  # a version that searched less
        older.setattr(tune, "families", lambda *given: [without(each, "balance") for each in families(*given)])
        with pytest.raises(DataError, match=r"other settings is in the way.*--fresh"):
            tuned_to(dataset, out)
    with pytest.raises(OutputExistsError):  # a fresh search has not written what lies there
        tuned_to(dataset, out, resume=False)
    (tmp_path / ".r.toml.unfinished" / "key").write_bytes(b"\xff")
    with pytest.raises(DataError, match=r"other settings is in the way.*--fresh"):
        tuned_to(dataset, out)
    (tmp_path / ".r.toml.unfinished" / "key").write_text(key)
    assert without_times(tuned_to(dataset, out)) == without_times(tuned[1])
    assert settings(out) == settings(tuned[0])
    with pytest.raises(OutputExistsError):
        tuned_to(dataset, out)


@pytest.mark.parametrize("end", [None, KeyboardInterrupt])
def test_what_somebody_put_in_its_place_is_kept(
    dataset: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    end: type[BaseException] | None,
) -> None:
    """RECIPE need not end in ``.toml``."""
    out, trained = tmp_path / "tuned-0.5", search.train

    def disturbed(*args: Any) -> Any:
        run = trained(*args)
        if out.exists() and end is not None:
            raise end
        out.write_text("by hand")
        return run

    monkeypatch.setattr(search, "train", disturbed)
    taken = r"tuned-0\.5 already exists"
    with pytest.raises(end or OutputExistsError, match=None if end else taken):
        tuned_to(dataset, out, trials=2)
    assert not end or re.search(f"the best recipe so far is not written: .*{taken}", capsys.readouterr().err)
    assert out.read_text() == "by hand"
    out.unlink()
    monkeypatch.setattr(search, "train", trained)
    tuned_to(dataset, out, trials=2)
    assert {each.name for each in tmp_path.iterdir()} == {"tuned-0.5", "tuned-0.5.trials.csv"}


@pytest.mark.parametrize("damage", ["cut", "zeros", "other bytes"])
def test_a_damaged_study_names_the_way_out(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    with monkeypatch.context() as interrupted, pytest.raises(KeyboardInterrupt):
        interrupted.setattr(search, "train", Mock(side_effect=KeyboardInterrupt))
        tuned_to(dataset, tmp_path / "r.toml")
    study = tmp_path / ".r.toml.unfinished" / "study.db"
    content = study.read_bytes()
    spoilt = {
        "cut": content[:50_000],
        "zeros": content[:20_480] + bytes(20_480) + content[40_960:],
        "other bytes": bytes(range(256)) * 400,
    }
    study.write_bytes(spoilt[damage])
    with pytest.raises(DataError, match=rf"{study}: damaged \(.*\); discard the search with --fresh"):
        tuned_to(dataset, tmp_path / "r.toml")
    # What another program holds is not damaged.
    study.write_bytes(content)
    with closing(sqlite3.connect(study)) as other, pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("BEGIN EXCLUSIVE")
        tuned_to(dataset, tmp_path / "r.toml")
    assert tuned_to(dataset, tmp_path / "r.toml", resume=False, trials=1)


def test_a_used_up_budget_ends_search_and_finals(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock of its own: every look at it takes a twentieth of a second."""
    ticks = itertools.count()
    ours = SimpleNamespace(monotonic=lambda: next(ticks) / 20)
    for module in (clock, training, tune):
        monkeypatch.setattr(module, "time", ours)
    made: list[clock.Clock] = []

    class Watched(clock.Clock):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(search, "Clock", Watched)
    rows = tuned_to(dataset, tmp_path / "r.toml", trials=None, budget_minutes=2.0)
    assert 60 < made[0].used() < 1.03 * 120
    assert len(rows) > 1


@pytest.mark.parametrize(
    ("minutes", "end", "advice"),
    [
        ({"budget_minutes": 600.0}, "too slow", "; give a larger --train-minutes"),
        ({"budget_minutes": 60.0, "train_minutes": 600.0}, "too slow", "; give a larger --budget-minutes"),
        ({"budget_minutes": 600.0}, "budget", "; give a larger --budget-minutes"),
        ({"budget_minutes": 600.0}, "diverged", ""),
        ({"budget_minutes": None}, "diverged", ""),
    ],
)
def test_a_search_that_finds_nothing_advises_what_would_help(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: dict[str, Any], end: Any, advice: str
) -> None:
    monkeypatch.setattr(search, "train", lambda *_: Run(end=end, reason="why"))
    with pytest.raises(DataError, match=rf"no trial finished: {end} \(why\){advice}$"):
        tuned_to(dataset, tmp_path / "r.toml", trials=2, **minutes)


def test_a_large_seed_samples_too(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "train", lambda *_: Run(epochs=(EPOCH,), end="share"))
    for seed in (123_456, 2**31 - 1):
        assert len(tuned_to(dataset, tmp_path / f"{seed}.toml", trials=9, seed=seed)) == 9


def test_damaged_events_are_told_before_they_are_read(dataset: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(dataset, tmp_path / "copy"))
    np.save(copy / "train" / "user.npy", -np.load(copy / "train" / "user.npy"))
    with pytest.raises(DataError, match=r"user\.npy"):
        tuned_to(copy, tmp_path / "r.toml")


def test_a_search_in_which_every_trial_diverges_says_so(dataset: Path, tmp_path: Path) -> None:
    config = parse_config(FIXED | {"optimizer": {"name": "sgd", "learning_rate": 1e38}})
    with pytest.raises(DataError, match=r"no trial finished.*diverged \(.*epoch 1"):
        tuned_to(dataset, tmp_path / "r.toml", config=config, trials=2)
    assert not (tmp_path / "r.toml").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "recall"}, r"--metric, --seed: train\.metric.*got 'recall'"),
        ({"metric": "precision@5"}, r"train\.metric: precision@5 is a metric of task = 'similarity'"),
        ({"seed": -1}, r"--metric, --seed: train\.seed"),
        ({"train_minutes": float("inf")}, "--train-minutes: must be a finite number; got inf"),
        ({"budget_minutes": float("nan")}, "--budget-minutes: must be a finite number; got nan"),
        ({"config": parse_config({"train": {"choose_epoch": False}})}, r"train\.choose_epoch: .*leave it out"),
        ({"config": parse_config({"optimizer": {"schedule": "cosine"}})}, r"optimizer\.schedule: .*train\.epochs"),
        (
            {
                "config": parse_config(
                    {"task": "similarity", "similarity": {"column": "c"}, "loss": {"name": "full_softmax"}}
                )
            },
            r"task: tune searches recipes of task = 'retrieval'; got 'similarity'",
        ),
        (
            {
                "config": parse_config(
                    FIXED
                    | {
                        "loss": {"name": "ccl"},
                        "sampler": {"name": "in_batch"},
                        "model": {"query_dropout": 0.0},
                        "optimizer": {"learning_rate": 0.1, "weight_decay": 0.0, "average": 0.0},
                        "train": FIXED["train"] | {"balance": 0.0},
                    }
                )
            },
            "fixes every setting that tune searches",
        ),
        ({"config": parse_config({"data": {"min_item_events": 2}})}, r"data\.min_item_events: the recipe says 2"),
        ({"dimensions": (0,)}, r"--dimension: model\.dimension.*greater than or equal to 1"),
        (
            {"without_starts": ("ml-10m",)},
            r"--without-starts: no start .* 'ml-10m'; allowed: gowalla, ml-1m, ml-100k, b",
        ),
        ({"dimensions": (8, 16)}, r"--dimension: the recipe of --config fixes model\.dimension"),
    ],
)
def test_what_cannot_be_searched_is_refused(
    options: dict[str, Any], message: str, dataset: Path, tmp_path: Path
) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        tuned_to(dataset, tmp_path / "r.toml", **options)
    assert not (tmp_path / "r.toml").exists()


def test_without_validation_events_there_is_nothing_to_go_by(dataset: Path, tmp_path: Path) -> None:
    prepare.run(
        DataConfig(split="random", valid_share=0.0), dataset.parent / "events.txt", tmp_path / "d", format="pairs"
    )
    with pytest.raises(DataError, match="no validation targets"):
        tuned_to(tmp_path / "d", tmp_path / "r.toml")
