"""docs/model/losses.md: its tables and plots, out of the committed results; `parts --docs` writes them.

In: results/losses_*.json. Out: the page with each table between its marks, and docs/plots/losses_*.svg.
"""

import importlib
import re
from functools import partial
from pathlib import Path

from benchmarks.harness.machine import ROOT, load, results
from benchmarks.harness.pages import source
from benchmarks.harness.plots import PLOTS

PAGE = ROOT / "docs" / "model" / "losses.md"
OWN, DATA = "world_tables", "data_tables"
# Name of a table in the page -> module, function, and the results it takes.
TABLES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "known": (OWN, "known", ("losses_known",)),
    "nce": (OWN, "quality", ("losses_nce", "losses_nce_speed")),
    "nce-speed": (OWN, "speed", ("losses_nce_speed",)),
    "q": (OWN, "q", ("losses_q",)),
    "ml-100k": (DATA, "matrix", ("losses_ml_100k",)),
    "ml-100k-chosen": (DATA, "chosen", ("losses_ml_100k",)),
    "gowalla": (DATA, "large", ("losses_gowalla",)),
    "logq": (DATA, "strengths", ("losses_logq",)),
}
# Name of a plot's file -> function of `benchmarks.losses.world_plots`, and the results it takes.
DRAWN: dict[str, tuple[str, tuple[str, ...]]] = {
    "losses_known": ("known", ("losses_known",)),
    "losses_nce": ("nce", ("losses_nce", "losses_nce_speed")),
    "losses_q": ("q", ("losses_q",)),
}
BLOCK = re.compile(r"<!-- table: (?P<name>[\w-]+) -->\n.*?<!-- /table -->", re.DOTALL)


def page_with_tables(text: str, *, marks: bool = True) -> str:
    """The page's text with each table between its marks, ``<!-- table: NAME -->`` and ``<!-- /table -->``.

    Raises:
        KeyError: a mark names a table that is none of `TABLES`.
    """
    return BLOCK.sub(partial(_block, marks=marks), text)


def _block(mark: re.Match[str], *, marks: bool) -> str:
    return f"<!-- table: {mark['name']} -->\n{table(mark['name'], marks=marks)}\n<!-- /table -->"


def table(name: str, *, marks: bool = True) -> str:
    """One table, when and where its figures were measured and, unless `marks` is False, whether they are old."""
    module, function, names = TABLES[name]
    # Imported here: the tables of real data load TensorFlow.
    rows: str = getattr(importlib.import_module(f"benchmarks.losses.{module}"), function)(*map(load, names))
    return f"{rows}\n\n{source(*names, marks=marks)}"


def draw(folder: Path = PLOTS) -> None:
    """Draws every plot of the synthetic worlds whose results are there."""
    from benchmarks.losses import world_plots

    for function, names in DRAWN.values():
        if set(names) <= results().keys():
            getattr(world_plots, function)(*(load(each) for each in names), folder=folder)


def write_page() -> None:
    """Draws the plots and writes the tables into the page."""
    draw()
    PAGE.write_text(page_with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
