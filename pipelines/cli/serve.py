"""The options of `towers serve` and `towers look`.

The work is in `pipelines.service.serve` and `pipelines.bundles.look`.
"""

import signal
from pathlib import Path
from typing import Annotated, Any

import typer

from pipelines.cli.options import place
from pipelines.service.sigterm import sigterm_ends


def serve(
    bundle: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="A bundle, or a directory of bundles of which one is active, or its URL in a store: s3://bucket/recall.",
            show_default=False,
        ),
    ] = None,
    state: Annotated[
        Any,
        typer.Option(
            parser=place,
            metavar="DIR|URL",
            help="Where live changes are kept: a directory, or postgresql://…; without it the service accepts none.",
            show_default=False,
        ),
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
    window: Annotated[
        bool | None, typer.Option("--window", help="Show the page /window, for people who run the service.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="A TOML file of settings; what is given here goes before it.", show_default=False),
    ] = None,
) -> None:
    """Serve a bundle over HTTP: POST /recall and the other routes.

    Every setting can come from TOWERS_ variables and the file of --config, too: docs/service/settings.md.
    """
    # It means "look for another bundle", and a start takes the newest. Here, because imports take seconds. The app and
    # the parent of workers have handlers of their own.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with sigterm_ends():
        from pipelines.service import serve as command

    command.run(
        bundle=bundle, state=state, host=host, port=port, workers=workers, keys=keys, window=window, config=config
    )


def look(
    bundle: Annotated[list[Path], typer.Option(help="A bundle; give two to compare them.")],
    dataset: Annotated[
        Path | None, typer.Option(help="Their data set: marks what a user took in the test.", show_default=False)
    ] = None,
    browse: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
) -> None:
    """Look into a bundle: ask it in the browser, see why, compare it with another one. Ctrl-C ends it."""
    from pipelines.bundles import look as command

    command.run(bundle, dataset, browse=browse)
