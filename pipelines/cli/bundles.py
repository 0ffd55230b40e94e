"""The options of `towers bundles`: publish, list, activate, rollback, canary, fold, gate.

The work is in `pipelines.bundles`.
"""

from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.options import Overwrite, State, bundle_place, example, quoted_place
from pipelines.console import next_step

Root = Annotated[
    str,
    typer.Option(metavar="PATH", help="The directory of bundles, or its URL in a store: s3://bucket/recall."),
]
LocalRoot = Annotated[Path, typer.Option(help="The directory of bundles; each is one that 'towers export' wrote.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The bundle: the name of its directory in the root.")]
Override = Annotated[
    str | None,
    typer.Option(metavar="REASON", help="Although the gate refuses it; the reason is kept.", show_default=False),
]

app = typer.Typer(help="Show the bundles of a directory, and choose which one answers.")


@app.command(epilog=example("towers bundles publish bundles/2024-06-01 --root s3://bucket/recall"))
def publish(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A bundle, written by 'towers export'.")],
    root: Annotated[str, typer.Option(metavar="URL", help="The root in the store: s3://, gs:// or file://.")],
    name: Annotated[
        str | None, typer.Option(help="Its name there; by default that of its directory.", show_default=False)
    ] = None,
    override: Override = None,
) -> None:
    """Write a bundle to a store, once it is verified and real searches work; 'activate' makes it answer."""
    from pipelines.bundles import publish as command

    if "://" not in root:
        raise typer.BadParameter(f"must be a URL, such as s3://bucket/recall, got {root!r}", param_hint="--root")
    published = command.publish(bundle, root, name, override)
    next_step("bundles activate", Path(published), "--root", quoted_place(root))


@app.command("list", epilog=example("towers bundles list --root bundles"))
def show(root: Root) -> None:
    """List the bundles: which one answers, which did before, which are broken."""
    from pipelines.bundles import activate as command

    command.show(_place(root))


@app.command(epilog=example("towers bundles activate 2024-06-01 --root bundles"))
def activate(name: Name, root: Root, override: Override = None) -> None:
    """Answer from another bundle, once it is verified and real searches work."""
    from pipelines.bundles import activate as command

    active = command.activate(_place(root, override), name, override)
    next_step("bundles list --root" if active.previous else "serve --bundle", quoted_place(root))


@app.command(epilog=example("towers bundles fold --bundle bundle --state state --out bundles/2024-06-01"))
def fold(
    bundle: Annotated[Path, typer.Option(help="A bundle, written by 'towers export'.")],
    state: State,
    out: Annotated[Path, typer.Option(help="The bundle to write; 'towers index' builds its index.")],
    overwrite: Overwrite = False,
) -> None:
    """Write a bundle that holds the items which changed while a service ran."""
    from pipelines.bundles import fold as command

    command.run(bundle, state, out, overwrite=overwrite)
    next_step("index --bundle", out)


@app.command(epilog=example("towers bundles rollback --root bundles"))
def rollback(root: Root, override: Override = None) -> None:
    """Answer from the bundle before the active one again."""
    from pipelines.bundles import activate as command

    command.rollback(_place(root, override), override)
    next_step("bundles list --root", quoted_place(root))


@app.command(epilog=example("towers bundles canary 2024-06-01 --share 0.05 --root bundles"))
def canary(
    root: Root,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The bundle; none with --clear.", show_default=False)
    ] = None,
    share: Annotated[
        float | None, typer.Option(min=0, max=1, help="Of the users, above 0 and at most 1.", show_default=False)
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Answer every user from the active bundle again.")] = False,
    override: Override = None,
) -> None:
    """Answer a share of the users from another bundle, the same users each time."""
    from pipelines.bundles import activate as command

    if clear:
        if (name, share, override) != (None, None, None):
            raise typer.BadParameter("goes with neither a name nor --share nor --override", param_hint="--clear")
        command.clear_canary(_place(root))
    elif name is None or share is None:
        raise typer.BadParameter("give NAME and --share, or --clear", param_hint="NAME / --share")
    else:
        command.canary(_place(root, override), name, share, override)
    next_step("bundles list --root", quoted_place(root))


@app.command(epilog=example("towers bundles gate gate.toml --root bundles"))
def gate(
    root: LocalRoot,
    rules: Annotated[
        Path | None, typer.Argument(metavar="RULES", help="A file of rules; none with --off.", show_default=False)
    ] = None,
    off: Annotated[
        str | None,
        typer.Option(metavar="REASON", help="Remove the gate; the reason is kept.", show_default=False),
    ] = None,
) -> None:
    """Activate only bundles that 'towers gate' has blessed by these rules."""
    if (rules is None) == (off is None):
        raise typer.BadParameter('give RULES, or --off "REASON"', param_hint="RULES / --off")
    if off is not None:
        from pipelines.bundles import requirement

        requirement.unrequire(root, off)
    elif rules is not None:
        from pipelines.launch import gate as command

        command.require(rules, root)
    next_step("bundles list --root", root)


def _place(root: str, override: str | None = None) -> Path | str:
    """The path of a local root, or the URL of one in a store."""
    place = bundle_place(root)
    if isinstance(place, str) and override is not None:
        raise typer.BadParameter("a root in a store has no gate; give it to 'publish'", param_hint="--override")
    return place
