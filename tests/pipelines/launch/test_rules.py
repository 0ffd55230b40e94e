"""The file of rules: what it may hold, and the line that says what is wrong with one."""

import hashlib
import re
from pathlib import Path

import pytest

from pipelines.errors import DataError
from pipelines.launch.rules import (
    OF_ALL_LISTS,
    AgreementRule,
    FigureRule,
    Limit,
    RuleFile,
    Rules,
    SliceRule,
    read_rules,
)
from tests.support.paths import ROOT
from towers.evaluation.metrics import METRICS

METRIC = '[[metrics]]\nmetric = "recall@20"\nbound = "value"\nat_least = 0.1\n'
SLICES = METRIC.replace("metrics", "slices")


def written(folder: Path, text: str) -> Path:
    path = folder / "rules.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_example_holds_every_kind_of_rule_and_its_own_digest() -> None:
    path = ROOT / "deploy" / "gate.toml"
    rules, digest = read_rules(path)
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert rules.metrics[1] == FigureRule(metric="recall@20", relative="difference", bound="low", at_least=-0.002)
    assert rules.slices == (
        SliceRule(metric="recall@20", relative="difference", bound="high", at_least=-0.01, least_users=100),
    )
    assert rules.renewal is not None
    used = {key for part in (rules, rules.renewal) for key in Rules.model_fields if getattr(part, key)}
    assert used == set(Rules.model_fields)


def test_a_limit_includes_its_bound() -> None:
    least, most = Limit(at_least=0.5), Limit(at_most=0.0)
    assert [least.holds(figure) for figure in (0.4999, 0.5, float("nan"))] == [False, True, False]
    assert [most.holds(figure) for figure in (-1.0, 0.0, 1e-9, float("nan"))] == [True, True, False, False]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["holds no rule; there are metrics, slices, findings, index, latency, agreement"]),
        (METRIC + "[renewal]\n", ["renewal: holds no rule"]),
        (METRIC + "colour = 1\n", ["metrics.0.colour: no such key", "allows at_least, at_most, metric, ranker"]),
        ("[indx]\nk = 1\n", ["indx: no such key; a file of rules allows", "did you mean 'index'?"]),
        (METRIC.replace('bound = "value"\n', ""), ["metrics.0.bound: missing; must be 'value', 'low' or 'high'"]),
        ("[agreement]\nk = 5\n", ["agreement.at_least: missing; must be a number above 0 and up to 1"]),
        (METRIC.replace('"value"', '"middle"'), ["metrics.0.bound: must be one of value, low, high; got 'middle'"]),
        (METRIC.replace("recall@20", "recal@20"), ["metrics.0.metric: must be METRIC@K", "got 'recal@20'"]),
        (METRIC.replace("recall@20", "recall@0"), ["metrics.0.metric: must be METRIC@K", "got 'recall@0'"]),
        (METRIC.replace("recall@20", "recall@٢"), ["metrics.0.metric: must be METRIC@K", "got 'recall@٢'"]),
        *(
            pytest.param(
                METRIC.replace("recall@20", f"recall@{k}"),
                [
                    f"metrics.0.metric: must be METRIC@K, METRIC one of {', '.join((*METRICS, *OF_ALL_LISTS))}, "
                    f"K at most 1,000,000,000,000; got 'recall@{k}'"
                ],
                id=f"a K of {len(k)} digits",
            )
            for k in ("1000000000001", "9" * 5_000)
        ),
        (METRIC.replace("recall@20", "recall"), ["metrics.0.metric: must be METRIC@K", "got 'recall'"]),
        (METRIC.replace("at_least = 0.1", 'at_least = "0.1"'), ["metrics.0.at_least", "valid number", "got '0.1'"]),
        (METRIC.replace("at_least = 0.1", "at_least = nan"), ["metrics.0.at_least", "finite"]),
        (METRIC + "at_most = 0.2\n", ["metrics.0: needs either at_least or at_most"]),
        (METRIC.replace("at_least = 0.1\n", ""), ["metrics.0: needs either at_least or at_most"]),
        (
            METRIC.replace("recall@20", "gini@20").replace('"value"', '"low"') + 'relative = "ratio"\n',
            ["a ratio of gini@20 has no interval", "'low'"],
        ),
        (SLICES.replace("recall@20", "gini@20"), ["gini@20 is not a figure of slices"]),
        (
            SLICES + 'relative = "ratio"\n',
            ["slices.0.relative: must be one of difference; got 'ratio'"],
        ),
        (SLICES + "groups = []\n", ["slices.0.groups: must name at least one; got none"]),
        (
            SLICES + 'unjudged = "ok"\n',
            ["slices.0.unjudged: must be one of refuse, pass; got 'ok'"],
        ),
        ("[latency]\nk = 5\n", ["latency: needs p50_ms, p99_ms or both"]),
        ("[latency]\np99_ms = 0\n", ["latency.p99_ms", "greater than 0; got 0"]),
        ("[index]\nat_least = 1.5\n", ["index.at_least", "less than or equal to 1"]),
        ('[findings]\nclean = ["hubs"]\n', ["findings.clean", "must be 'all' or one of", "'hub'", "got 'hubs'"]),
        ("metrics = 3\n", ["metrics", "got 3"]),
        ("[[metrics\n", ["not valid TOML"]),
    ],
)
def test_a_mistake_names_the_key_what_came_and_what_is_allowed(text: str, parts: list[str], tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(DataError) as error:
        read_rules(path)
    message = str(error.value)
    assert message.startswith(f"{path}: ")
    assert [part for part in parts if part not in message] == []


@pytest.mark.parametrize(
    ("text", "key"),
    [('[findings]\nclean = ["hubs"]\n', "findings.clean.0"), (SLICES + "groups = [3]\n", "slices.0.groups.0")],
)
def test_a_wrong_name_in_a_list_is_one_mistake(text: str, key: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        read_rules(written(tmp_path, text))
    assert str(error.value).startswith(f"{tmp_path / 'rules.toml'}: {key}: ")
    assert re.findall(r"; got .*", str(error.value)) in (["; got 'hubs'"], ["; got 3"])


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    plain, _ = read_rules(written(tmp_path, METRIC))
    path = written(tmp_path, f"\ufeff{METRIC}")
    assert read_rules(path) == (plain, hashlib.sha256(path.read_bytes()).hexdigest())


def test_a_file_that_is_missing_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing\.toml: cannot be read: No such file"):
        read_rules(tmp_path / "nothing.toml")
    (tmp_path / "rules.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="not valid TOML"):
        read_rules(tmp_path / "rules.toml")


def test_the_page_names_the_defaults_of_an_agreement() -> None:
    page = (ROOT / "docs" / "evaluation" / "gate.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `\[agreement\]` \| `k` \((\d+)\), `at_least` \|", page, re.MULTILINE) == [
        str(AgreementRule.model_fields["k"].default)
    ]


def test_the_page_names_every_key() -> None:
    named = {*re.findall(r"`\[*(\w+)\]*`", (ROOT / "docs" / "evaluation" / "gate.md").read_text(encoding="utf-8"))}
    assert {key for model in (RuleFile, FigureRule, SliceRule) for key in model.model_fields} - named == set()
