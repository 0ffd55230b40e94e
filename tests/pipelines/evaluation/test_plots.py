"""Plots as texts: what axes and legends say, and that names from the data are only text."""

import re
import warnings
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes

from pipelines.evaluation import plots

HISTORY = [
    {"epoch": 1.0, "loss": 2.0, "recall@20": 0.1, "train_seconds": 60.0, "validation_seconds": 30.0},
    {"epoch": 2.0, "loss": 1.0, "recall@20": 0.2, "train_seconds": 90.0, "validation_seconds": 30.0},
]


def texts(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def test_training_is_drawn_over_minutes_with_the_chosen_epoch() -> None:
    assert plots.minutes_of(HISTORY) == [1.5, 3.5]
    shown = texts(plots.training_curves(HISTORY, "recall@20", 2))
    assert {"minutes", "epoch", "1", "2", "loss (left)", "recall@20 (right)", "epoch 2 was chosen"} <= {*shown}


def test_a_stage_without_validation_has_no_metric_and_no_choice() -> None:
    shown = texts(plots.training_curves([{"epoch": 1.0, "loss": 2.0, "train_seconds": 6.0}], "", 1))
    assert "minutes" in shown and not [each for each in shown if "right" in each or "chosen" in each]


def test_a_run_without_times_is_drawn_over_epochs() -> None:
    old = [{"epoch": each["epoch"], "loss": each["loss"]} for each in HISTORY]
    assert plots.minutes_of(old) is None
    assert "minutes" not in texts(plots.training_curves(old, "", 2))


def test_bounds_that_rounding_puts_beside_equal_figures_are_drawn() -> None:
    value = 0.1
    beside = {"value": value, "low": np.nextafter(value, 1), "high": np.nextafter(value, 0)}
    for drawn in (
        plots.recall_over_k([5, 10], {"model": [beside, beside]}),
        plots.by_slice(["one", "other"], {"model": [beside, beside]}, "recall@20"),
        plots.by_slice(["one", "other"], {"": [beside, beside]}, "recall@20", difference=True),
    ):
        assert texts(drawn)


@pytest.mark.parametrize("name", ["$5 to $9", "$^$", "<b>"])
def test_names_with_dollar_signs_are_no_formulas(name: str) -> None:
    estimate = {"value": 0.5, "low": 0.4, "high": 0.6}
    shown = texts(plots.by_slice([name, "other"], {"model": [estimate, estimate]}, "recall@20"))
    assert name.replace("<", "&lt;").replace(">", "&gt;") in shown


def test_a_name_that_matplotlibs_font_lacks_is_text_of_the_page_and_no_warning() -> None:
    estimate = {"value": 0.5, "low": 0.4, "high": 0.6}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shown = texts(plots.by_slice(["スポーツ", "other"], {"model": [estimate, estimate]}, "recall@20"))
    assert "スポーツ" in shown


def test_log_scales_have_plain_numbers() -> None:
    popularity = np.arange(1_000)[::-1]
    assert {"0.001", "0.01", "0.1", "1"} <= {*texts(plots.popularity_curves(popularity, {"model": popularity}))}


@pytest.mark.parametrize(
    ("ks", "named"),
    [
        ([10, 20, 50, 100], ["10", "20", "50", "100"]),
        # Each is at most the next over 1.2957, the tenth root of 40 / 3: a tenth of the axis.
        ([*range(3, 41)], ["3", "5", "7", "10", "13", "17", "23", "30", "40"]),
        ([7], ["7"]),
    ],
)
def test_labels_of_many_ks_do_not_overlap(ks: list[int], named: list[str]) -> None:
    estimate = {"value": 0.45, "low": 0.4, "high": 0.5}
    shown = texts(plots.recall_over_k(ks, {"model": [estimate] * len(ks)}))
    assert [each for each in shown if each.isdecimal()] == named


def test_each_of_many_rankers_has_a_curve_of_a_look_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    original, looks = Axes.errorbar, set[tuple[str, str]]()

    def errorbar(axes: Axes, *given: Any, **options: Any) -> Any:
        looks.add((options["color"], options["marker"]))
        return original(axes, *given, **options)

    monkeypatch.setattr(Axes, "errorbar", errorbar)
    estimate = {"value": 0.45, "low": 0.4, "high": 0.5}
    names = [f"ranker {place}" for place in range(9)]
    shown = texts(plots.recall_over_k([10, 20], {name: [estimate, estimate] for name in names}))
    assert {*names} <= {*shown} and len(looks) == 9


def test_two_plots_share_no_id_of_a_group() -> None:
    estimate = {"value": 0.5, "low": 0.4, "high": 0.6}
    svg = plots.recall_over_k([10, 20], {"model": [estimate, estimate]})
    named = re.findall(r'id="([^"]*)"', svg)
    assert named and all(f"#{each}" in svg for each in named), "only what is referred to has an id"


def test_labels_of_differences_do_not_overlap() -> None:
    changes = [{"value": value, "low": value - 0.011, "high": value + 0.011} for value in (-0.014, 0.0, 0.004)]
    shown = texts(
        plots.by_slice(
            ["popularity: items of middle popularity", "b", "c"], {"": changes}, "new minus old", difference=True
        )
    )
    numbers = [each for each in shown if re.fullmatch(r"\W?0\.\d+", each)]
    # The axis has about 250 of the 504 points of the figure, a label of six signs of 10 points about 40.
    assert 3 <= len(numbers) <= 6


def test_a_long_name_leaves_room_for_its_plot() -> None:
    estimate = {"value": 0.5, "low": 0.4, "high": 0.6}
    shown = texts(plots.by_slice(["x" * 200, "y" * 45], {"model": [estimate, estimate]}, "recall@20"))
    assert {"x" * 44 + "…", "y" * 45} <= {*shown}
