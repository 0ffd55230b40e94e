"""A check is a claim or a goal by what its benchmark declares, never by its outcome, in the committed results, too."""

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.harness.machine import BENCHMARKS, ROOT, load, verdict
from benchmarks.quality import beauty, public_splits, rolling
from benchmarks.serving import overload_phases, throughput
from benchmarks.training import full_evaluation, optimizers, samplers, warm_start
from benchmarks.tuning import tune
from towers.config.recipe import load_config

Result = dict[str, Any]
Checks = dict[str, dict[str, bool]]


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Benchmarks of search set this for themselves when they are imported; it must not reach what other tests start."""
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")


def approximate(result: Result) -> Checks:
    from benchmarks.search.approximate import judged

    found = judged(result["finals"], result["swept"])
    return {kind: found[kind] for kind in ("claims", "goals")}


def bulk_recall(result: Result) -> Checks:
    from benchmarks.search.bulk_recall import judged

    return judged(result["bundles"])


def tuned(result: Result) -> Checks:
    return tune.judged(result["data"], result["budget_minutes"], result)


def split(name: str) -> Callable[[Result], Checks]:
    def judged(result: Result) -> Checks:
        runs = result["runs"]["validation"]
        return public_splits.judged(name, result["figures"], result["minutes_to_recall@20"], runs)

    return judged


def next_item(name: str) -> Callable[[Result], Checks]:
    return lambda result: beauty.judged(name, result["figures"], result["runs"])


JUDGED: dict[str, Callable[[Result], Checks]] = {
    "beauty": next_item("beauty"),
    "beauty_s3rec": next_item("beauty-s3rec"),
    "beauty_s3rec_categories_taught": next_item("beauty-s3rec"),
    "beauty_s3rec_taught": next_item("beauty-s3rec"),
    "beauty_taught": next_item("beauty"),
    "bulk_recall": bulk_recall,
    "evaluation": lambda result: full_evaluation.judged(result["worlds"]),
    "index": approximate,
    "optimizers": lambda result: optimizers.judged(result["growth"], result["against_peer"][str(optimizers.BATCH)]),
    "quality_gowalla": split("gowalla"),
    "quality_gowalla_ordered": split("gowalla-ordered"),
    "quality_gowalla_taught": split("gowalla-taught"),
    "quality_ml_1m_split": split("ml-1m-split"),
    "ml_100k_rolling": lambda result: {
        "claims": rolling.claims_of(result["figures"]),
        "goals": rolling.goals_of(result["figures"]),
    },
    "samplers": lambda result: samplers.judged(result["learned_unigram_ms"], result["log_uniform_ms"]),
    "serving": lambda result: throughput.judged(*(result[key] for key in ("ratios", "idle_ms", "half_load", "swap"))),
    **{
        f"tune_{name}": tuned
        for name in ("beauty_s3rec", "beauty_with_starts", "gowalla", "gowalla_with_starts", "ml_100k", "ml_1m_split")
    },
    "warm_start": lambda result: {"claims": warm_start.claims_of(result["figures"]), "goals": {}},
}

CLAIMS_OF_SPEED = (
    "one by one no fewer queries per second than faiss",
    "in batches no fewer queries per second than faiss in its better form",
)


@pytest.mark.parametrize("name", JUDGED)
def test_a_committed_result_has_the_claims_and_goals_that_its_figures_give(name: str) -> None:
    result = load(name)
    assert JUDGED[name](result) == {kind: result[kind] for kind in ("claims", "goals")}


def test_the_committed_overload_has_the_claims_and_goals_that_its_figures_give() -> None:
    result = load("calm")
    found = overload_phases.judged(result["overload"])
    assert found.keys() == {"claims", "goals"}
    for kind, checks in found.items():
        others = {name for name in result[kind] if name.startswith(("slow loris", "worker killed"))}
        assert checks == {name: holds for name, holds in result[kind].items() if name not in others}


def test_an_index_slower_than_faiss_is_a_claim_that_fails(capsys: pytest.CaptureFixture[str]) -> None:
    slow = copy.deepcopy(load("index"))
    for form in ("single", "batch"):
        slow["finals"][0][form] = 1.0
    checks = approximate(slow)
    for claim in CLAIMS_OF_SPEED:
        assert checks["claims"][claim] is False
    slower = [claim.replace("faiss", peer) for peer in ("faiss graphs", "hnswlib") for claim in CLAIMS_OF_SPEED]
    assert checks["goals"] == dict.fromkeys(slower, False)
    # A peer of which no setting finds enough may be set up badly, which is not hidden.
    slow["finals"] = [each for each in slow["finals"] if each["library"] != "faiss graphs"]
    assert approximate(slow)["goals"] == dict.fromkeys([*slower[2:], "faiss graphs: a setting reaches 0.95"], False)
    assert verdict(checks) == 1
    assert "FAILS   one by one no fewer queries per second than faiss\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("claims", "goals", "code"),
    [({"a": True}, {"b": False}, 0), ({"a": True, "c": False}, {"b": True}, 1), ({"a": True}, None, 0)],
)
def test_only_a_claim_that_fails_ends_with_1(claims: dict[str, bool], goals: dict[str, bool] | None, code: int) -> None:
    result: Result = {"claims": claims} if goals is None else {"claims": claims, "goals": goals}
    assert verdict(result) == code


def test_no_benchmark_but_by_verdict_says_what_holds() -> None:
    texts = {path.stem: path.read_text(encoding="utf-8") for path in BENCHMARKS.rglob("*.py")}
    assert [name for name, text in texts.items() if re.search(r"0 if all\(.*claims|holds else", text)] == ["machine"]


def test_a_variant_of_beauty_trains_what_its_result_is_called() -> None:
    taught = ["distillation.models=4", *beauty.SETS["beauty-s3rec"].taught, *beauty.TAUGHT]
    words = {
        beauty.Variant(): ("", [], {}),
        beauty.Variant(teachers=4): ("_taught", taught, {"teachers": 4}),
        beauty.Variant(categories=True): ("_categories", beauty.CATEGORIES, {"categories": True}),
        beauty.Variant(4, categories=True): (
            "_categories_taught",
            [*taught, *beauty.CATEGORIES],
            {"teachers": 4, "categories": True},
        ),
    }
    for variant, wanted in words.items():
        changes = variant.changes(beauty.SETS["beauty-s3rec"])
        assert (variant.suffix, changes, variant.settings) == wanted
        load_config(ROOT / beauty.RECIPE, changes)
