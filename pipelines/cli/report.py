"""The options of `towers report`."""

from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.options import Bundle, Dataset, Overwrite
from pipelines.console import next_step


def report(
    bundle: Bundle,
    dataset: Dataset,
    out: Annotated[
        Path,
        typer.Option(help="The directory to write: report.html, .md and .json, and the figures of each user or item."),
    ],
    slices: Annotated[
        list[str] | None,
        typer.Option("--slice", metavar="COLUMN", help="Slice by a column of users, items or events, too; repeatable."),
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open report.html in the browser.")] = False,
    user_ids: Annotated[bool, typer.Option("--user-ids", help="Name the users in per_user.parquet.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Measure a bundle on the data set's test events, beside its baselines."""
    from pipelines.evaluation import report as command
    from pipelines.rankers.verdict import MAYBE_WORSE, WORSE

    content = command.run(bundle, dataset, out, slices=slices or (), user_ids=user_ids, overwrite=overwrite)
    if open_ and (page := out / "report.html").exists():
        typer.launch(str(page))
    if content.get("verdict", {}).get("conclusion") in (MAYBE_WORSE, WORSE):
        next_step("tune --dataset", dataset, "--budget-minutes 20 --out tuned.toml")
    else:
        next_step("serve --bundle", bundle)
