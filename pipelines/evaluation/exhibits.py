"""Collects what `report.html` shows beyond the figures of `report.json`: plots, example users, nearest items."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from html import escape
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipelines.console import amount, progress
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import HeldOut
from pipelines.evaluation import examples, plots
from pipelines.evaluation.figures import SMALL
from pipelines.evaluation.item_map import ItemMaps
from pipelines.evaluation.report_table import FEW, headline, ranker_title
from pipelines.rankers.evaluate import Evaluation, column
from pipelines.rankers.ranker import BEST, EXACT, INDEX, Served
from pipelines.rankers.service import SERVICE

Exhibits = dict[str, Any]
PHASE = "page"


class Plot(NamedTuple):
    """A plot of the page: its title, how to draw its SVG, what it shows, and what a reader should look at."""

    title: str
    draw: Callable[[], str]
    description: str
    caption: str

    def named(self, number: int) -> dict[str, str]:
        """The plot for the page; `number` makes the ids of its title and description unique."""
        names = f"plot{number}-title plot{number}-text"
        texts = (
            f'<title id="plot{number}-title">{escape(self.title)}</title>'
            f'<desc id="plot{number}-text">{escape(self.description)}</desc>'
        )
        head, close, rest = self.draw().partition(">")
        svg = f'{head} role="img" aria-labelledby="{names}"{close}{texts}{rest}'
        return {"title": self.title, "svg": svg, "caption": self.caption}


def exhibits(
    content: Mapping[str, Any],
    evaluation: Evaluation,
    served: Served,
    data: Dataset,
    held: HeldOut,
    popularity: NDArray[np.int64],
    maps: ItemMaps | str,
) -> Exhibits:
    """Returns ``plots``, ``examples`` and ``neighbours`` of the page.

    Args:
        content: of `report.json`.
        evaluation: of all test users.
        served: the bundle.
        data: the data set.
        held: the test users.
        popularity: [N] events of each item before the test.
        maps: of `pipelines.evaluation.item_map.item_maps`.
    """
    k, strongest = headline(content["ks"]), content["strongest"]["ranker"]
    counts = {
        "taken in the test": np.bincount(held.target_items, minlength=len(popularity)),
        "model": evaluation.exposure(EXACT, k),
        content["baselines"][strongest]["title"]: evaluation.exposure(strongest, k),
    }
    recall, called = evaluation.of(column(EXACT, "recall", k)), examples.names(data.items)
    curves = {
        ranker_title(content, ranker): [figures[f"recall@{each}"] for each in content["ks"]]
        for ranker, figures in content["metrics"].items()
        if ranker not in (BEST, INDEX, SERVICE)
    }
    titles = {ranker: ranker_title(content, ranker) for ranker in (EXACT, strongest)}
    drawn = [
        *of_figures(f"recall@{k}", curves, content, titles),
        Plot(
            "Popularity of what is recommended",
            partial(plots.popularity_curves, popularity, counts),
            "The share of all places that the most popular items have, over their share of the catalogue.",
            "A curve above that of the test's targets recommends popular items more than users take them.",
        ),
    ]
    return shown(
        drawn,
        content,
        maps,
        examples=partial(examples.users, served, called, held, recall, k),
        neighbours=partial(examples.neighbours, served, called, popularity),
    )


def shown(
    own: Sequence[Plot], content: Mapping[str, Any], maps: ItemMaps | str, **others: Callable[[], Any]
) -> Exhibits:
    """Draws a report's own plots and those of every report, and calls the other parts, under a bar that counts all."""
    every = [*own, *_of_index(content["index_curve"]), *_of_items(maps), *_of_training(content)]
    drawn: Exhibits = {"plots": []}
    with progress(PHASE, total=len(every) + len(others), unit="parts") as advance:
        for number, plot in enumerate(every, start=1):
            drawn["plots"].append(plot.named(number))
            advance(1)
        for name, part in others.items():
            drawn[name] = part()
            advance(1)
    return drawn


def of_figures(
    figure: str,
    curves: Mapping[str, Sequence[Mapping[str, float]]],
    content: Mapping[str, Any],
    titles: Mapping[str, str],
    asked: str = "users",
) -> Iterator[Plot]:
    """Yields the plots of a metric over k and by slice.

    Args:
        figure: the one by slice, such as "recall@20".
        curves: title of a ranker -> its estimates at each k.
        content: of `report.json`.
        titles: ranker -> title of those that are drawn by slice.
        asked: what the slices count, "users" or "items".
    """
    metric = figure.partition("@")[0]
    slices, ks = content["slices"], content["ks"]
    parts = {part: each["metrics"] for part, each in slices.items() if each["metrics"]}
    sliced = {title: [each[ranker][figure] for each in parts.values()] for ranker, title in titles.items()}
    yield Plot(
        f"{metric.capitalize()} by length of the list",
        partial(plots.recall_over_k, ks, curves, metric),
        f"{metric.capitalize()} of each ranker over k; the table of figures has the numbers.",
        "Bars are 95 % intervals.",
    )
    small = [part for part in parts if slices[part]["small"]]
    yield Plot(
        f"{figure} by slice",
        partial(plots.by_slice, [f"{FEW} {part}" if part in small else part for part in parts], sliced, figure),
        f"{figure} of the model and the {content['verdict']['kind']} in each slice; the table of slices has the "
        "numbers.",
        f"Bars are 95 % intervals.{f' {FEW} marks fewer than {SMALL} {asked}.' if small else ''}",
    )


def _of_index(curve: Mapping[str, Any]) -> Iterator[Plot]:
    """Yields the plot of `pipelines.rankers.index_curve.curve`, if there is one."""
    if "left_out" in curve:
        return
    own = next(point for point in curve["points"] if point["chosen"])
    yield Plot(
        "Recall of the index and time of a query",
        partial(plots.index_curve, curve),
        f"The chosen settings find {own['recall']:.1%} of the first {curve['k']} of exact search in "
        f"{own['single_ms']:.2f} ms a query, {own['batched_ms']:.2f} ms in a batch; exact search takes "
        f"{curve['exact']['single_ms']:.2f} and {curve['exact']['batched_ms']:.2f} ms.",
        f"The diamond is what `towers index` chose. Lines change the leaves searched or the candidates rescored, each "
        f"from a quarter to four times. {amount(curve['queries'], 'queries')} on {curve['machine']}, while the report "
        "ran: compare the points, not the milliseconds of two reports.",
    )


def _of_items(maps: ItemMaps | str) -> Iterator[Plot]:
    """Yields each map of the item vectors, if there are any."""
    if isinstance(maps, str):
        return
    for name, groups in maps.groups.items():
        yield Plot(
            f"Item vectors by {name}",
            partial(_map, maps, name),
            f"{len(maps.vectors):,} items as points, near each other where their vectors are. "
            + ", ".join(f"{group}: {int(mask.sum()):,}" for group, mask in groups.items()),
            f"{len(maps.vectors):,} items by a fixed seed, projected by t-SNE. Groups that lie apart are what the "
            "model tells apart; sizes of groups and distances between them mean nothing.",
        )


def _of_training(content: Mapping[str, Any]) -> Iterator[Plot]:
    """Yields a plot for each stage of the training."""
    for stage in content["training"]:
        best, metric = stage["best_epoch"], stage["metric"]
        what = f"loss and {metric}" if metric else "loss"
        chosen = f"validation chose epoch {best}" if metric else "no validation: every epoch counts"
        last = stage["history"][-1]
        yield Plot(
            f"Training: {stage['stage']}",
            partial(plots.training_curves, stage["history"], metric, best),
            f"{what} of {amount(len(stage['history']), 'epochs')}; {chosen}. The last loss is {last['loss']:.4f}.",
            f"{what[0].upper()}{what[1:]} after each epoch; {chosen}.",
        )


def _map(maps: ItemMaps, name: str) -> str:
    # The first map computes the points, within its step of the bar.
    return plots.item_map(maps.points, maps.groups[name])
