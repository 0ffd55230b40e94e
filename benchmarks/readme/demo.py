"""The verdict that docs/evaluation/report.md quotes, out of the report of a demo.

`make demo`, then `python -m benchmarks.readme.demo` writes it; another directory of a demo may be named.
"""

import json
import sys
from pathlib import Path

from benchmarks.harness.machine import ROOT
from benchmarks.harness.pages import with_block

PAGE = ROOT / "docs" / "evaluation" / "report.md"
BEGIN, END = "<!-- demo: python -m benchmarks.readme.demo -->\n", "<!-- /demo -->"


def with_verdict(text: str, report: Path) -> str:
    """Returns the text of the page with the first line of a report, REPORT/report.json, between its marks."""
    verdict = json.loads((report / "report.json").read_text(encoding="utf-8"))["verdict"]["text"]
    return with_block(text, BEGIN, f"```text\n{verdict}\n```\n", END)


if __name__ == "__main__":
    demo = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "demo"
    PAGE.write_text(with_verdict(PAGE.read_text(encoding="utf-8"), demo / "report"), encoding="utf-8")
