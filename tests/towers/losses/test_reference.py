"""Every loss, with every option, against loops from its formula; golden numbers with their arithmetic."""

import math
from typing import Any, get_args

import numpy as np
import pytest
import tensorflow as tf
from pydantic import TypeAdapter

from tests.support.loss_cases import (
    BSL,
    CASES,
    CIRCLE,
    MARGIN,
    SOFTMAX,
    TRIPLET,
    World,
    evaluate,
    label_of,
    supplied,
    world,
)
from tests.support.loss_references import REFERENCES, graded_parts
from towers.config.losses import LOSSES, FullSoftmax, LossConfig
from towers.losses.registry import FUNCTIONS, arguments
from towers.losses.scores import Scores

NAMES = [get_args(loss.model_fields["name"].annotation)[0] for loss in LOSSES if loss is not FullSoftmax]
SECTION: TypeAdapter[Any] = TypeAdapter(LossConfig)


def wanted_of(name: str, options: dict[str, Any], given: World) -> list[float]:
    queries = given.queries()
    if name == "graded_hinge":
        if options["pairs"] == "batch":
            lists = [list(zip(query.positives, query.labels, strict=True)) for query in queries]
            everything = [item for items in lists for item in items]
            parts = [graded_parts(items, everything, options["margin"]) for items in lists]
            return [len(lists) * top / sum(bottom for _, bottom in parts) for top, _ in parts]
        options = {"margin": options["margin"]}
    if name == "bsl" and options["positive_group"] == "batch":
        queries = given._replace(mask=given.mask & ~given.same).queries()
    return [REFERENCES[name](query, **options) for query in queries]


def test_every_loss_of_the_settings_has_a_function_a_reference_and_a_case() -> None:
    assert sorted(FUNCTIONS) == sorted(NAMES)
    assert sorted(REFERENCES) == sorted(NAMES)
    assert {name for name, _ in CASES} == set(NAMES)


@pytest.mark.parametrize("case", CASES, ids=label_of)
@pytest.mark.parametrize("shared_log_q", [True, False], ids=["log_q [M]", "log_q [B, M]"])
def test_equals_the_formula(case: tuple[str, dict[str, Any]], shared_log_q: bool) -> None:
    name, options = case
    for seed in range(3):
        given = world(name, shared_log_q, seed)
        got, _, _ = evaluate(name, options, given.scores(), supplied(name, options, given))
        assert got.dtype == tf.float32
        # 2e-5: what the root's epsilon may add to a distance.
        np.testing.assert_allclose(got, wanted_of(name, options, given), rtol=2e-5, atol=2e-5)


def test_the_mean_of_the_batch_is_the_formula_of_graded_hinge_in_a_batch() -> None:
    given = world("graded_hinge")
    options = {"margin": 0.2, "pairs": "batch"}
    got, _, _ = evaluate("graded_hinge", options, given.scores(), supplied("graded_hinge", options, given))
    items = [pair for query in given.queries() for pair in zip(query.positives, query.labels, strict=True)]
    top, bottom = graded_parts(items, items, 0.2)
    np.testing.assert_allclose(np.mean(got), top / bottom, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_the_settings_fill_every_option_that_the_model_does_not(name: str) -> None:
    section = SECTION.validate_python({"name": name})
    given = world(name)
    options = arguments(section)
    got, _, _ = evaluate(name, options, given.scores(), supplied(name, {"positive_group": "own"} | options, given))
    np.testing.assert_allclose(got, wanted_of(name, options, given), rtol=2e-5, atol=2e-5)
    assert not set(options) & {"name", "bottleneck", "hardest_negatives", "known_positives", "remove_accidental_hits"}


def test_the_model_supplies_log_z_and_an_adaptive_margin() -> None:
    assert arguments(SECTION.validate_python({"name": "nce", "log_z": 2.0})) == {"label_smoothing": 0.0}
    adaptive = arguments(SECTION.validate_python({"name": "distance_softmax", "margin": "adaptive"}))
    assert adaptive == {"scale": 10.0, "correction": 0.0, "label_smoothing": 0.0}
    fixed = arguments(SECTION.validate_python({"name": "distance_softmax", "margin": 0.3}))
    assert fixed == adaptive | {"margin": 0.3}


@pytest.mark.parametrize("log_z", [0.5, tf.constant(0.5), tf.fill([6], 0.5)], ids=["number", "scalar", "[B]"])
def test_log_z_may_be_a_number_a_scalar_or_one_for_each_query(log_z: Any) -> None:
    given = world("nce")._replace(log_z=np.full(6, 0.5))
    got = FUNCTIONS["nce"](given.scores(), log_z=log_z, label_smoothing=0.0)
    np.testing.assert_allclose(got, wanted_of("nce", {"label_smoothing": 0.0}, given), rtol=1e-5)


def test_an_adaptive_margin_may_be_a_tensor() -> None:
    given = world("distance_softmax")
    got = FUNCTIONS["distance_softmax"](given.scores(), **(MARGIN | {"margin": tf.constant(0.2)}))
    np.testing.assert_allclose(got, wanted_of("distance_softmax", MARGIN, given), rtol=2e-5, atol=2e-5)


# One query; scores 1 and 0.5 of two positives where there are two, else 1 of one; 0.25 and -0.5 of two negatives.
GOLDEN: list[tuple[str, dict[str, Any], list[float], dict[str, Any], float]] = [
    # Q: 0.5 of the positive, 2 and 0.25 of the negatives: e / 0.5 = 5.436564, e^0.25 / 2 = 0.642013,
    # e^-0.5 / 0.25 = 2.426123; -ln(5.436564 / 8.504700) = 0.447472
    ("sampled_softmax", SOFTMAX, [1.0], {}, 0.447472),
    # q = Q / 2: 0.25, 1, 0.125; n = 2, 1 - q_y = 0.75: Q' = 2 / 0.75 and 0.25 / 0.75;
    # S = 0.75 (0.642013 + 2.426123) = 2.301102, ln S = 0.833388; P = 2.718282 / 5.019384 = 0.541557;
    # -0.458443 (1 - 0.833388) = -0.076382
    ("sampled_softmax", SOFTMAX | {"positive": "excluded"}, [1.0], {}, -0.076382),
    # x = s - 0.5 - ln Q = 1.193147, -0.943147, 0.386294: ln(1 + e^-1.193147) = 0.264873,
    # ln(1 + e^-0.943147) = 0.328872, ln(1 + e^0.386294) = 0.904832
    ("nce", {"label_smoothing": 0.0}, [1.0], {"log_z": 0.5}, 1.498578),
    # ln(1 + e^-1) = 0.313262, ln(1 + e^0.25) = 0.825939, ln(1 + e^-0.5) = 0.474077
    ("neg", {"label_smoothing": 0.0}, [1.0], {}, 1.613278),
    # N = 5, k = 2: a = 0.5, beta = 0.5 (0.5 (1 - 2) + 2) = 0.75: 0.75 * 0.313262 + 0.825939 + 0.474077
    ("gbce", {"calibration": 0.5}, [1.0], {"catalogue": 5}, 1.534963),
    # label 0.75: 0.75 * 0.313262 + 0.25 * 1.313262
    ("bce", {"label_smoothing": 0.0}, [1.0], {"labels": tf.constant([[0.75]])}, 0.563262),
    # g = 2, m = 0.25: ln(1 + e^(2 (0.25 + 0.25 - 1)) + e^(2 (-0.5 + 0.25 - 1))) = ln(1 + 0.367879 + 0.082085)
    ("am_softmax", MARGIN | {"scale": 2.0, "margin": 0.25}, [1.0], {}, 0.371539),
    # positive 0.5; d = 0.707107, 0.866025, 1.224745: ln(1 + e^(2 (0.091081)) + e^(2 (-0.267638))), m = 0.25
    # = ln(1 + 1.199809 + 0.585508)
    ("distance_softmax", MARGIN | {"scale": 2.0, "margin": 0.25}, [0.5], {}, 1.024362),
    # positive 0.5, m = 0.5: [0.25]+ and [-0.5]+, mean 0.125
    ("triplet", TRIPLET | {"margin": 0.5}, [0.5], {}, 0.125),
    # positives 1 and 0.5, g = 1, m = 0: 1 + e^-0.75 + e^-0.25 + e^-1.5 + e^-1 = 1 + 0.472367 + 0.778801 + 0.223130
    # + 0.367879 = 2.842177
    ("pair", {"scale": 1.0, "margin": 0.0, "correction": 0.0}, [1.0, 0.5], {}, 1.044570),
    # positive 0.5, g = 2, m = 0.25: a_p = 0.75, e^(-2 * 0.75 * (0.5 - 0.75)) = e^0.375 = 1.454991;
    # a_n = 0.5 and 0, e^(2 * 0.5 * 0) + e^0 = 2; ln(1 + 2.909983)
    ("circle", CIRCLE | {"scale": 2.0}, [0.5], {}, 1.363533),
    # grades 1 and 3, scores 1 and 0.5, m = 0.25: one pair, 2 [1 - 0.5 + 0.25]+ / 2
    ("graded_hinge", {"margin": 0.25, "pairs": "list"}, [1.0, 0.5], {"labels": tf.constant([[1.0, 3.0]])}, 0.75),
    # positive 0.5, m = 0, w = 4: 0.5 + 4 * (0.25 + 0) / 2
    ("ccl", {"margin": 0.0, "negative_weight": 4.0}, [0.5], {}, 1.0),
    # -1 + 2 ln((e^0.25 + e^-0.5) / 2) = -1 + 2 ln(0.945278)
    ("bsl", BSL | {"negative_scale": 2.0}, [1.0], {}, -1.112553),
]


@pytest.mark.parametrize(("name", "options", "positives", "more", "wanted"), GOLDEN)
def test_golden_numbers(
    name: str, options: dict[str, Any], positives: list[float], more: dict[str, Any], wanted: float
) -> None:
    scores = Scores(
        tf.constant([positives]),
        tf.constant([[0.25, -0.5]]),
        tf.ones([1, len(positives)], tf.bool),
        tf.ones([1, 2], tf.bool),
        tf.fill([1, len(positives)], math.log(0.5)),
        tf.constant([math.log(2), math.log(0.25)]),
    )
    np.testing.assert_allclose(FUNCTIONS[name](scores, **options, **more), [wanted], atol=3e-6)


def test_every_loss_has_a_golden_number() -> None:
    assert {name for name, *_ in GOLDEN} == set(NAMES)
