"""deploy/prometheus/alerts.yml with the real promtool: each alert fires on its own series and not on similar ones."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from serving.http.route_table import WORK
from serving.protocol.limits import PROBE
from tests.support.paths import ROOT

RULES = ROOT / "deploy" / "prometheus" / "alerts.yml"

# A value a minute; 'a+bxn' is a, a + b, ... n times more.
Series = dict[str, str]
REQUESTS, LATENCY = "towers_requests_total", "towers_request_seconds_bucket"
REFUSED = "towers_requests_refused_total"
ANSWERS = "towers_bundle_answers"
STARTS, WORKERS = "towers_worker_starts_total", "towers_workers"
WANTED, FOUND = "towers_index_recall_wanted_total", "towers_index_recall_found_total"
QUERIES, FALLBACKS = 'towers_queries_total{source="user",version="v"}', "towers_fallbacks_total"
PROBES = [path for path, work in WORK.items() if work is PROBE]


def latency(route: str, *counts: float) -> Series:
    bounds = ("0.05", "0.1", "0.25", "+Inf")
    return {
        f'{LATENCY}{{route="{route}",le="{le}"}}': f"0+{count}x30" for le, count in zip(bounds, counts, strict=True)
    }


def recalled(wanted: int, found: int) -> Series:
    return {f'{WANTED}{{version="v"}}': f"0+{wanted}x400", f'{FOUND}{{version="v"}}': f"0+{found}x400"}


# Alert -> minutes after the start, labels of the alert, series on which it fires, series on which it does not.
CASES: dict[str, tuple[int, dict[str, str], list[Series], list[Series]]] = {
    "TowersDown": (
        5, {"job": "towers"},
        # The last two: the targets are gone, and the job has another name.
        [{'up{job="towers"}': "0x9"}, {'up{job="towers"}': "1x2 stale"}, {'up{job="other"}': "1x9"}],
        [
            {'up{job="towers"}': "1x9"},
            {'up{job="towers"}': "1x9", 'up{job="other"}': "0x9"},
            {'up{job="towers"}': "1 1 1 1 1 0"},
        ],
    ),
    "TowersErrors": (
        15, {},
        [
            {f'{REQUESTS}{{status="200"}}': "0+97x20", f'{REQUESTS}{{status="503"}}': "0+3x20"},
            # However many probes are answered.
            {
                f'{REQUESTS}{{route="/recall",status="200"}}': "0+97x20",
                f'{REQUESTS}{{route="/recall",status="503"}}': "0+3x20",
                **{f'{REQUESTS}{{route="{probe}",status="200"}}': "0+900x20" for probe in PROBES},
            },
        ],
        [
            {f'{REQUESTS}{{status="200"}}': "0+199x20", f'{REQUESTS}{{status="500"}}': "0+1x20"},
            {f'{REQUESTS}{{status="200"}}': "0+9x20", f'{REQUESTS}{{status="422"}}': "0+90x20"},
            *(
                {f'{REQUESTS}{{status="200"}}': "0+9x20", f'{REQUESTS}{{route="{probe}",status="503"}}': "0+9x20"}
                for probe in PROBES
            ),
        ],
    ),
    "TowersWritesFail": (
        15, {},
        [
            {
                f'{REQUESTS}{{route="/recall",status="200"}}': "0+60000x20",
                f'{REQUESTS}{{route="{route}",status="503"}}': "0+9x20",
            }
            for route in ("/items", "/items/{item_id}", "/events", "/impressions")
        ]
        # The few that wait for a database that stands still fail late, and all others are refused meanwhile.
        + [{f'{REQUESTS}{{route="/events",status="{code}"}}': f"0+{n}x20" for code, n in (("503", 80), ("429", 900))}],
        [
            {
                f'{REQUESTS}{{route="/recall",status="503"}}': "0+9x20",
                f'{REQUESTS}{{route="/events",status="200"}}': "0+9x20",
            },
            {f'{REQUESTS}{{route="/events",status="422"}}': "0+9x20"},
            {f'{REQUESTS}{{route="/events",status="429"}}': "0+9x20"},  # the service is full
            {f'{REQUESTS}{{route="/events",status="503"}}': "0x9 1x20"},
        ],
    ),
    "TowersSlow": (
        25, {}, [latency("/recall", 90, 95, 100, 100)],
        [latency("/recall", 90, 99.5, 100, 100), latency("/recall/batch", 0, 0, 100, 100)],
    ),
    "TowersFull": (
        15, {}, [{f'{REFUSED}{{reason="{reason}"}}': "0+120x20"} for reason in ("concurrency", "heavy", "wait")],
        [{f'{REFUSED}{{reason="heavy"}}': "0+30x20"}, {f'{REFUSED}{{reason="slow"}}': "0+600x20"}],
    ),
    "TowersTimeouts": (
        15, {}, [{f'{REFUSED}{{reason="timeout"}}': "0+12x20"}],
        [{f'{REFUSED}{{reason="timeout"}}': "0+3x20"}, {f'{REFUSED}{{reason="wait"}}': "0+60x20"}],
    ),
    "TowersWrongKeys": (
        20, {}, [{f'{REFUSED}{{reason="key"}}': "0+120x30"}],
        [{f'{REFUSED}{{reason="key"}}': "0+30x30"}, {f'{REFUSED}{{reason="timeout"}}': "0+120x30"}],
    ),
    "TowersBundleRefused": (
        5, {}, [{"towers_bundles_refused": "0 1x9"}],
        [{"towers_bundles_refused": "0x9"}, {"towers_bundles_refused": "0 0 0 0 0 1"}],
    ),
    "TowersBundlesDiffer": (
        15, {},
        [
            {f'{ANSWERS}{{role="active",bundle="{name}"}}': "1x20" for name in "ab"},
            # As after `towers forget`: the same name, another version.
            {f'{ANSWERS}{{role="active",bundle="a",version="{version}"}}': "1x20" for version in "12"},
        ],
        [
            {f'{ANSWERS}{{role="active",bundle="a"}}': "1x20", f'{ANSWERS}{{role="active",bundle="b"}}': "0x20"},
            {f'{ANSWERS}{{role="active",bundle="a"}}': "1x20", f'{ANSWERS}{{role="canary",bundle="b"}}': "1x20"},
            {f'{ANSWERS}{{role="active",bundle="{name}",job="{name}"}}': "1x20" for name in "ab"},  # two services
        ],
    ),
    "TowersWorkersDie": (
        20, {},
        [
            {STARTS: "4+1x30", WORKERS: "4x30"},
            # Deaths of one replica beside a restart of another.
            {
                f'{STARTS}{{instance="a"}}': "4+1x30", f'{WORKERS}{{instance="a"}}': "4x30",
                f'{STARTS}{{instance="b"}}': "24x15 _x1 4x30", f'{WORKERS}{{instance="b"}}': "4x15 _x1 4x30",
            },
        ],
        [
            {STARTS: "4x30", WORKERS: "4x30"},
            {STARTS: "4x10 5x20", WORKERS: "4x30"},
            # A service that starts again, and one that is scraped while it starts.
            {STARTS: "5x15 _x1 4x30", WORKERS: "4x15 _x1 4x30"},
            {STARTS: "_x4 1 4x30", WORKERS: "_x4 1 4x30"},
        ],
    ),
    "TowersWorkersMissing": (
        30, {"instance": "a"},
        [
            {f'{WORKERS}{{instance="a"}}': "4x10 3x40", f'{WORKERS}_wanted{{instance="a"}}': "4x50"},
            {f'{WORKERS}{{instance="a"}}': "3x50", f'{WORKERS}_wanted{{instance="a"}}': "4x50"},
        ],
        [
            {f'{WORKERS}{{instance="a"}}': "4x50", f'{WORKERS}_wanted{{instance="a"}}': "4x50"},
            {f'{WORKERS}{{instance="a"}}': "4x20 3x2 4x40", f'{WORKERS}_wanted{{instance="a"}}': "4x62"},
            {f'{WORKERS}{{instance="a"}}': "4x10 3x40", f'{WORKERS}_wanted{{instance="a"}}': "4x10 3x40"},  # SIGTTOU
            {
                f'{WORKERS}{{instance="a"}}': "2x50", f'{WORKERS}_wanted{{instance="a"}}': "2x50",
                f'{WORKERS}{{instance="b"}}': "4x50", f'{WORKERS}_wanted{{instance="b"}}': "4x50",
            },
        ],
    ),
    "TowersIndexRecall": (
        370, {"version": "v"}, [recalled(100, 80), recalled(6, 5)], [recalled(100, 95), recalled(4, 3)],
    ),
    "TowersMostlyPopular": (
        45, {}, [{QUERIES: "0+100x60", f'{FALLBACKS}{{reason="popular"}}': "0+60x60"}],
        [
            {QUERIES: "0+100x60", f'{FALLBACKS}{{reason="popular"}}': "0+40x60"},
            {QUERIES: "0+100x60", f'{FALLBACKS}{{reason="exact"}}': "0+60x60"},
        ],
    ),
    "TowersManyScans": (
        45, {}, [{QUERIES: "0+100x60", f'{FALLBACKS}{{reason="exact"}}': "0+20x60"}],
        [
            {QUERIES: "0+100x60", f'{FALLBACKS}{{reason="exact"}}': "0+5x60"},
            {QUERIES: "0+100x60", f'{FALLBACKS}{{reason="popular"}}': "0+20x60"},
        ],
    ),
    "TowersFold": (
        90, {}, [{"towers_items_live": "60000x99"}],
        [{"towers_items_live": "40000x99"}, {"towers_items_live": "0x80 60000x19"}],
    ),
}  # fmt: skip
# A service beside the one of a case: so large that its good figures are nearly all.
LARGE: Series = {
    **{f'{REQUESTS}{{route="{route}",status="200"}}': "0+900000x400" for route in ("/recall", "/events")},
    **latency("/recall", *[900_000] * 4),
    **recalled(900_000, 900_000),
    QUERIES: "0+900000x400",
    f'{ANSWERS}{{role="active",bundle="large",version="large"}}': "1x400",
    "towers_bundles_refused": "0x400",
    "towers_items_live": "0x400",
    STARTS: "4x400",
    WORKERS: "4x400",
    f"{WORKERS}_wanted": "4x400",
}


def of_job(job: str, series: Series) -> Series:
    """The same series with a label for the job, where they have none."""
    labelled = {}
    for selector, values in series.items():
        name, labels = re.fullmatch(r"(\w+)(?:\{(.*)\})?", selector).groups()  # type: ignore[union-attr]
        every = [*([labels] if labels else []), *([] if labels and "job=" in labels else [f'job="{job}"'])]
        labelled[f"{name}{{{','.join(every)}}}"] = values
    return labelled


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        reason = "promtool is not on PATH; Debian's package is called prometheus"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


def judged(
    promtool: str, folder: Path, expectations: list[tuple[str, Series, bool]], more: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs promtool on what it is told to expect: alert, series, whether it fires, with `more` labels than its case."""
    tests: list[dict[str, Any]] = []
    for alert, series, fires in expectations:
        minutes, labels, _, _ = CASES[alert]
        given = [{"series": name, "values": values} for name, values in series.items()]
        expected = {
            "eval_time": f"{minutes}m",
            "alertname": alert,
            "exp_alerts": [{"exp_labels": (more or {}) | labels}] if fires else [],
        }
        tests.append({"interval": "1m", "input_series": given, "alert_rule_test": [expected]})
    file = folder / "tests.yml"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    return subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True, check=False)


def test_every_alert_has_series_on_which_it_fires_and_on_which_it_does_not() -> None:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    assert [rule["alert"] for group in groups for rule in group["rules"]] == list(CASES)
    assert all(firing and quiet for _, _, firing, quiet in CASES.values())


def test_promtool_accepts_the_rules(promtool: str) -> None:
    done = subprocess.run([promtool, "check", "rules", str(RULES)], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and f"{len(CASES)} rules found" in done.stdout, done.stdout + done.stderr


def test_promtool_accepts_the_scrapes_of_the_page_and_the_alert_asks_for_their_job(
    promtool: str, tmp_path: Path
) -> None:
    page = (ROOT / "docs" / "service" / "operations.md").read_text(encoding="utf-8")
    scrapes = re.findall(r"^```yaml\n(scrape_configs:\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(scrapes) == 2
    for number, text in enumerate(scrapes):
        file = tmp_path / f"{number}.yml"
        # Debian's promtool knows nothing of Kubernetes.
        file.write_text(text.replace("kubernetes_sd_configs: [{role: pod}]", "static_configs: []"), encoding="utf-8")
        words = [promtool, "check", "config", "--syntax-only", str(file)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    jobs = {each["job_name"] for text in scrapes for each in yaml.safe_load(text)["scrape_configs"]}
    assert jobs == set(re.findall(r'job="(\w+)"', RULES.read_text(encoding="utf-8")))


def test_each_alert_fires_when_it_should_and_not_otherwise(promtool: str, tmp_path: Path) -> None:
    every = [(alert, series, True) for alert, (_, _, firing, _) in CASES.items() for series in firing]
    every += [(alert, series, False) for alert, (_, _, _, quiet) in CASES.items() for series in quiet]
    done = judged(promtool, tmp_path, every)
    assert done.returncode == 0, done.stdout + done.stderr


def test_of_two_services_only_the_one_that_fails_is_named(promtool: str, tmp_path: Path) -> None:
    every = [
        (alert, of_job("small", series) | of_job("large", LARGE), fires)
        for alert, (_, _, firing, quiet) in CASES.items()
        for series, fires in ((firing[0], True), (quiet[0], False))
    ]
    done = judged(promtool, tmp_path, every, {"job": "small"})
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_promtool_reports_every_expectation_that_is_wrong(promtool: str, tmp_path: Path) -> None:
    wrong = [(alert, series, False) for alert, (_, _, firing, _) in CASES.items() for series in firing]
    wrong += [(alert, series, True) for alert, (_, _, _, quiet) in CASES.items() for series in quiet]
    done = judged(promtool, tmp_path, wrong)
    assert done.returncode == 1 and (done.stdout + done.stderr).count("alertname: ") == len(wrong)
