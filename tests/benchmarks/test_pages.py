"""The tables of docs/service/index.md and filters.md, and the sources in all pages, are those of the results."""

from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.harness import pages
from benchmarks.harness.machine import ROOT, load, origin
from benchmarks.harness.measured_code import OLD
from benchmarks.harness.pages import DOCS, source, with_sources
from benchmarks.levers import ease, gowalla, item_start, ml_1m, sequences
from benchmarks.levers.changes import with_table
from benchmarks.search.page import FILTERS, PAGES, filters, page_with_tables
from towers.config.recipe import load_config


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_tables_are_those_of_the_results(page: Path) -> None:
    text = page.read_text(encoding="utf-8").replace(OLD, "")  # which of them are old changes with every commit
    assert page_with_tables(text, PAGES[page], marks=False) == text, "run python -m benchmarks.search.page"


@pytest.mark.parametrize("levers", [ease, gowalla, item_start, ml_1m, sequences], ids=lambda levers: levers.NAME)
def test_the_table_of_levers_is_that_of_the_result(levers: ModuleType) -> None:
    text = levers.PAGE.read_text(encoding="utf-8")
    assert with_table(text, levers.NAME, levers.METRIC) == text, "the benchmark writes it"


@pytest.mark.parametrize("lever", [*ml_1m.LEVERS.values(), ease.SETTINGS], ids=[*ml_1m.LEVERS, "ease"])
def test_the_settings_of_each_lever_make_a_recipe(lever: tuple[str, ...]) -> None:
    config = load_config(ROOT / ml_1m.RECIPE, lever)
    assert config.optimizer.name == "adam"
    assert not config.loss.of_users


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.stem)
def test_each_source_is_that_of_its_result(page: Path) -> None:
    text = page.read_text(encoding="utf-8").replace(OLD, "")
    assert with_sources(text, marks=False) == text, "run python -m benchmarks.readme.table"


def test_a_source_names_an_old_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "is_old", lambda name: name == "knobs")
    assert [source(name).startswith(OLD) for name in ("knobs", "timed")] == [True, False]
    marked = "| 1 |\n\n<!-- source: timed -->\nold\n<!-- /source -->\n\nnext"
    assert with_sources(marked) == marked.replace("old", source("timed"))


def test_a_table_says_when_and_where_it_was_measured() -> None:
    result = load("filters")
    where = f"{result['date'][:10]}, {result['commit'][:7]}, 2 x AMD EPYC, 24 GiB"
    assert origin(result) == where
    source = f"{where}: `benchmarks/search/results/filters.json`"
    assert f"\n{source}\n" in FILTERS.read_text(encoding="utf-8").replace(OLD, "")


def test_filters_have_a_row_for_each_kind_and_a_column_for_each_share() -> None:
    result = {
        "filters": {
            f"{kind}, {share}": {"recall": recall, "p50_ms": ms, "p95_ms": 10 * ms}
            for kind, recall, ms in (("independent", 0.5, 1.375), ("cluster", 0.25, 20.1), ("direction", 1.0, 0.333))
            for share in ("50.0%", "0.1%")
        },
        "no_filter": {"recall": 0.98295, "p50_ms": 0.166, "p95_ms": 0.204},
    }
    assert filters(result).splitlines() == [
        "| filter | 50 % pass | 0.1 % pass |",
        "|---|---|---|",
        "| independent of the vectors | 0.500, 1.4 / 14 ms | 0.500, 1.4 / 14 ms |",
        "| by cluster | 0.250, 20 / 200 ms | 0.250, 20 / 200 ms |",
        "| by a direction of space | 1.000, 0.33 / 3.3 ms | 1.000, 0.33 / 3.3 ms |",
        "| no filter | 0.983, 0.17 / 0.2 ms | |",
    ]
