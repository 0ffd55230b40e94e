"""The options of `towers serve`; the work is in `pipelines.service.serve`."""

from pathlib import Path
from typing import Annotated

import typer


def serve(
    bundle: Annotated[
        Path | None,
        typer.Option(help="A bundle, or a directory of bundles of which one is active.", show_default=False),
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="Where live changes are kept; without it none are taken in.", show_default=False)
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="The address to listen on; 0.0.0.0 is every one.", show_default="127.0.0.1")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, help="The port to listen on; 0 takes a free one.", show_default="8000"),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Number of processes.", show_default="1")] = None,
    keys: Annotated[
        Path | None, typer.Option(help="The file of API keys, written by 'towers keys'.", show_default=False)
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="A TOML file of settings; what is given here goes before it.", show_default=False),
    ] = None,
) -> None:
    """Serve a bundle over HTTP: POST /recall and the other routes.

    Every setting can come from TOWERS_ variables and the file of --config, too: docs/settings.md.
    """
    from pipelines.service import serve as command

    command.run(bundle=bundle, state=state, host=host, port=port, workers=workers, keys=keys, config=config)
