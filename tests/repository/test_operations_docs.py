"""docs/service/operations.md and the alerts: every metric is there, and all metrics and labels named exist."""

import re
import subprocess
from typing import Any, get_args, get_type_hints

import pytest
import yaml

from serving.http.app import create_app
from serving.protocol.limits import FULL
from serving.settings import Settings
from serving.telemetry import metrics
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "service" / "operations.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(towers_\w+)` \| (\w+) \|([^|]*)\| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
SELECTOR = re.compile(r"\b(towers_\w+|up)(?:\{([^}]*)\})?")
# What Prometheus offers and these rules use.
WORDS = {
    "clamp_min",
    "delta",
    "sum",
    "by",
    "rate",
    "increase",
    "max",
    "max_over_time",
    "count",
    "histogram_quantile",
    "and",
    "or",
    "absent",
    "le",
    "job",
    "up",
}
FALLBACKS = set(get_args(get_type_hints(metrics.fell_back)["reason"]))
BALANCED = {")": "(", "]": "[", "}": "{"}


def registered() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Type and labels of every metric, by the name under which Prometheus asks for it."""
    found = {}
    for collector in set(metrics.REGISTRY._collector_to_names):
        (family,) = collector.describe()
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found[name] = family.type, tuple(collector._labelnames)
    return found


def code_blocks(language: str) -> list[str]:
    # All of them in turn: the end of one looks like the beginning of another.
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return [text for its_language, text in blocks if its_language == language]


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> list[str]:
    (queries,) = code_blocks("promql")
    return [rule["expr"] for rule in rules()] + queries.splitlines()


def test_every_metric_is_told_with_type_labels_and_what_to_do() -> None:
    rows = ROW.findall(PAGE)
    told = {name: (kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels, _, _ in rows}
    assert len(rows) == len(told)
    assert told == registered()


def test_no_other_metric_is_named() -> None:
    known = registered()
    for name in set(re.findall(r"\btowers_\w+", PAGE)):
        assert name in known or re.sub(r"_(bucket|sum|count)$", "", name) in known, name


def reasons() -> set[str]:
    """Why requests are refused: the words in the code, and the keys of the table that names the others."""
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "serving").rglob("*.py")]
    named = [each for source in sources for each in re.findall(r"metrics\.refused\((.+?)\)", source)]
    words = {each.strip('"') for each in named if each.startswith('"')}
    assert words and {each for each in named if not each.startswith('"')} == {"full"}  # a key of FULL
    return words | set(FULL)


def test_every_refusal_is_explained() -> None:
    told = next(row for row in PAGE.splitlines() if row.startswith("| `towers_requests_refused_total`"))
    assert reasons() <= set(re.findall(r"`(\w+)`", told))


@pytest.mark.parametrize("expression", expressions())
def test_an_expression_names_only_what_exists(expression: str) -> None:
    known = registered()
    for name, matchers in SELECTOR.findall(expression):
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        kind, labels = ("gauge", ("job",)) if name == "up" else known.get(name) or known[base]
        # A histogram is asked for by its parts, and only a histogram has parts.
        assert (kind == "histogram") is (name != base), name
        matched = re.findall(r'(\w+)(=~|!~|!=|=)"([^"]*)"', matchers)
        assert ",".join("".join((label, how, f'"{value}"')) for label, how, value in matched) == matchers
        assert {label for label, _, _ in matched} <= set(labels)
        counts = kind in ("counter", "histogram")
        grows = rf"(rate|increase)\({name}(\{{[^}}]*\}})?\[\d+[mh]\]\)"
        # Or beside a gauge that falls with it when the service starts anew.
        beside = rf"delta\(\({name} - towers_\w+\)\[\d+[mh]:\]\)"
        assert (re.search(f"{grows}|{beside}", expression) is not None) is counts
    for grouped in re.findall(r"by \(([^)]*)\)", expression):
        allowed = {label for _, labels in known.values() for label in labels} | {"le", "job"}
        assert set(grouped.split(", ")) <= allowed
    plain = re.sub(r'\{[^}]*\}|\[\d+[mh]:?\]|"[^"]*"', "", expression)
    words = {word for word in re.findall(r"[a-z_]+", plain) if not word.startswith("towers_")}
    assert words <= WORDS | {label for _, labels in known.values() for label in labels}
    opened: list[str] = []
    for sign in expression:
        if sign in BALANCED.values():
            opened.append(sign)
        elif sign in BALANCED:
            assert opened.pop() == BALANCED[sign]
    assert not opened


def test_values_of_labels_in_expressions_exist() -> None:
    routes = {route.path for route in create_app(Settings(bundle=ROOT)).routes}
    for expression in expressions():
        assert set(re.findall(r'route="([^"]*)"', expression)) <= routes
        for name, values in re.findall(r'(\w+)\{[^}]*reason=~?"([^"]*)"', expression):
            known = reasons() if name == "towers_requests_refused_total" else FALLBACKS
            assert set(values.split("|")) <= known
        assert set(re.findall(r'role="([^"]*)"', expression)) <= {"active", "canary"}


def test_every_alert_has_its_advice() -> None:
    alerts = [rule["alert"] for rule in rules()]
    advice = re.findall(r"^\| `(Towers\w+)` \| \S", PAGE, re.MULTILINE)
    assert alerts == advice and len(set(alerts)) == len(alerts)
    assert all(re.fullmatch(r"\d+[smh]", rule.get("for", "1m")) for rule in rules())


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_no_alert_puts_services_together(rule: dict[str, Any]) -> None:
    grouped = [by.split(", ") for by in re.findall(r"by \(([^)]*)\)", rule["expr"])]
    assert len(grouped) == len(re.findall(r"\b(?:sum|max|count)\b", rule["expr"]))
    assert all("job" in labels for labels in grouped)


def test_every_stage_is_told_in_the_row_of_its_metric() -> None:
    (meaning,) = (means for name, _, _, means, _ in ROW.findall(PAGE) if name == "towers_stage_seconds")
    assert sorted(re.findall(r"`(\w+)` \(", meaning)) == sorted(metrics.STAGES)


def test_every_setting_named_exists() -> None:
    named = re.findall(r"\bTOWERS_([A-Z_]+)\b", PAGE)
    assert len(named) > 5 and {name.lower() for name in named} <= Settings.model_fields.keys()


def test_docker_gives_a_stop_its_time() -> None:
    settings = Settings(bundle=ROOT)
    texts = (PAGE, (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    told = [re.findall(r"--stop-timeout (\d+)|stop_grace_period: (\d+)s", text) for text in texts]
    assert [len(times) for times in told] == [2, 1]
    # What is left is for the sockets to close and for the interpreter to end.
    least_s = settings.linger_s + settings.graceful_timeout_s + 5
    assert all(float(one or other) > least_s for times in told for one, other in times)


def test_the_image_with_more_libraries_has_the_versions_of_the_lock() -> None:
    (lines,) = (block for block in code_blocks("text") if block.startswith("FROM"))
    (lock, copied) = re.findall(r"COPY (\S+) (\S+)", lines)[0]
    text = (ROOT / lock).read_text(encoding="utf-8")
    (command,) = re.findall(rf"RUN (.*) {re.escape(copied + lock)} >(\S+) && ", lines)
    kept = subprocess.run(["sh", "-c", command[0]], input=text, capture_output=True, text=True, check=True).stdout
    # pip takes no hashes in constraints, nor extras.
    assert len(kept.splitlines()) == text.count("==") and not re.search(r"[\[\s]--|\[", kept)
    options, packages = re.findall(r"pip install (--no-cache-dir --constraint \S+) (.*)", lines)[0]
    assert options.endswith(command[1])
    for name in re.findall(r"[\w-]+(?=$|[\s\[])", packages):
        assert f"\n{name}==" in kept
