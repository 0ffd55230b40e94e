"""The options of `towers export` and `index`, which make a bundle, and of `recall` and `embed`, which write from it."""

import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from pipelines.cli.exit_codes import sigterm_as_ctrl_c
from pipelines.cli.options import Bundle, Format, Overwrite, Shard
from pipelines.console import next_step


def export(
    out: Annotated[Path, typer.Option(help="The bundle to write.")],
    run: Annotated[Path | None, typer.Option(help="A run, written by 'towers train'.", show_default=False)] = None,
    dataset: Annotated[
        Path | None, typer.Option(help="The data set of --run, if it is not where the run expects it.")
    ] = None,
    vectors: Annotated[
        Literal["float32", "float16", "int8"],
        typer.Option(help="How item vectors are stored: float16 takes half the memory, int8 a quarter; costs recall."),
    ] = "float32",
    dimension: Annotated[
        int | None,
        typer.Option(min=1, help="Only the first numbers of each vector: a width that loss.matryoshka trained."),
    ] = None,
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
    format: Format = "auto",
    overwrite: Overwrite = False,
) -> None:
    """Write the bundle that serves a run: both towers, all vectors, a manifest."""
    if (run is None) == (bundle is None) or (bundle is None) != (prior_from is None):
        raise typer.BadParameter("give --run RUN, or both --bundle BUNDLE and --prior-from EVENTS", param_hint="--run")
    if run is not None:
        from pipelines.bundles import export as command

        if format != "auto":
            raise typer.BadParameter(
                "needs --prior-from; the events of --run are in its data set", param_hint="--format"
            )
        command.run(
            run,
            out,
            dataset_path=dataset,
            vectors=vectors,
            dimension=dimension,
            popular_by=popular_by,
            overwrite=overwrite,
        )
        next_step("index --bundle", out)
    elif bundle is not None and prior_from is not None:
        from pipelines.bundles import renew

        if popular_by is not None:
            raise typer.BadParameter("needs --run; the popular items of --bundle stay", param_hint="--popular-by")
        if dataset is not None:
            raise typer.BadParameter("needs --run; the events of --bundle are in --prior-from", param_hint="--dataset")
        for option, given in (("--vectors", vectors != "float32"), ("--dimension", dimension is not None)):
            if given:
                raise typer.BadParameter("needs --run; the vectors of --bundle stay as they are", param_hint=option)
        with sigterm_as_ctrl_c():  # it removes its copies of packed and remote files
            renew.run(bundle, prior_from, out, format=format, overwrite=overwrite)
        next_step("serve --bundle", out)


def index(
    bundle: Bundle,
    target_recall: Annotated[
        float, typer.Option(min=0.5, max=1.0, help="Recall against exact search to tune for.")
    ] = 0.98,
    target_k: Annotated[int, typer.Option("--target-k", min=1, help="How many of the best that recall counts.")] = 100,
    kind: Annotated[
        Literal["auto", "exact", "scann"], typer.Option(help="The index; auto takes exact search for small catalogues.")
    ] = "auto",
) -> None:
    """Build the bundle's index, tuned until its measured recall reaches the target."""
    from pipelines.bundles import build_index as command
    from serving.bundle.active import ACTIVE

    command.run(bundle, target_recall=target_recall, target_k=target_k, kind=kind)
    if (bundle.parent / ACTIVE).exists():
        next_step("bundles activate", Path(bundle.name), "--root", bundle.parent)
    else:
        next_step("serve --bundle", bundle)


def recall(
    bundle: Bundle,
    k: Annotated[int, typer.Option("--k", min=1, help="Items for each user.")],
    out: Annotated[Path, typer.Option(help="The Parquet file to write; with --shard the folder of all shards.")],
    users: Annotated[
        str | None, typer.Option(metavar="PATH", help="Only these users: a file with a column user_id, or its URL.")
    ] = None,
    shard: Shard = None,
    overwrite: Overwrite = False,
) -> None:
    """Recall for every user at once, resumable and in bounded memory."""
    from pipelines.bundles.bulk import recall as command

    with sigterm_as_ctrl_c():  # it removes its copies of packed and remote files
        command.run(bundle, k, out, users=users, shard=shard, overwrite=overwrite)
    if user := command.first_user(out):
        next_step("query --bundle", bundle, "--user", shlex.quote(user))


def embed(
    bundle: Bundle,
    out: Annotated[Path, typer.Option(help="The Parquet file to write; with --shard the folder of all shards.")],
    users: Annotated[
        str | None, typer.Option(metavar="PATH", help="Features of users: a file with user_id, or its URL.")
    ] = None,
    items: Annotated[
        str | None, typer.Option(metavar="PATH", help="Features of items: a file with item_id, or its URL.")
    ] = None,
    shard: Shard = None,
    overwrite: Overwrite = False,
) -> None:
    """Encode users or items from a file of raw features, resumable and in bounded memory."""
    from pipelines.bundles.bulk import embed as command

    if (users is None) == (items is None):
        raise typer.BadParameter("give one of them", param_hint="--users / --items")
    with sigterm_as_ctrl_c():  # it removes its copies of packed and remote files
        command.run(bundle, out, users=users, items=items, shard=shard, overwrite=overwrite)
    next_step("serve --bundle", bundle)
