"""`towers check` refuses with the same words whatever `towers train` would refuse before its first step."""

import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipelines.dataset.dataset import Dataset
from pipelines.errors import DataError
from pipelines.ingest import prepare
from pipelines.training import check, train
from pipelines.tuning import search, tune
from pipelines.tuning.training import Run
from towers.config.recipe import Config, parse_config
from towers.config.sections import DataConfig
from towers.errors import ConfigError

ITEM = {"item_id": {"kind": "id"}}
USER = {"user_id": {"kind": "id"}}
BOUND = "towers.features.neighbours.MOST_PAIRS"
EASE = "pipelines.training.check.MAX_ITEMS"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`many` has seven events of each of 20 users; in `single` each trains on one, so nothing has a past."""
    folder = tmp_path_factory.mktemp("world")
    for name, each in (("many", 7), ("single", 3)):
        rows = [(f"u{u}", f"i{(u + n) % 9}", 1_700_000_000 + 60 * n + u) for u in range(20) for n in range(each)]
        frame = pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")
        frame.write_parquet(folder / f"{name}.parquet")
        prepare.run(DataConfig(split="leave_last_out"), folder / f"{name}.parquet", folder / name)
    return folder


def recipe(query: dict[str, Any], **sections: Any) -> Config:
    train_section = {"epochs": 1, "batch_size": 16, **sections.pop("train", {})}
    features = {"query": query, "candidate": ITEM}
    return parse_config({"features": features, "model": {"dimension": 4}, "train": train_section, **sections})


HISTORY, GRAPH = {"history": {"kind": "history"}}, {"taken": {"kind": "neighbours", "window": "all"}}
DISTINCT = {"name": "uniform", "negatives": 4096, "distinct": True}
SEQUENCE = {"past": {"kind": "sequence", "max_length": 4}}
REFUSED: dict[str, tuple[str, Config, str]] = {
    "XLA and lists": ("many", recipe(USER | HISTORY, train={"jit_compile": True}), "train.jit_compile: how many rows"),
    "XLA and a graph": ("many", recipe(USER | GRAPH, train={"jit_compile": True}), "train.jit_compile: XLA cannot"),
    "a graph beyond its bound": ("many", recipe(USER | GRAPH), "'taken' of kind 'neighbours' pools .* at most 99, got"),
    "a metric of every item": (
        "many",
        recipe(USER, train={"metric": "recall@9"}),
        "train.metric: recall@9 takes each of the data set's 9 items as found, whatever the model; take a K below "
        "that, or more items",
    ),
    "EASE of too many items": (
        "many",
        recipe(USER, distillation={"ease": 1.0}),
        "distillation.ease: EASE takes at most 8 items that train; got 9; set it to 0",
    ),
    "no past": ("single", recipe(SEQUENCE), r"features\.query: no training event has an earlier one of its user"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_check_refuses_what_train_refuses(
    world: Path, tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, config, message = REFUSED[case]
    monkeypatch.setattr(BOUND, 99 if "bound" in case else 10**6)
    monkeypatch.setattr(EASE, 8)
    with pytest.raises((ConfigError, DataError), match=message) as checked:
        check.run(config, world / name)
    with pytest.raises(type(checked.value)) as trained:
        train.run(config, world / name, tmp_path / "run")
    # XLA numbers the functions of a process.
    first, second = (re.sub(r"_\d+", "", str(each.value)) for each in (checked, trained))
    assert first == second


def test_a_metric_of_all_items_but_one_is_checked_and_the_default_is_not(world: Path) -> None:
    check.run(recipe(USER, train={"metric": "recall@8"}), world / "many")
    check.run(recipe(USER), world / "many")
    check.run(recipe(USER, train={"metric": "recall@20"}), world / "many")  # as in the recipe that a run writes


def test_tune_refuses_a_metric_of_every_item_before_the_first_trial(world: Path, tmp_path: Path) -> None:
    for given in ({"metric": "ndcg@9"}, {"config": recipe(USER, train={"metric": "ndcg@9"})}):
        with pytest.raises(ConfigError, match=r"train\.metric: ndcg@9 takes each of the data set's 9 items"):
            tune.run(world / "many", tmp_path / "best.toml", trials=1, **given)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("single", recipe(SEQUENCE), r"features\.query: no training event has an earlier one of its user.*"),
        (
            "many",
            recipe(USER, loss={"name": "sampled_softmax"}, sampler=DISTINCT),
            r"sampler\.negatives = 4096 with distinct = true: only 9 items.*",
        ),
    ],
)
def test_a_recipe_that_no_budget_trains_is_refused_trial_by_trial(
    world: Path, tmp_path: Path, name: str, config: Config, message: str
) -> None:
    """The next trial follows each of them, and what is told in the end asks for no larger budget."""
    with pytest.raises(ConfigError, match=rf"^no trial finished: refused \({message}\)$"):
        tune.run(world / name, tmp_path / "best.toml", budget_minutes=1.0, trials=2, metric="recall@5", config=config)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("budget", "end", "remedy"),
    [(None, "diverged", ""), (1.0, "diverged", ""), (1.0, "too slow", "; give a larger --budget-minutes")],
)
def test_a_larger_budget_is_the_remedy_where_a_trial_was_too_slow(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: float | None, end: Any, remedy: str
) -> None:
    trials = iter([ConfigError("no past"), Run(end=end, reason="epoch 1")])

    def ended(*_: Any) -> Run:
        each = next(trials)
        if isinstance(each, ConfigError):
            raise each
        return each

    monkeypatch.setattr(search, "train", ended)
    told = "; ".join(sorted([f"{end} (epoch 1)", "refused (no past)"]))
    message = re.escape(f"no trial finished: {told}{remedy}")
    with pytest.raises(DataError, match=f"^{message}$"):
        tune.run(world / "many", tmp_path / "best.toml", budget_minutes=budget, trials=2, metric="recall@5")


def test_a_larger_budget_is_the_remedy_where_it_was_too_small_for_a_trial(world: Path, tmp_path: Path) -> None:
    message = "no trial finished: there was no time for one; give a larger --budget-minutes"
    with pytest.raises(DataError, match=f"^{message}$"):
        tune.run(world / "many", tmp_path / "best.toml", budget_minutes=1e-9, metric="recall@5")


def test_a_recipe_may_leave_the_validation_to_prepare(tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    for name, times in (("train", range(9)), ("test", range(9, 11))):
        rows = "".join(f"u,i{time},{time}\n" for time in times)
        (tmp_path / "given" / f"{name}.csv").write_text(f"user,item,time\n{rows}")
    config = recipe(USER, data={"validation": "auto"})
    prepare.run(config.data, tmp_path / "given", tmp_path / "data")
    data = Dataset.open(tmp_path / "data")
    assert data.manifest.config.validation == "last"
    check.check_recipe(config, data)
    with pytest.raises(ConfigError, match=r"data\.validation: the recipe says 'random', but .* prepared with 'last'"):
        check.check_recipe(recipe(USER, data={"validation": "random"}), data)


@pytest.mark.parametrize("refused", [{"norm_exponent": "validation"}, {"prior": "validation"}, {}])
def test_validation_events_that_are_all_repeats_choose_nothing(tmp_path: Path, refused: dict[str, Any]) -> None:
    """Each user takes the same three items again and again."""
    rows = [(f"u{u}", f"i{(u + n % 3) % 9}", 60 * n + u) for u in range(20) for n in range(12)]
    pl.DataFrame(rows, schema=["user", "item", "time"], orient="row").write_parquet(tmp_path / "e.parquet")
    data = DataConfig(duplicates="keep", valid_share=0.2, test_share=0.2)
    prepare.run(data, tmp_path / "e.parquet", tmp_path / "repeats")
    assert Dataset.open(tmp_path / "repeats").manifest.events["valid"] > 0
    config = recipe(USER, model={"dimension": 4, **refused}, data={"duplicates": "keep"})
    if refused:
        ((key, _),) = refused.items()
        given = {"norm_exponent": "a number: --set model.norm_exponent=1", "prior": "weights, or 'off'"}[key]
        told = f"model.{key}: the data set has no validation targets to choose it on; give {given}"
        with pytest.raises(ConfigError, match=f"^{re.escape(told)}$"):
            check.check_recipe(config, Dataset.open(tmp_path / "repeats"))
    else:
        check.check_recipe(config, Dataset.open(tmp_path / "repeats"))


def test_the_last_stage_is_checked_before_the_first_trains(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = Dataset.open(world / "many").manifest.events
    monkeypatch.setattr(BOUND, events["train"])
    check.run(recipe(USER | GRAPH), world / "many")
    with pytest.raises(ConfigError, match=f"at most {events['train']}, got {events['train'] + events['valid']}"):
        check.run(recipe(USER | GRAPH, data={"refit": True}), world / "many")


def test_a_rate_that_rises_longer_than_the_training_is_told(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_events = Dataset.open(world / "many").manifest.events["train"]
    for epochs, warned in ((2, True), (3, False)):
        schedule = {"name": "adam", "warmup_steps": 2}
        check.run(
            recipe(USER, optimizer=schedule, train={"epochs": epochs, "batch_size": train_events}), world / "many"
        )
        told = "warning: optimizer.warmup_steps = 2: train ends below learning_rate, in 2 steps"
        assert (told in capsys.readouterr().err) == warned


def test_distinct_negatives_are_as_many_as_the_items_of_the_stages_that_train(tmp_path: Path) -> None:
    """Nine items train, a tenth one validates: without a stage for `train` alone both are drawn."""
    rows = [(f"u{u}", f"i{9 if (u, n) == (0, 5) else (u + n) % 9}", 60 * n + u) for u in range(20) for n in range(7)]
    pl.DataFrame(rows, schema=["user", "item", "time"], orient="row").write_parquet(tmp_path / "e.parquet")
    prepare.run(DataConfig(split="leave_last_out"), tmp_path / "e.parquet", tmp_path / "ten")
    ten = {"sampler": {"name": "uniform", "negatives": 10, "distinct": True}}
    check.run(recipe(USER, data={"refit": True}, train={"choose_epoch": False}, **ten), tmp_path / "ten")
    for refit in (True, False):
        with pytest.raises(ConfigError, match=r"sampler\.negatives = 10 with distinct = true: only 9 items"):
            check.run(recipe(USER, data={"refit": refit}, **ten), tmp_path / "ten")


def test_a_recipe_that_trains_passes_and_leaves_nothing(
    world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = world / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    before = {path.name for path in world.iterdir()} | {".many.digests"}
    config = check.run(recipe(USER | HISTORY, data={"refit": True}), world / "many")
    head, *lines = capsys.readouterr().err.splitlines()
    assert head == "check: verify, recipe, leaks, features"
    assert [line.partition(":")[0] for line in lines] == ["verify", "recipe", "leaks", "features"]
    assert lines[-1].startswith("features: 6 features in ")  # of users two and of items one, in two stages
    assert check.run(config, world / "many") == config
    assert list(folder.iterdir()) == [] and {path.name for path in world.iterdir()} == before
