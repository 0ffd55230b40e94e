"""What `towers tune` searches, what it tries next, when it stops a trial, and how it writes a recipe down."""

import math
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from pipelines.tuning.budget import Clock
from pipelines.tuning.finals import Finalist, best_of
from pipelines.tuning.fixed_settings import GIVEN, FixedSettings
from pipelines.tuning.parameters import Choice, Number
from pipelines.tuning.recipe import text
from pipelines.tuning.space import Family, families, sections
from pipelines.tuning.steps import steps
from pipelines.tuning.study import FinishedTrial, Trials
from pipelines.tuning.traits import Traits
from pipelines.tuning.trial import Epoch, Run, Share, _Ended
from towers.config.recipe import parse_config
from towers.errors import ConfigError

AGE = {"kind": "categorical", "column": "age"}
TRAITS = [
    Traits(timed=False, clock=False, items=40_000, density=18.0, query={}, candidate={}),
    Traits(timed=False, clock=False, items=3_000, density=235.0, query={}, candidate={}),
    Traits(timed=True, clock=False, items=50_000, density=5.0, query={}, candidate={}),
    Traits(
        timed=True, clock=True, items=1_700, density=47.0, query={"age": AGE}, candidate={"genre": {"kind": "multi"}}
    ),
]


def run_of(*metrics: float, every: float = 1.0, end: str = "converged") -> Run:
    epochs = (
        Epoch(every * (n + 1), m, train_seconds=0.5, seconds=every, norm_exponent=0.1) for n, m in enumerate(metrics)
    )
    return Run(tuple(epochs), end)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("parameter", "value", "expected"),
    [
        (Number(0.0, 1.0, step=0.3), 0.3, [0.6, 0.0]),
        (Number(0.0, 1.0, step=0.3), 0.9, [1.0, 0.6]),  # up to the bound
        (Number(0.0, 1.0, step=0.3), 1.0, [0.7]),
        (Number(0.001, 0.1, step=2.0, log=True), 0.01, [0.02, 0.005]),
        (Number(0.001, 0.1, step=2.0, log=True), 0.1, [0.05]),
        (Choice((0.0, 0.1, 0.5)), 0.1, [0.5, 0.0]),
        (Choice((False, True)), True, [False]),
    ],
)
def test_neighbours_of_a_value(parameter: Number | Choice, value: Any, expected: list[Any]) -> None:
    assert parameter.neighbours(value) == expected


def test_steps_change_one_setting_and_go_on_in_a_direction_that_was_right() -> None:
    family = Family("f", {"a": Choice((1, 2, 3, 4)), "b": Choice(("x", "y"))}, ())
    best = {"a": 2, "b": "x", "constant": 7}
    assert list(steps(family, best, None)) == [
        ("a", {**best, "a": 3}),
        ("a", {**best, "a": 1}),
        ("b", {**best, "b": "y"}),
    ]
    came_down = list(steps(family, best, {**best, "a": 3}))
    assert came_down[0] == ("a", {**best, "a": 1})
    # A start differs in more than one setting: no direction.
    assert next(steps(family, best, {"a": 3, "b": "y"})) == ("a", {**best, "a": 3})


@pytest.mark.parametrize("traits", TRAITS)
def test_every_start_and_every_step_from_it_is_a_recipe(traits: Traits) -> None:
    found = families(traits)
    assert [each.name for each in found] == ["ids", "graph", "history", *(["sequence"] if traits.timed else [])]
    for family in found:
        assert family.starts
        for start in family.starts:
            assert all(parameter.holds(start[name]) for name, parameter in family.parameters.items())
            for point in [start, *(point for _, point in steps(family, start, None))]:
                config = parse_config(sections(family.name, point, traits))
                assert config.model.temperature == point["temperature"]
                assert ("age" in (config.features.query or {})) == bool(point.get("attributes"))
                assert config.optimizer.learning_rate == point["learning_rate"]
                assert config.train.balance == point["balance"]
                taken = (config.features.query or {}).get("taken")
                assert getattr(taken, "recency", 1) == point.get("neighbours_recency", 1)
                companions = (config.features.candidate or {}).get("companions")
                assert getattr(companions, "weight", 0) == point.get("cooccurrence", 0)
                known = 0 if point["loss"] == "full_softmax" else point["known_positives"]
                assert getattr(config.loss, "known_positives", 0) == known


def test_a_given_recipe_stays_and_takes_its_settings_out_of_the_search() -> None:
    traits = TRAITS[3]
    given = {
        "features": {"query": {"history": {"kind": "history"}}, "candidate": {"item_id": {"kind": "id"}}},
        "loss": {"name": "ccl", "margin": 0.7},
        "model": {"dimension": 32},
        "train": {"batch_size": 512},
    }
    fixed = FixedSettings(parse_config(given))
    (family,) = fixed.families(families(traits))
    assert family.name == GIVEN
    searched = {"learning_rate", "weight_decay", "average", "dropout", "negatives", "recency", "balance"}
    assert set(family.parameters) == searched
    raw = fixed.sections(GIVEN, family.starts[0], traits)
    assert raw["features"] == given["features"]
    assert raw["loss"] == given["loss"]
    assert raw["model"]["dimension"] == 32
    assert "temperature" not in raw["model"]
    assert raw["train"]["batch_size"] == 512
    parse_config(raw)
    full = FixedSettings(parse_config({"loss": {"name": "full_softmax"}}))
    for family in full.families(families(traits)):
        raw = full.sections(family.name, {**family.starts[0], "negatives": 256}, traits)
        assert "sampler" not in raw
        assert "negatives" not in family.parameters
        parse_config(raw)


def test_changes_of_derived_features_stay_as_the_recipe_has_them() -> None:
    given = {"query": {"derive": True, "age": False, "history": {"max_length": 5}}}
    fixed = FixedSettings(parse_config({"features": given}))
    (family,) = fixed.families(families(TRAITS[3]))
    resolved = parse_config(fixed.sections(family.name, family.starts[0], TRAITS[3]))
    assert resolved.features == parse_config({"features": given}).features
    assert resolved.features.changes == {"query": {"age": False, "history": {"max_length": 5}}}


def test_the_median_of_the_trials_before_prunes_at_equal_cost(tmp_path: Path) -> None:
    family = Family("f", {"a": Choice((1, 2, 3, 4, 5))}, ({"a": 1},))
    trials = Trials(tmp_path / "study.db", 0, {"f": family})
    # A share of 8 s is compared at each second. The first trial converged after 2 s and stays at 0.1; the third one's
    # epochs are slow: by 4 s it had 0.3.
    for number, done in enumerate([run_of(0.1, 0.1), run_of(*[0.2] * 8), run_of(0.3, 0.4, every=4.0)], start=1):
        trial, _, point = trials.ask("f", {"a": number}, "start")
        assert point == {"a": number}
        assert not trials.falls_behind(trial, done, share=8.0)  # nothing to compare it with
        assert trials.tell(trial, done, share=8.0).finished
    trial, _, _ = trials.ask("f", {"a": 4}, "start")
    slow = run_of(0.05, 0.05, 0.05, 0.15)
    assert not trials.falls_behind(trial, Run(slow.epochs[:2]), share=8.0)  # too early to tell
    assert trials.falls_behind(trial, slow, share=8.0)  # 0.15 < 0.2, the median of 0.1, 0.2 and 0.3 at 4 s
    ended = trials.tell(trial, Run(slow.epochs, "pruned", "others were better"), share=8.0)
    assert not ended.finished
    trial, _, _ = trials.ask("f", None, "sampled")
    assert not trials.falls_behind(trial, run_of(0.22, 0.22, 0.22, 0.22), share=8.0)
    trials.tell(trial, Run((), "diverged", "why"), share=8.0)
    assert [each.run.value for each in trials.ranked()] == [0.4, 0.2, 0.1]
    assert [each.run.end for each in trials.all()] == ["converged"] * 3 + ["pruned", "diverged"]


def test_a_trial_in_which_the_process_ends_time_and_again_has_failed(tmp_path: Path) -> None:
    family = Family("f", {"a": Choice((1, 2))}, ({"a": 1},))
    asked, _, _ = Trials(tmp_path / "study.db", 0, {"f": family}).ask("f", {"a": 2}, "start")
    trials = Trials(tmp_path / "study.db", 0, {"f": family})
    for _ in range(2):
        again = trials.cut_off()
        assert again is not None
        assert (again[0].number, again[1], again[2]) == (asked.number, "f", {"a": 2})
    assert trials.cut_off() is None
    assert [(each.run.end, each.finished) for each in trials.all()] == [("cut off", False)]


def test_a_training_ends_before_an_epoch_for_which_there_is_no_room(tmp_path: Path) -> None:
    clock = Clock(100.0, tmp_path / "used", time.monotonic())

    def end(run: Run, share: Share) -> str:
        with pytest.raises(_Ended) as ended:
            share.refuse(run)
        return ended.value.end

    Share(10.0, clock).refuse(run_of(0.1, 0.2, every=3.0))  # 6 s, and 3 more
    assert end(run_of(0.1, 0.2, 0.3, every=3.0), Share(10.0, clock)) == "share"
    assert end(run_of(0.1, every=200.0), Share(1_000.0, clock)) == "budget"
    assert end(run_of(0.1), Share(10.0, clock, falls_behind=lambda run: True)) == "pruned"
    Share(10.0, clock).refuse_slow(9.0)
    with pytest.raises(_Ended, match="an epoch takes about 11 s, and there are 10 s for all"):
        Share(10.0, clock).refuse_slow(11.0)


def test_the_clock_counts_the_processes_before(tmp_path: Path) -> None:
    (tmp_path / "used").write_text("40.0")
    clock = Clock(100.0, tmp_path / "used", time.monotonic())
    assert 50 < clock.left() <= 60
    clock.save(now=True)
    assert 40 <= float((tmp_path / "used").read_text()) < 50
    assert math.isinf(Clock(None, tmp_path / "none", 0.0).left())


def test_a_finalist_is_as_good_as_the_mean_of_its_seeds() -> None:
    tried = FinishedTrial(0, "ids", {}, "start", run_of(0.1), finished=True)
    one = Finalist(tried, 0, (run_of(0.1, 0.5, 0.2), run_of(0.3, 0.2, 0.6, 0.9)))
    assert one.curve == pytest.approx([0.2, 0.35, 0.4])
    assert (one.best_epoch, one.value, one.rising) == (3, pytest.approx(0.4), False)
    assert Finalist(tried, 0, (run_of(0.1, 0.2, end="share"),)).rising
    assert not Finalist(tried, 0, (run_of(0.2, 0.1, end="share"),)).rising
    # A falling rate ends where it was to end, better or not.
    falling = Finalist(tried, 3, (run_of(0.1, 0.5, 0.3),))
    assert (falling.best_epoch, falling.value, falling.rising) == (3, 0.3, False)


def test_the_best_finalist_is_better_on_the_seeds_that_others_have_too() -> None:
    def finalist(number: int, *values: float) -> Finalist:
        tried = FinishedTrial(number, "ids", {}, "start", run_of(0.1), finished=True)
        return Finalist(tried, 0, tuple(map(run_of, values)))

    # Trials 1 and 2 got a second seed; for trial 3, which is far better, there was no time left.
    slow, lucky, steady = finalist(3, 0.43), finalist(1, 0.33, 0.25), finalist(2, 0.32, 0.31)
    assert best_of([lucky, slow, steady]) is slow
    assert best_of([lucky, steady]) is steady
    # What was left behind on the first seed stays behind, however unlucky a better one was later.
    assert best_of([finalist(4, 0.318), lucky, steady]) is steady
    assert best_of([]) is None


def test_a_recipes_text_reads_back_as_its_settings() -> None:
    raw = {
        "train": {"epochs": 3, "choose_epoch": False, "metric": "recall@20"},
        "features": {
            "query": {"user_id": {"kind": "id", "mask_share": 0.5}, "größe": {"kind": "text", "column": 'a "b" \\ c'}},
            "candidate": {"item_id": {"kind": "id"}},
        },
        "optimizer": {"learning_rate": 1e-05, "weight_decay": 0.0},
        "sampler": {"name": "mixed", "parts": [{"name": "in_batch"}, {"name": "uniform", "negatives": 64}]},
        "data": {"columns": {"user": "u"}, "refit": True},
    }
    written = text(raw, ["Found by a search. " * 20, "Second."])
    assert tomllib.loads(written) == raw
    assert max(map(len, written.splitlines())) <= 120
    assert [line for line in written.splitlines() if line.startswith("[")] == [
        "[data]",
        "[features.query]",
        "[features.candidate]",
        "[sampler]",
        "[optimizer]",
        "[train]",
    ]


def test_what_cannot_be_fixed_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"train\.choose_epoch"):
        FixedSettings(parse_config({"train": {"choose_epoch": False}}))
    assert FixedSettings(None).raw == {}
