"""Options shared by several commands of `towers`."""

import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from pipelines.ingest import formats
from serving.client.address import shown_place
from serving.files.database_url import state_place


def place(text: str) -> object:
    """The directory or the database that `--state` names; an error shows no part of a URL.

    Raises:
        typer.BadParameter: it is neither.
    """
    try:
        return state_place(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def bundle_place(text: str) -> Path | str:
    """The path of a bundle or a directory of bundles, or the URL of such a directory in a store."""
    return text if "://" in text else Path(text)


def quoted_place(place: Path | str) -> str:
    """A path or URL for the shell, without the password that a URL may hold."""
    return shlex.quote(shown_place(place))


Recipe = Annotated[
    Path,
    typer.Option(
        "--config", help="The recipe: a TOML file, or the name of one that comes with towers, such as default."
    ),
]
Overrides = Annotated[
    list[str],
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override one setting; repeatable.", show_default=False),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an output that is already there.")]
Format = Annotated[formats.Format, typer.Option(help="How the files of events are written; auto looks at them.")]
Shard = Annotated[
    str | None, typer.Option(metavar="I/N", help="Do only part I of N, from 1; any scheduler.", show_default=False)
]
Dataset = Annotated[Path, typer.Option(help="A data set, written by 'towers prepare'.")]
Bundle = Annotated[Path, typer.Option(help="A bundle, written by 'towers export'.")]
State = Annotated[
    # A path or the URL of a database; Typer knows no unions.
    Any,
    typer.Option(
        parser=place,
        metavar="DIR|URL",
        help="Where a service keeps live changes: a directory, or postgresql://…",
        show_default=False,
    ),
]
Track = Annotated[
    Literal["mlflow"] | None,
    typer.Option("--track", help="Write to MLflow at MLFLOW_TRACKING_URI, besides TensorBoard.", show_default=False),
]
WarmFrom = Annotated[
    Path | None,
    typer.Option("--warm-from", metavar="RUN", help="Start from what this run learnt.", show_default=False),
]


def set_again(overrides: list[str]) -> list[str]:
    """Returns the words that override the same settings in another command, quoted for the shell."""
    return [word for each in overrides for word in ("--set", shlex.quote(each))]


def example(*lines: str) -> str:
    """Formats the end of a command's help: example shell commands."""
    # Two line breaks, because the help formatter joins single ones.
    return "\n\n".join(["Example:", *(f"$ {line}" for line in lines)])
