"""The command line `towers`: arguments and options only; each command's work is in the module of its name.

Each command calls a `run` of `pipelines` and ends with an exit code (see `pipelines.cli.exit_codes`). It imports its
module only when called, so `towers --help` is quick and `towers serve` loads neither `towers` nor TFRS.
"""

import io
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal

import typer

from pipelines.cli import bundles, operation
from pipelines.cli.exit_codes import KEPT, USER_MISTAKE, exit_code, sigterm_as_ctrl_c
from pipelines.cli.export import embed, export, index, recall
from pipelines.cli.launch import compare, daily, gate, track
from pipelines.cli.options import Format, Overrides, Overwrite, Recipe, example, set_again
from pipelines.cli.report import report
from pipelines.cli.serve import look, serve
from pipelines.cli.training import train, tune
from pipelines.console import free, is_text, next_step, say

app = typer.Typer(
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(bundles.app, name="bundles")
app.add_typer(operation.keys, name="keys")
app.add_typer(operation.events, name="events")
app.add_typer(operation.state, name="state")
app.command(epilog=example("towers forget --user 42 --state state --bundle bundles --dataset dataset --dry-run"))(
    operation.forget
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"towers {version('towers-recall')}")
        raise typer.Exit


@app.callback()
def towers(
    context: typer.Context,
    wanted: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Two-tower recall, end to end: prepare, train, export, index, report, serve."""
    if context.invoked_subcommand != "serve" or not os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        # What imports the metrics of the service would leave files among those of one that runs; if the variable is
        # there but empty, in the working directory.
        os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)


@app.command(epilog=example("towers synth --out world --users 10000 --items 20000"))
def synth(
    out: Annotated[Path, typer.Option(help="The directory to write: events, items and users as Parquet, the truth.")],
    users: Annotated[int, typer.Option(min=1, help="Number of users.")] = 6_000,
    items: Annotated[int, typer.Option(min=1, help="Number of items, 1,000 to 10,000,000.")] = 21_000,
    events: Annotated[int, typer.Option(min=1, help="Number of events, about.")] = 480_000,
    seed: Annotated[int, typer.Option(min=0, help="The same seed writes the same world.")] = 0,
    fashion: Annotated[float, typer.Option(min=0, max=5, help="How much items come and go; 0: not at all.")] = 0.0,
    overwrite: Overwrite = False,
) -> None:
    """Write a synthetic world whose best attainable recall is known."""
    from pipelines.ingest.synthetic import synth as command

    command.run(out, users=users, items=items, events=events, seed=seed, fashion=fashion, overwrite=overwrite)
    next_step("prepare --events", out, "--out", free("dataset"))


@app.command(epilog=example("towers check --config default --dataset dataset"))
def check(
    config: Recipe,
    dataset: Annotated[Path | None, typer.Option(help="Check the recipe against this data set, too.")] = None,
    overrides: Overrides = [],  # noqa: B006 - Typer copies it
) -> None:
    """Find everything that can be wrong with a recipe before a long run."""
    from pipelines.training import check as command
    from towers.config.recipe import RECIPES, load_config

    recipe = load_config(config, overrides)
    typer.echo(command.describe(command.run(recipe, dataset), dataset))
    if recipe.task == "retrieval" and "model" not in recipe.model_fields_set:
        plain = "the recipe has no [model]: it trains with the plainest settings, not with those of `default`"
        say(f"note: {plain}; start from a copy of {RECIPES / 'default.toml'}")
    if dataset is not None:
        next_step("train --dataset", dataset, "--config", config, *set_again(overrides), "--out", free("run"))


@app.command(epilog=example("towers losses"))
def losses() -> None:
    """List every loss with its formula, options and paper."""
    from pipelines.cli import choices as command

    typer.echo(command.run("loss"))


@app.command(epilog=example("towers samplers"))
def samplers() -> None:
    """List every sampler with its formula, options and paper."""
    from pipelines.cli import choices as command

    typer.echo(command.run("sampler"))


@app.command(epilog=example("towers prepare --events u.data --format movielens --out dataset"))
def prepare(
    events: Annotated[
        str, typer.Option(metavar="PATH", help="The events: a file or a folder, or the URL of one (s3://, gs://).")
    ],
    out: Annotated[Path, typer.Option(help="The data set to write.")],
    items: Annotated[str | None, typer.Option(metavar="PATH", help="Attributes of the items: a file.")] = None,
    users: Annotated[str | None, typer.Option(metavar="PATH", help="Attributes of the users: a file.")] = None,
    format: Format = "auto",
    config: Annotated[
        Path | None, typer.Option(help="A recipe, as for train; its data section maps columns and splits.")
    ] = None,
    overrides: Overrides = [],  # noqa: B006
    on_bad_rows: Annotated[
        Literal["error", "skip"], typer.Option(help="Stop at a bad row, or leave it out and list it in rejects.csv.")
    ] = "error",
    overwrite: Overwrite = False,
) -> None:
    """Turn raw events, items and users into a data set with its splits."""
    from pipelines.ingest import prepare as command
    from towers.config.recipe import Config, load_config

    if overrides and config is None:
        raise typer.BadParameter("needs the recipe that it overrides; add --config RECIPE.toml", param_hint="--set")
    data = (load_config(config, overrides) if config else Config()).data
    with sigterm_as_ctrl_c():  # it removes its copies of packed and remote files
        command.run(
            data, events, out, items=items, users=users, format=format, on_bad_rows=on_bad_rows, overwrite=overwrite
        )
    next_step("train --dataset", out, "--config", config or "default", *set_again(overrides), "--out", free("run"))


# The other commands: their examples, in the order of the help.
COMMANDS: dict[Callable[..., int | None], tuple[str, ...]] = {
    train: (
        "towers train --dataset dataset --config default --out run",
        "towers train --dataset dataset --config my.toml --set train.epochs=3 --out r",
        "towers train --dataset dataset --config my.toml --workers 2 --out run",
    ),
    tune: (
        "towers tune --dataset dataset --budget-minutes 60 --out tuned.toml",
        "towers tune --dataset dataset --config my.toml --trials 20 --out tuned.toml",
    ),
    export: (
        "towers export --run run --out bundle",
        "towers export --bundle bundle --prior-from events.csv --out renewed",
    ),
    index: ("towers index --bundle bundle --target-recall 0.98",),
    report: ("towers report --bundle bundle --dataset dataset --out report --slice country",),
    compare: (
        "towers compare bundles/old bundles/new --dataset dataset --out comparison",
        "towers compare report-old report-new --metric ndcg@20 --out comparison",
    ),
    gate: ("towers gate gate.toml --candidate bundle --report report",),
    daily: ("towers daily daily.toml",),
    track: ("towers track --run run --track mlflow",),
    recall: (
        "towers recall --bundle bundle --k 100 --out recall.parquet",
        "towers recall --bundle bundle --k 100 --out recalled --shard 2/8",
    ),
    embed: (
        "towers embed --bundle bundle --users users.parquet --out vectors.parquet",
        "towers embed --bundle bundle --items items.csv --out vectors --shard 2/8",
    ),
    serve: (
        "towers serve --bundle bundle --port 8000",
        "towers serve --bundle bundles --state state --workers 4 --keys keys.toml",
        "towers serve --config serve.toml",
    ),
    look: ("towers look --bundle bundle --dataset dataset", "towers look --bundle old --bundle new --no-open"),
}
for command, lines in COMMANDS.items():
    app.command(epilog=example(*lines))(command)


@app.command(
    epilog=example("towers query --bundle bundle --user 42", "towers query --url http://127.0.0.1:8000 --user 42")
)
def query(
    user: Annotated[str, typer.Option(help="The user's id.")],
    bundle: Annotated[Path | None, typer.Option(help="Ask this bundle; with --url it gives only the titles.")] = None,
    url: Annotated[str | None, typer.Option(help="Ask the service at this address.")] = None,
    k: Annotated[int, typer.Option("--k", min=1, help="Number of items; of a bundle at most 1,000.")] = 10,
) -> None:
    """Show what one user is recommended, from a bundle or a running service.

    A service that asks for keys gets the one in the variable TOWERS_API_KEY.
    """
    from pipelines.service import query as command

    if bundle is None and url is None:
        raise typer.BadParameter("give one of them", param_hint="--bundle / --url")
    command.run(user, bundle=bundle, url=url, k=k)


@app.command(epilog=example("towers demo"))
def demo(
    out: Annotated[Path, typer.Option(help="The directory to work in; an earlier demo's output is replaced.")] = Path(
        "demo"
    ),
) -> None:
    """Run the whole path on a synthetic world and show what comes out."""
    from pipelines.cli import demo as command

    command.run(out)


@app.command(epilog=example("towers doctor"))
def doctor() -> int:
    """Show what works on this machine and how to fix what does not; exit code 1 if anything does not."""
    from pipelines.cli import doctor as command

    return 1 if command.run() else 0


def main() -> None:
    """The entry point: turns every way a command can end into an exit code and at most one line."""
    if sys.stderr is None:  # closed by who started this: progress has to go somewhere
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - until the end
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # ids and titles may hold what a terminal's encoding does not
    words = sys.argv[1:] or ["--help"]
    if wrong := [word for word in words if not is_text(word)]:
        say(f"error: the argument {os.fsencode(wrong[0])!r} is not UTF-8")
        sys.exit(USER_MISTAKE)
    kept = KEPT.get(words[0], "no unfinished output is left")
    # Typer parses arguments with pydantic, which may be what is broken.
    command = doctor if words == ["doctor"] else lambda: app(words, prog_name="towers", standalone_mode=False)
    sys.exit(exit_code(command, kept=kept))
