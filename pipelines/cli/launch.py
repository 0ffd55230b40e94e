"""The options of `towers compare`, `gate`, `track`, `daily`: what goes live; the work is in `pipelines.launch`."""

from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.exit_codes import sigterm_as_ctrl_c
from pipelines.cli.options import Overwrite, Track
from pipelines.console import next_step


def compare(
    sides: Annotated[
        list[str],
        typer.Argument(
            metavar="A B…",
            help="Bundles or reports, the baseline first; several seeds of one recipe joined by commas.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="The directory to write: compare.html, .md and .json.")],
    dataset: Annotated[
        Path | None, typer.Option(help="The data set on whose test events bundles are measured.", show_default=False)
    ] = None,
    metric: Annotated[str | None, typer.Option(help="The metric that decides; recall@20.", show_default=False)] = None,
    family: Annotated[
        str | None,
        typer.Option(
            help="Other metrics, separated by commas; NDCG at the same k and recall at greater ones.",
            show_default=False,
        ),
    ] = None,
    slices: Annotated[
        list[str] | None,
        typer.Option("--slice", metavar="COLUMN", help="Slice by a column of users, items or events, too; repeatable."),
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open compare.html in the browser.")] = False,
    user_ids: Annotated[bool, typer.Option("--user-ids", help="Name the users who change most.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Say which of several models to ship, and whether the difference is real."""
    from pipelines.launch import compare as command

    command.run(
        sides,
        out,
        dataset=dataset,
        metric=metric,
        family=family,
        slices=slices or (),
        user_ids=user_ids,
        overwrite=overwrite,
    )
    if open_:
        typer.launch(str(out / "compare.html"))


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
    track: Track = None,
) -> None:
    """Judge by rules whether a bundle may go live, and bless it if it may; exit code 3 if it may not."""
    from pipelines.launch import gate as command

    command.run(rules, candidate, baseline=baseline, report=report, baseline_report=baseline_report, track=track)
    place = candidate.resolve()
    root = place.parent if candidate.is_symlink() or not candidate.name else candidate.parent
    next_step("bundles activate", Path(place.name), "--root", root)


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

    failed = command.run(run=run, report=report, gate=gate, bundle=bundle, tracker=tracker, alone=True)
    return 1 if failed else 0


def daily(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The file of settings.")],
) -> None:
    """Take today's events to the bundle that answers: prepare, train, export, index, report, gate, activate."""
    with sigterm_as_ctrl_c():
        from pipelines.launch.daily import daily as command

        command.run(config)
