"""The options of `towers gate`; the work is in `pipelines.launch.gate`."""

from pathlib import Path
from typing import Annotated

import typer


def gate(
    rules: Annotated[Path, typer.Argument(metavar="RULES", help="The file of rules.")],
    candidate: Annotated[Path, typer.Option(help="The bundle to judge.")],
    report: Annotated[
        Path | None, typer.Option(help="The candidate's report, by 'towers report'.", show_default=False)
    ] = None,
    baseline: Annotated[Path | None, typer.Option(help="The bundle that it would replace.", show_default=False)] = None,
    baseline_report: Annotated[
        Path | None, typer.Option(help="The baseline's report, on the same data set.", show_default=False)
    ] = None,
) -> None:
    """Judge by rules whether a bundle may go live, and bless it if it may; exit code 3 if it may not."""
    from pipelines.launch import gate as command

    command.run(rules, candidate, baseline=baseline, report=report, baseline_report=baseline_report)
