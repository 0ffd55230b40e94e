"""The options of `towers report`, and of `towers track`, which tells trackers of it later."""

from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.options import Bundle, Dataset, Overwrite, Track


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
    track: Track = None,
    overwrite: Overwrite = False,
) -> None:
    """Measure a bundle on the data set's test events, beside its baselines."""
    from pipelines.evaluation import report as command
    from pipelines.launch import tracking

    tracking.refuse_unready(track)
    command.run(bundle, dataset, out, slices=slices or (), user_ids=user_ids, overwrite=overwrite)
    tracking.run(report=out, bundle=bundle, tracker=track)
    if open_ and (page := out / "report.html").exists():
        typer.launch(str(page))


def track(
    run: Annotated[Path | None, typer.Option(help="A run, written by 'towers train'.", show_default=False)] = None,
    report: Annotated[Path | None, typer.Option(help="What 'towers report' wrote.", show_default=False)] = None,
    bundle: Annotated[
        Path | None, typer.Option(help="With --report: its bundle, which adds the recipe.", show_default=False)
    ] = None,
    gate: Annotated[Path | None, typer.Option(help="What a gate wrote: a JSON file.", show_default=False)] = None,
    tracker: Track = None,
) -> int:
    """Tell TensorBoard and MLflow of an output that is already there; exit code 1 if one of them fails."""
    from pipelines.launch import tracking as command

    return 1 if command.run(run=run, report=report, gate=gate, bundle=bundle, tracker=tracker) else 0
