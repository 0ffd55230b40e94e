"""Blocks of a page that a program writes, between two marks, and the line that says where figures come from."""

import re

from benchmarks.harness.machine import ROOT, load, origin, results
from benchmarks.harness.measured_code import OLD, is_old

DOCS = ROOT / "docs"
SOURCE = re.compile(r"<!-- source: (?P<name>\w+) -->\n.*?<!-- /source -->", re.DOTALL)


def with_block(text: str, begin: str, block: str, end: str) -> str:
    """The text of a page with `block` between its only mark `begin` and the first `end` after that."""
    before, rest = text.split(begin)
    return f"{before}{begin}{block}{end}{rest.split(end, 1)[1]}"


def source(*names: str, marks: bool = True) -> str:
    """When and where results were measured, and their files.

    Args:
        names: of the results.
        marks: begin with a dagger if the code of one has changed since.
    """
    old = OLD if marks and any(map(is_old, names)) else ""
    return old + "; ".join(f"{origin(load(name))}: `{results()[name].relative_to(ROOT)}`" for name in names)


def with_sources(text: str, *, marks: bool = True) -> str:
    """The text of a page with the `source` of each table that no program writes, between marks below it."""

    def block(mark: re.Match[str]) -> str:
        return f"<!-- source: {mark['name']} -->\n{source(mark['name'], marks=marks)}\n<!-- /source -->"

    return SOURCE.sub(block, text)
