"""What the search tries and what enters the finals: a formula stands in for the training, so nothing is trained."""

import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from math import log
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tensorflow as tf

from pipelines.dataset.dataset import Dataset
from pipelines.tuning import clock, finals, search, study, tune
from pipelines.tuning.training import Epoch, Run, Share
from serving.files.disk_full import DiskFullError
from serving.files.staging import OutputExistsError
from towers.config.recipe import Config, parse_config

TRIALS = 48
TEMPERATURE, BATCH_SIZE = 0.24, 8192  # where the formula has its best


def family_of(config: Config) -> str:
    kinds = {feature.kind for feature in (config.features.query or {}).values()}
    return "graph" if "neighbours" in kinds else "history" if "history" in kinds else "ids"


def quality(config: Config) -> float:
    return (
        0.5
        - 0.1 * abs(log((config.model.temperature or TEMPERATURE) / TEMPERATURE))
        - 0.02 * abs(log(config.train.batch_size / BATCH_SIZE))
    )


@dataclass
class Formula:
    """Trains ten epochs at once, each nearer to the quality along its `curve`; notes what was asked for.

    In place of the module `time`, its seconds are the epochs that it has trained.
    """

    slow: Callable[[Config], bool] = lambda config: False
    late: Callable[[Config], bool] = lambda config: config.loss.name == "bsl"  # its first epoch shows next to nothing
    curve: Callable[[Config], tuple[float, float]] = lambda config: (
        0.5,
        0.02,
    )  # the share of the quality, and its rise
    asked: list[tuple[Config, str, Share, Run]] = field(default_factory=list)
    seconds: float = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def __call__(self, config: Config, data: Dataset, directory: Path, share: Share, before: Run) -> Run:
        self.asked.append((config, directory.name, share, before))
        if self.slow(config):
            return Run(end="too slow", reason="an epoch takes a day")
        run = before
        while run.cost < share.of(1.0):
            number, (share_of_it, rise) = len(run.epochs) + 1, self.curve(config)
            value = quality(config) * min(1.0, share_of_it + rise * number)
            value *= 0.1 if self.late(config) and not run.epochs else 1.0
            own = {"metric": value, "criterion": value, "norm_exponent": 0.01 * number}
            own["prior"] = {"users_alike": False, "now": 0.1 * number, "past": 0.0, "length": 0.0}
            epoch = Epoch(cost=1.0, train_seconds=1.0, seconds=1.0, **own)
            run = Run(epochs=(*run.epochs, epoch), end="share", reason="")
            self.seconds += 1
            if share.behind(Run(epochs=run.epochs), share.of(1.0)):
                return Run(epochs=run.epochs, end="pruned", reason="")
            if len(run.epochs) == config.train.epochs:
                return Run(epochs=run.epochs, end="converged", reason="")
        return run


@dataclass(frozen=True)
class Done:
    """A search with a formula: its trials, what was asked for, the recipe and its comments as one line."""

    rows: list[tune.Row]
    formula: Formula
    recipe: dict[str, Any]
    comments: str


def searched(formula: Formula, dataset: Path, out: Path, *, on_disk: bool = False, **options: Any) -> Done:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "train", formula)
        if not on_disk:
            patch.setattr(study, "_storage", lambda file: "sqlite://")  # in memory, where a commit waits for no disk
        patch.setattr(search, "MOST_REPEATS", 5)
        rows = tune.run(dataset, out, **{"train_minutes": 100.0, **options})
        text = out.read_text(encoding="utf-8")
        comments = " ".join(line[2:] for line in text.splitlines() if line.startswith("# "))
        return Done(rows, formula, tomllib.loads(text), comments)


@pytest.fixture(scope="module")
def done(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Done:
    return searched(Formula(), dataset, tmp_path_factory.mktemp("done") / "r.toml", trials=TRIALS)


@pytest.mark.long
def test_the_search_climbs_to_where_the_formula_is_best(done: Done) -> None:
    assert len(done.rows) == TRIALS
    starts = [row["metric"] for row in done.rows if row["origin"] == "start"]
    best = done.formula.asked[done.rows[0]["trial"]][0]
    assert best.model.temperature == TEMPERATURE
    assert best.train.batch_size > 2048  # no start has a larger one
    assert done.rows[0]["metric"] > max(starts) + 0.02


@pytest.mark.long
def test_the_steps_are_of_the_family_that_promises_most(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "quality", lambda config: 0.5)
    # After ten epochs graph has 0.65 of it, where others have 0.7, and after five 0.475, where they have 0.6.
    slow = Formula(curve=lambda config: (0.3, 0.035) if family_of(config) == "graph" else (0.5, 0.02))
    rows = searched(slow, dataset, tmp_path / "r.toml", trials=12).rows
    assert rows[0]["family"] != "graph"
    steps = {row["trial"]: row["family"] for row in rows if row["origin"] != "start"}
    assert [steps[number] == "graph" for number in sorted(steps)] == [number % 3 > 0 for number in sorted(steps)]


@pytest.mark.long
def test_every_third_trial_is_of_a_family_near_the_best_that_has_cost_the_least(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steep, families = quality, set()
    monkeypatch.setitem(globals(), "quality", lambda config: 0.5 + 0.1 * steep(config))
    done = searched(Formula(), dataset, tmp_path / "r.toml", trials=TRIALS // 2)
    rows = sorted(done.rows, key=lambda row: row["trial"])
    for number in range(sum(row["origin"] == "start" for row in rows), len(rows)):
        best, cost = dict[str, float](), dict[str, int]()  # of equally many epochs: whose value is best promises most
        for row in rows[:number]:
            cost[row["family"]] = cost.get(row["family"], 0) + row["epochs"]
            if row["end"] == "share":
                best[row["family"]] = max(row["metric"], best.get(row["family"], 0.0))
        leader = max(best, key=best.__getitem__)
        near = [name for name, value in best.items() if name != leader and value >= 0.95 * best[leader]]
        family = rows[number]["family"]
        if near and number % 3 == 0:
            assert family in near and cost[family] == min(cost[name] for name in near)
            families.add(family)
        else:
            assert best[family] == best[leader]
    assert len(families) > 1


def test_the_most_promising_trial_of_every_family_continues_in_the_finals(done: Done) -> None:
    longer = [each for each in done.formula.asked[TRIALS:] if each[3].epochs]
    assert {family_of(config) for config, _, _, _ in longer} == {"ids", "graph", "history"}
    # They go on from the epochs that they have, in the directory of their checkpoints, with 2.5 shares of 10.
    assert all(len(before.epochs) >= 10 for _, _, _, before in longer)
    assert {share.most for _, _, share, _ in longer} == {25.0}
    trained = {directory for _, directory, _, _ in done.formula.asked[:TRIALS]}
    assert {directory for _, directory, _, _ in longer} <= trained


def test_the_best_two_are_trained_with_a_falling_rate_for_half_as_long_again(done: Done) -> None:
    falling = {directory: each for each, directory, _, _ in done.formula.asked if each.optimizer.schedule == "cosine"}
    assert len({directory.split("-")[0] for directory in falling}) == len(falling) == 2
    for directory, config in falling.items():
        # The formula rises up to epoch 25, and an epoch costs one: the second best had ten.
        before = [each for each in done.formula.asked if each[0].optimizer.schedule == "constant"]
        longest = max(share.most for other, _, share, _ in before if family_of(other) == family_of(config))
        assert config.train.epochs == int(1.5 * min(longest, 25)), directory


def test_what_validation_chose_for_the_scores_is_in_the_recipe(done: Done) -> None:
    epochs = done.recipe["train"]["epochs"]
    assert done.recipe["model"]["norm_exponent"] == 0.01 * epochs
    assert done.recipe["model"]["prior"] == {"users_alike": False, "now": 0.1 * epochs, "past": 0.0, "length": 0.0}


def test_the_comments_tell_of_no_final_where_the_trial_itself_is_the_best(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finals, "MOST_LONGER", 0)
    monkeypatch.setattr(finals, "FALLING", 0)
    found = searched(Formula(), dataset, tmp_path / "r.toml", trials=8)
    assert "which ran for 10 epochs. It trains" in found.comments


def test_the_comments_tell_the_epochs_of_the_trial_from_those_of_its_final(done: Done) -> None:
    [said] = re.findall(
        r"this is trial (\d+) of family '\w+', which ran for (\d+) epochs; its final(.*?)\. It", done.comments
    )
    number, epochs, final = said
    [row] = [row for row in done.rows if row["trial"] == int(number)]
    assert row["epochs"] == int(epochs), "as in the table"
    longest = max(share.most for _, directory, share, _ in done.formula.asked if directory == f"{int(number):04}")
    assert longest > row["epochs"]
    assert final == f" ran for {longest:g} epochs"


@pytest.mark.long
@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_fixed_epochs_and_a_fixed_schedule_hold_in_the_finals(schedule: str, dataset: Path, tmp_path: Path) -> None:
    config = parse_config({"optimizer": {"schedule": schedule}, "train": {"epochs": 18}})
    found = searched(Formula(), dataset, tmp_path / "r.toml", config=config, trials=8)
    assert len(found.formula.asked) > 8
    assert {each.optimizer.schedule for each, _, _, _ in found.formula.asked} == {schedule}
    assert {each.train.epochs for each, _, _, _ in found.formula.asked} == {18}
    # A rate that falls over fewer epochs was never validated.
    assert found.recipe["train"]["epochs"] == 18
    assert ("choose_epoch" in found.recipe["train"]) == (schedule == "constant")
    free = searched(
        Formula(), dataset, tmp_path / "free.toml", config=parse_config({"train": {"epochs": 18}}), trials=8
    )
    assert {each.optimizer.schedule for each, _, _, _ in free.formula.asked} == {"constant", "cosine"}
    assert max(each.train.epochs for each, _, _, _ in free.formula.asked) == 18


@pytest.mark.long
def test_the_recipe_keeps_what_the_given_one_fixes(dataset: Path, tmp_path: Path) -> None:
    given = {"train": {"patience": 2, "choose_epoch": True, "seed": 7}}
    found = searched(Formula(), dataset, tmp_path / "r.toml", config=parse_config(given), trials=8)
    assert {name: found.recipe["train"][name] for name in given["train"]} == given["train"]
    # A fixed patience might end a training before its rate has fallen.
    assert {each.optimizer.schedule for each, _, _, _ in found.formula.asked} == {"constant"}
    assert {config.train.seed for config, _, _, _ in found.formula.asked} == {7}
    # Without times "timed" means false.
    timed = parse_config({"data": {"refit": "timed"}})
    found = searched(Formula(), dataset, tmp_path / "timed.toml", config=timed, trials=8)
    assert found.recipe["data"]["refit"] is False and "choose_epoch" not in found.recipe["train"]


@pytest.mark.long
def test_a_final_is_trained_only_if_it_fits(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    formula = Formula()
    monkeypatch.setattr(finals, "MOST_LONGER", 0)
    monkeypatch.setattr(finals, "MOST_TRAININGS", 100)
    for module in (clock, tune):
        monkeypatch.setattr(module, "time", formula)
    searched(formula, dataset, tmp_path / "r.toml", budget_minutes=20.0)
    # They took all of the time that a further one would have needed.
    longest = max(config.train.epochs for config, _, _, _ in formula.asked if config.optimizer.schedule == "cosine")
    assert 1200 - longest <= formula.seconds <= 1200


@pytest.mark.long
def test_whole_users_are_found(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.tuning.traits.DENSE", 1)
    by_events = quality
    monkeypatch.setitem(globals(), "quality", lambda config: by_events(config) + config.loss.of_users)
    found = searched(Formula(), dataset, tmp_path / "r.toml", trials=8)
    assert found.recipe["loss"] == {"name": "full_softmax", "per_user": True}
    assert found.recipe["optimizer"]["name"] == "adagrad"


def test_every_setting_moves_up_and_down_before_one_moves_again_or_a_sample_is_tried(done: Done) -> None:
    best = done.rows[0]
    rest = {*json.loads(best["settings"])} - {"temperature", "batch_size"}  # to the formula all are equal
    moved = Counter[str]()
    for row in sorted(done.rows, key=lambda row: row["trial"]):
        if row["family"] == best["family"] and row["origin"] not in ("start", "temperature", "batch_size"):
            moved[row["origin"]] += 1
            assert max(moved.values()) <= 2 or moved.keys() == rest
    assert max(moved.values()) > 2


def test_starts_go_on_while_they_may_catch_up(done: Done) -> None:
    starts = sorted((row for row in done.rows if row["origin"] == "start"), key=lambda row: -row["trial"])
    assert {row["end"] for row in starts} <= {"share", "pruned"}
    assert min(row["epochs"] for row in starts) == 4  # of ten: the third of eight points
    # The first start of a family is never pruned.
    assert set({row["family"]: row["end"] for row in starts}.values()) == {"share"}


def test_a_trial_knows_the_epochs_of_the_best_of_its_family(done: Done) -> None:
    families = set[str]()
    for config, _, share, _ in done.formula.asked[:TRIALS]:
        family = family_of(config)
        assert share.alike == (10 if family in families else 0)
        families.add(family)
    assert families == {"ids", "graph", "history"}


@pytest.mark.long
def test_a_family_that_is_too_slow_comes_back_with_the_largest_batch(dataset: Path, tmp_path: Path) -> None:
    formula = Formula(slow=lambda config: family_of(config) == "graph" and config.train.batch_size < 8192)
    found = searched(formula, dataset, tmp_path / "r.toml", trials=8)
    ends = {(row["family"], row["origin"]): row["end"] for row in found.rows}
    assert ends["graph", "start"] == "too slow"
    assert ends["graph", "larger batch"] == "share"
    assert "graph" in {family_of(config) for config, _, _, before in formula.asked[8:] if before.epochs}


@pytest.mark.long
def test_a_family_with_nothing_new_left_gives_way_to_the_next(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "REPEATS", 2)
    fixed = {
        "loss": {"name": "ccl"},
        "sampler": {"name": "in_batch"},
        "model": {"dimension": 8, "query_dropout": 0.0},
        "optimizer": {"learning_rate": 0.1, "weight_decay": 0.0, "average": 0.0},
        "contrast": {"weight": 0.0},
        "train": {"batch_size": 16, "balance": 0.0, "recency": 1.0},
    }
    formula = Formula(curve=lambda config: (0.9 if family_of(config) == "ids" else 0.3, 0.0))
    rows = searched(formula, dataset, tmp_path / "r.toml", config=parse_config(fixed), trials=40).rows
    tried = Counter(row["family"] for row in rows if row["reason"] != search.REPEAT)
    assert rows[0]["family"] == "ids" and tried["ids"] < 15
    assert len(rows) == 40 and tried["graph"] > 15
    assert Counter(row["reason"] for row in rows)[search.REPEAT] <= 15


def test_a_search_ends_when_nothing_new_is_left(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "REPEATS", 2)  # which are for the others, and there are none
    fixed = {
        "features": {"query": {"user_id": {"kind": "id"}}, "candidate": {"item_id": {"kind": "id"}}},
        "loss": {"name": "ccl"},
        "sampler": {"name": "in_batch"},
        "model": {"dimension": 8, "query_dropout": 0.0},
        "optimizer": {"learning_rate": 0.1, "weight_decay": 0.0},
        "train": {"batch_size": 16, "balance": 0.0},
    }
    rows = searched(Formula(), dataset, tmp_path / "r.toml", config=parse_config(fixed), trials=100).rows
    new = [row for row in rows if row["reason"] != search.REPEAT]
    settings = sorted((json.loads(row["settings"]) for row in new), key=lambda each: each["average"])
    assert settings == [{"average": 0.0}, {"average": 0.99}, {"average": 0.999}]
    assert len(rows) == len(new) + 5


@pytest.mark.long
@pytest.mark.parametrize("step", [(tune, "text"), (pl.DataFrame, "write_csv")], ids=["recipe", "table"])
def test_an_interrupted_write_is_not_in_the_way(
    step: tuple[Any, str], dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, formula = tmp_path / "r.toml", Formula()

    def interrupt(*_: Any, **__: Any) -> bool:
        if len(formula.asked) > 3:
            raise KeyboardInterrupt
        return False

    formula.slow = interrupt
    with monkeypatch.context() as second:
        second.setattr(*step, interrupt)
        with pytest.raises(KeyboardInterrupt):
            searched(formula, dataset, out, trials=8)
    assert len(searched(Formula(), dataset, out, trials=8).rows) == 8
    assert out.with_suffix(".trials.csv").exists()


@pytest.mark.long
@pytest.mark.parametrize("call", [2, 10], ids=["a trial of the second family", "the second that trains longer"])
@pytest.mark.parametrize("full", [False, True], ids=["Ctrl-C", "a full disk"])
def test_a_search_of_several_families_goes_on_where_it_was_stopped(
    call: int, full: bool, dataset: Path, tmp_path: Path
) -> None:
    undisturbed = searched(Formula(), dataset, tmp_path / "undisturbed.toml", trials=8)
    assert undisturbed.formula.asked[call - 1][3].epochs or call == 2
    out, formula = tmp_path / "r.toml", Formula()

    def stopped(config: Config) -> bool:
        if len(formula.asked) == call:
            raise (
                tf.errors.ResourceExhaustedError(None, None, "x: No space left on device")
                if full
                else KeyboardInterrupt
            )
        return False

    for _ in range(study.ATTEMPTS):  # of deaths of the process so many would end the trial
        formula.slow = stopped
        with pytest.raises(DiskFullError if full else KeyboardInterrupt):
            searched(formula, dataset, out, on_disk=True, trials=8)
        formula, call = Formula(), 1
    resumed = searched(Formula(), dataset, out, on_disk=True, trials=8)
    assert (resumed.rows, resumed.recipe) == (undisturbed.rows, undisturbed.recipe)
    assert sorted(row["trial"] for row in resumed.rows) == list(range(8))


@pytest.mark.long
def test_the_last_trial_goes_on_in_the_time_of_the_finals_if_it_was_stopped(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    formula, out = Formula(), tmp_path / "r.toml"
    budget = 1200.0
    kept = search.FINALS * budget / search.SHARES

    def stopped(config: Config) -> bool:
        if budget - formula.seconds < kept + budget / search.SHARES:  # no trial begins after this one
            formula.seconds += budget / search.SHARES
            raise KeyboardInterrupt
        return False

    formula.slow = stopped
    with pytest.raises(KeyboardInterrupt):
        for module in (clock, tune):
            monkeypatch.setattr(module, "time", formula)
        searched(formula, dataset, out, on_disk=True, budget_minutes=20.0)
    number = len(formula.asked) - 1
    resumed = Formula()
    for module in (clock, tune):
        monkeypatch.setattr(module, "time", resumed)
    rows = searched(resumed, dataset, out, on_disk=True, budget_minutes=20.0).rows
    assert resumed.asked[0][1] == formula.asked[-1][1]
    assert [row["end"] for row in rows if row["trial"] == number] == ["share"]


def test_on_a_full_disk_the_search_stays(dataset: Path, tmp_path: Path) -> None:
    def full(config: Config) -> bool:
        raise tf.errors.ResourceExhaustedError(None, None, "trials/0003/x: No space left on device")

    with pytest.raises(DiskFullError, match=f"{tmp_path / 'r.toml'}: No space left on device"):
        searched(Formula(slow=full), dataset, tmp_path / "r.toml", trials=8)
    assert (tmp_path / ".r.toml.unfinished" / "trials").is_dir()


@pytest.mark.long
def test_a_recipe_or_table_of_other_hands_is_never_replaced(dataset: Path, tmp_path: Path) -> None:
    out, table = tmp_path / "r.toml", tmp_path / "r.trials.csv"
    for path in (out, table):
        path.write_text("[train]\nepochs = 3\n")
        with pytest.raises(OutputExistsError, match=f"{path} is another kind of file"):
            searched(Formula(), dataset, out, trials=3, overwrite=True)
        assert path.read_text() == "[train]\nepochs = 3\n"
        path.unlink()
    for _ in range(2):
        assert len(searched(Formula(), dataset, out, trials=3, overwrite=True).rows) == 3
