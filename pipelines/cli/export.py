"""The options of `towers export`, which exports a run or renews the prior of a bundle, and of `towers index`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from pipelines.cli.options import Bundle, Overwrite
from pipelines.console import next_step


def export(
    out: Annotated[Path, typer.Option(help="The bundle to write.")],
    run: Annotated[Path | None, typer.Option(help="A run, written by 'towers train'.", show_default=False)] = None,
    popular_by: Annotated[
        str | None, typer.Option(help="A user column: unknown users get the popular items of their value.")
    ] = None,
    bundle: Annotated[
        Path | None, typer.Option(help="With --prior-from: the bundle whose prior is renewed.", show_default=False)
    ] = None,
    prior_from: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="Events, as for prepare: renew the prior and the index of --bundle, without training."
        ),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write the bundle that serves a run: both towers, all vectors, a manifest."""
    if (run is None) == (bundle is None) or (bundle is None) != (prior_from is None):
        raise typer.BadParameter("give --run RUN, or both --bundle BUNDLE and --prior-from EVENTS", param_hint="--run")
    if run is not None:
        from pipelines.bundles import export as command

        command.run(run, out, popular_by=popular_by, overwrite=overwrite)
        next_step("index --bundle", out)
    elif bundle is not None and prior_from is not None:
        from pipelines.bundles import renew

        if popular_by is not None:
            raise typer.BadParameter("is of a run; the popular items of --bundle stay", param_hint="--popular-by")
        renew.run(bundle, prior_from, out, overwrite=overwrite)
        next_step("serve --bundle", out)


def index(
    bundle: Bundle,
    target_recall: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Recall against exact search to tune for.")
    ] = 0.98,
    target_k: Annotated[int, typer.Option("--target-k", min=1, help="How many of the best that recall counts.")] = 100,
    kind: Annotated[
        Literal["auto", "exact", "scann"], typer.Option(help="The index; auto takes exact search for small catalogues.")
    ] = "auto",
) -> None:
    """Build the bundle's index, tuned until its measured recall reaches the target."""
    from pipelines.bundles import build_index as command

    command.run(bundle, target_recall=target_recall, target_k=target_k, kind=kind)
    next_step("serve --bundle", bundle)
