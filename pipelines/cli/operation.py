"""The options of `towers keys`: add, list, remove; the work is in `pipelines.service.keys`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from pipelines.cli.options import example

File = Annotated[Path, typer.Option(help="The file of keys, which 'towers serve --keys' reads.")]

app = typer.Typer(help="Make, show and remove the API keys of a service.")


@app.command(epilog=example("towers keys add --file keys.toml --name shop --role read"))
def add(
    file: File,
    name: Annotated[str, typer.Option(help="Whose key it is: letters, digits, '.', '_' and '-'.")],
    role: Annotated[Literal["read", "admin"], typer.Option(help="read asks; admin changes items and events, too.")],
) -> None:
    """Make a key and show it, this once: the file holds only its SHA-256."""
    from pipelines.service import keys as command

    command.add(file, name, role)


@app.command("list", epilog=example("towers keys list --file keys.toml"))
def show(file: File) -> None:
    """List the names of the keys and what each may do."""
    from pipelines.service import keys as command

    command.show(file)


@app.command(epilog=example("towers keys remove --file keys.toml --name shop"))
def remove(
    file: File,
    name: Annotated[str, typer.Option(help="The name of the key.")],
) -> None:
    """Remove a key; running services refuse it within a second."""
    from pipelines.service import keys as command

    command.remove(file, name)
