"""The options of the commands for a running service: `towers keys`, `towers events`, `towers state`, `towers forget`.

The work is in `pipelines.service` and `pipelines.forget`.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from pipelines.cli.exit_codes import sigterm_as_ctrl_c
from pipelines.cli.options import Overwrite, State, bundle_place, example, place, quoted_place
from pipelines.console import free, next_step

File = Annotated[Path, typer.Option(help="The file of keys, which 'towers serve --keys' reads.")]

keys = typer.Typer(help="Make, show and remove the API keys of a service.")
events = typer.Typer(help="Export what users took and were shown while a service ran.")
state = typer.Typer(help="Back up and restore the directory in which a service keeps live changes.")


@keys.command(epilog=example("towers keys add --file keys.toml --name shop --role read"))
def add(
    file: File,
    name: Annotated[str, typer.Option(help="Whose key it is: letters, digits, '.', '_' and '-'.")],
    role: Annotated[Literal["read", "admin"], typer.Option(help="read asks; admin changes items and events, too.")],
) -> None:
    """Create a key and show it once: the file holds only its SHA-256."""
    from pipelines.service import keys as command

    command.add(file, name, role)
    next_step("serve --bundle bundle --keys", file)


@keys.command("list", epilog=example("towers keys list --file keys.toml"))
def show(file: File) -> None:
    """List the names of the keys and what each may do."""
    from pipelines.service import keys as command

    command.show(file)


@keys.command(epilog=example("towers keys remove --file keys.toml --name shop"))
def remove(
    file: File,
    name: Annotated[str, typer.Option(help="The name of the key.")],
) -> None:
    """Remove a key; running services refuse it within a second."""
    from pipelines.service import keys as command

    command.remove(file, name)
    next_step("keys list --file", file)


@events.command("export", epilog=example("towers events export --state state --out events"))
def export(
    state: State,
    out: Annotated[Path, typer.Option(help="The directory to write; 'towers prepare --events' reads it.")],
    overwrite: Overwrite = False,
) -> None:
    """Write events and impressions as Parquet, for training and for figures."""
    from pipelines.service import events as command

    command.run(state, out, overwrite=overwrite)
    next_step("prepare --events", out, "--out", free("dataset"))


@state.command(epilog=example("towers state backup --state state --out backups/2026-11-22"))
def backup(
    state: State,
    out: Annotated[Path, typer.Option(help="The directory to write.")],
    overwrite: Overwrite = False,
) -> None:
    """Copy every change acknowledged so far, while the service goes on."""
    from pipelines.service import state as command

    command.backup(state, out, overwrite=overwrite)
    next_step("state restore --backup", out, "--state restored")


@state.command(epilog=example("towers state restore --backup backups/2026-11-22 --state state"))
def restore(
    backup: Annotated[Path, typer.Option(help="What 'towers state backup' wrote.")],
    state: Annotated[Path, typer.Option(help="The directory to make; it must not exist.")],
) -> None:
    """Make a state directory from a backup, for a service that is started afterwards."""
    from pipelines.service import state as command

    command.restore(backup, state)
    next_step("serve --bundle bundle --state", state)


@state.command(epilog=example("towers state move --state state --to postgresql://towers@db/towers"))
def move(
    state: State,
    to: Annotated[
        Any,
        typer.Option(parser=place, metavar="DIR|URL", help="A directory to make, or a database without live changes."),
    ],
) -> None:
    """Take live changes from a directory to a database, or back, while no service writes to either."""
    from pipelines.service import state as command

    command.move(state, to)
    next_step("serve --bundle bundle --state", shlex.quote(str(to)))


def forget(
    user: Annotated[str, typer.Option(help="The user's id.")],
    state: State = None,
    bundles: Annotated[
        list[str],
        typer.Option(
            "--bundle",
            metavar="PATH|URL",
            help="A bundle, or a directory of bundles, also in a store: s3://bucket/recall; repeatable.",
            show_default=False,
        ),
    ] = [],  # noqa: B006 - Typer copies it
    datasets: Annotated[list[Path], typer.Option("--dataset", help="A data set; repeatable.", show_default=False)] = [],  # noqa: B006
    runs: Annotated[
        list[Path], typer.Option("--run", help="A run: say whether it saw the user; repeatable.", show_default=False)
    ] = [],  # noqa: B006
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
) -> None:
    """Remove a user's id, events and vectors, and say what must be trained again; services may run meanwhile."""
    at = [bundle_place(each) for each in bundles]
    with sigterm_as_ctrl_c():
        from pipelines.forget import forget as command
        from pipelines.forget.run import datasets_of

        found = command.run(user, state=state, bundles=at, datasets=datasets, runs=runs, dry_run=dry_run)
    saw = [] if dry_run else [run for run in runs if run in found]
    if again := [(run, data) for run in saw for data in datasets_of(run, datasets)]:
        run, data = again[0]
        next_step("train --dataset", data, "--config", run / "config.toml", "--overwrite --out", run)
    elif found:
        states = [shlex.quote(str(state))] if state else []
        places: dict[str, Sequence[str | Path]] = {
            "--state": states,
            "--bundle": [quoted_place(each) for each in at],
            "--dataset": datasets,
            "--run": runs,
        }
        words = [word for option, paths in places.items() for path in paths for word in (option, path)]
        next_step("forget --user", shlex.quote(user), *words, *([] if dry_run else ["--dry-run"]))
