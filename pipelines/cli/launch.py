"""The options of the commands that decide what goes live: `towers compare`; the work is in `pipelines.launch`."""

from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.options import Overwrite, example


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


COMMANDS = {
    compare: example(
        "towers compare bundles/old bundles/new --dataset dataset --out comparison",
        "towers compare report-old report-new --metric ndcg@20 --out comparison",
    ),
}
