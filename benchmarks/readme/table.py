"""docs/project/measured.md, the highlights and the plot of the README, out of the committed results.

`python -m benchmarks.readme.table` writes them, and below the tables of other pages where their figures come from. A
figure whose code has changed since it was measured gets a dagger.
"""

from typing import Any

from benchmarks.harness import pages
from benchmarks.harness.machine import ROOT, load, origin, results
from benchmarks.harness.measured_code import OLD, is_old
from benchmarks.readme import baseline_rows, quality_rows, serving_rows, training_rows

README, PAGE = ROOT / "README.md", ROOT / "docs" / "project" / "measured.md"
# The rows of the README, by how they begin.
HIGHLIGHTS = (
    "Gowalla, ids as sets, d",
    "Gowalla, ids and their order",
    "MovieLens-1M",
    "Beauty, 5-core",
    "MovieLens-100k, five cut-offs in time, the default recipe",
    "`towers tune` in 60 min, Gowalla, ",
    "Filters",
    "One worker on one core",
    "Overload, twice",
    "Index of",
)


def measured(*, marks: bool = True) -> str:
    """Every row, as Markdown; without `marks` no figure is said to be old."""
    lines = ["| measured | result | command | date, commit, machine |", "|---|---|---|---|"]
    lines += [
        f"| {old}{what} | {figure} | `python -m benchmarks.{command}` | {origin(result)} |"
        for old, result, what, figure, command in _rows(marks)
    ]
    note = (
        "Raw results, with the versions of the libraries, are in `benchmarks/*/results/`. "
        "± is the standard deviation over seeds; (a to b) is a 95 % bootstrap interval over users, "
        'of `task = "similarity"` over films.'
    )
    return "\n".join([*lines, "", note])


def highlights(*, marks: bool = True) -> str:
    """Ten rows, with how many goals were missed, and the plot; without `marks` no figure is said to be old."""
    rows = [
        f"- {old}{what}: {figure}{_number(missed(result))}"
        for old, result, what, figure, _ in _rows(marks)
        if what.startswith(HIGHLIGHTS)
    ]
    return "\n".join([*rows, "", "![Recall and speed beside others](docs/plots/measured.svg)"])


def missed(result: dict[str, Any]) -> list[str]:
    """The goals of a result that were not reached."""
    return [name for name, reached in result.get("goals", {}).items() if not reached]


def with_block(text: str, name: str, block: str) -> str:
    """The text of a page with `block` between the marks of its name."""
    begin = f"<!-- {name}: python -m benchmarks.readme.table -->\n"
    return pages.with_block(text, begin, f"{block}\n", f"<!-- /{name} -->")


def _rows(marks: bool) -> list[tuple[str, dict[str, Any], str, str, str]]:
    """The mark, the result, and what `rows_of` says of it: what, figure, command; last the goals that were missed."""
    rows, paths = [], results()
    every = quality_rows.ROWS | baseline_rows.ROWS | serving_rows.ROWS | training_rows.ROWS
    for name, rows_of in every.items():
        if name in paths:
            old = OLD if marks and is_old(name) else ""
            result = load(name)
            rows += [(old, result, *row) for row in rows_of(result)]
            if goals := missed(result):
                rows.append((old, result, "… goals missed", "; ".join(goals), rows[-1][-1]))
    return rows


def _number(goals: list[str]) -> str:
    return f"; {len(goals)} goal{'s' * (len(goals) > 1)} missed" if goals else ""


def write() -> None:
    """Writes both pages, the sources in all of them, and the plot."""
    # Only now: drawing needs matplotlib, and the test of the pages does not.
    from benchmarks.readme.plot import draw

    PAGE.write_text(with_block(PAGE.read_text(encoding="utf-8"), "measured", measured()), encoding="utf-8")
    README.write_text(with_block(README.read_text(encoding="utf-8"), "highlights", highlights()), encoding="utf-8")
    for page in pages.DOCS.rglob("*.md"):
        page.write_text(pages.with_sources(page.read_text(encoding="utf-8")), encoding="utf-8")
    draw()


if __name__ == "__main__":
    write()
