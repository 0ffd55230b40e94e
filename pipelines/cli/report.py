"""The options of `towers report`, and of `towers track`, which tells trackers of it later."""

from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.options import Bundle, Dataset, Overwrite, Track
from pipelines.console import next_step


def report(
    bundle: Bundle,
    dataset: Dataset,
    out: Annotated[
        Path,
        typer.Option(help="The directory to write: report.html, .md and .json, and the figures of each user or item."),
    ],
    ks: Annotated[
        list[int] | None,
        typer.Option(
            "--k", min=1, help="A length of the lists to evaluate; repeatable. Without it 10, 20, 50 and 100."
        ),
    ] = None,
    slices: Annotated[
        list[str] | None,
        typer.Option("--slice", metavar="COLUMN", help="Slice by a column of users, items or events, too; repeatable."),
    ] = None,
    repeats: Annotated[
        bool, typer.Option("--repeats", help="Items a user took before stay candidates, and count as targets.")
    ] = False,
    reachable: Annotated[
        bool, typer.Option("--reachable-only", help="Leave out targets without a vector; otherwise each is a miss.")
    ] = False,
    gap: Annotated[
        str | None,
        typer.Option(metavar="SPAN", help="Leave out test events within SPAN of the last known event: 12h, 7d, 2w."),
    ] = None,
    begin: Annotated[
        str | None, typer.Option("--from", metavar="DATE", help="Leave out test events before DATE (ISO date or time).")
    ] = None,
    end: Annotated[
        str | None, typer.Option("--until", metavar="DATE", help="Leave out test events from DATE on.")
    ] = None,
    users: Annotated[
        int | None, typer.Option(metavar="N", help="Ask only a sample of N test users: for many users.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of that sample.")] = 0,
    maps: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="COLUMN",
            help="Colour the map of the item vectors by this column of items, not by a fitting one; repeatable.",
        ),
    ] = None,
    no_map: Annotated[
        bool, typer.Option("--no-map", help="Draw no map, which takes the longest of all plots.")
    ] = False,
    url: Annotated[
        str | None,
        typer.Option(help="Also ask this running service for the same users; its key comes from TOWERS_API_KEY."),
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open report.html in the browser.")] = False,
    user_ids: Annotated[bool, typer.Option("--user-ids", help="Name the users in per_user.parquet.")] = False,
    track: Track = None,
    overwrite: Overwrite = False,
) -> None:
    """Measure a bundle and the baselines on the data set's test events."""
    from pipelines.evaluation import report as command
    from pipelines.evaluation.protocol.options import Protocol
    from pipelines.launch import tracking
    from pipelines.rankers.baselines import MAYBE_WORSE, WORSE

    if no_map and maps:
        raise typer.BadParameter("give one of them", param_hint="--map / --no-map")
    tracking.refuse_unready(track)
    content = command.run(
        bundle,
        dataset,
        out,
        **({"ks": ks} if ks else {}),
        slices=slices or (),
        protocol=Protocol(repeats=repeats, reachable=reachable, gap=gap, begin=begin, end=end, users=users, seed=seed),
        maps=() if no_map else maps or None,
        url=url,
        user_ids=user_ids,
        overwrite=overwrite,
    )
    tracking.run(report=out, bundle=bundle, tracker=track)
    if open_:
        typer.launch(str(out / "report.html"))
    below = content.get("verdict", {}).get("conclusion") in (MAYBE_WORSE, WORSE)
    if below and content.get("task") != "similarity":  # for which no recipe is searched
        next_step("tune --dataset", dataset, "--budget-minutes 20 --out tuned.toml")
    else:
        next_step("serve --bundle", bundle)
