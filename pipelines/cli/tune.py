"""The options of `towers tune`; the work is in `pipelines.tuning.tune`."""

from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.exit_codes import sigterm_as_ctrl_c
from pipelines.cli.options import Dataset, Overrides, Overwrite
from pipelines.console import next_step


def tune(
    dataset: Dataset,
    out: Annotated[Path, typer.Option(help="The recipe to write; a table of the trials comes beside it.")],
    budget_minutes: Annotated[
        float | None, typer.Option(min=0.1, help="Minutes in all; 60 where --trials is not given.", show_default=False)
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum number of trials; without --budget-minutes the same seed gives the same recipe.",
            show_default=False,
        ),
    ] = None,
    train_minutes: Annotated[float, typer.Option(min=0.1, help="Minutes that the recipe may train.")] = 15.0,
    config: Annotated[Path | None, typer.Option(help="A recipe; what it names is fixed, the rest is searched.")] = None,
    overrides: Overrides = [],  # noqa: B006
    metric: Annotated[
        str | None, typer.Option(help="What validation maximises; recall@20, or the recipe's.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the trainings and of what is tried.")] = 0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard an unfinished search.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Search for the recipe that suits a data set, by its validation events alone."""
    from pipelines.tuning import tune as command
    from towers.config.recipe import load_config

    if overrides and config is None:
        raise typer.BadParameter("needs the recipe that it overrides; add --config RECIPE.toml", param_hint="--set")
    with sigterm_as_ctrl_c():
        rows = command.run(
            dataset,
            out,
            config=load_config(config, overrides) if config else None,
            budget_minutes=budget_minutes,
            trials=trials,
            train_minutes=train_minutes,
            metric=metric,
            seed=seed,
            resume=not fresh,
            overwrite=overwrite,
        )
    typer.echo(command.describe(rows))
    next_step("train --dataset", dataset, "--config", out, "--out run")
