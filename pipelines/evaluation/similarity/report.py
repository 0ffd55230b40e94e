"""`towers report` on a bundle of `task = "similarity"`: are an item's neighbours similar to it?

Writes REPORT with `report.html`, `report.md`, `report.json` and `per_item.parquet`, and prints the verdict against the
strongest baseline and a short table (docs/evaluation/report.md).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from pipelines.console import amount, printable, progress, results, say
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import seen
from pipelines.errors import DataError
from pipelines.evaluation.figures import PHASE as INTERVALS
from pipelines.evaluation.findings import checks, look
from pipelines.evaluation.item_map import item_maps, map_columns, map_content
from pipelines.evaluation.page import write
from pipelines.evaluation.report_json import PER_ITEM, refuse_other_digest
from pipelines.evaluation.report_table import figures_table, headline, interval
from pipelines.evaluation.similarity.figures import (
    NEARER,
    TITLES,
    TRAINED,
    figures,
    group_of,
    item_columns,
    item_slices,
    resamples,
    slice_figures,
    verdict,
)
from pipelines.evaluation.similarity.neighbours import GROUPS, Asked, Neighbours, Ranked, metric_of, neighbours
from pipelines.evaluation.similarity.page import about_neighbours, exhibits, notes
from pipelines.rankers.bootstrap import RESAMPLES
from pipelines.rankers.evaluate import PHASE as EVALUATE
from pipelines.rankers.index_curve import curve
from pipelines.rankers.ranker import EXACT, KNN, KNOWN, Served
from pipelines.training.similarity.labels import HELD_OUT, TRAINING, VALIDATION, Labels, pairs_digest, read_labels
from serving.bundle.reader import Bundle
from serving.client.address import shown_place
from serving.recall.loading import open_index
from towers.config.recipe import parse_config
from towers.evaluation.metrics import exposure

PROTOCOL = (
    "Each labelled item asks for its neighbours among all other labelled items, by dot product of stored vectors; "
    "precision@k = neighbours that share a class / k; with pairs recall@k = partners found / partners; mean over the "
    "items that are like another one. Held-out items trained nothing and chose no epoch. within_below_between: share "
    "of (item, like, unlike) in which the like one is nearer, equal ones half, mean over the items."
)


def run(
    bundle: Bundle,
    data: Dataset,
    out: Path,
    provenance: dict[str, Any],
    *,
    ks: Sequence[int],
    slices: Sequence[str] = (),
    maps: Sequence[str] | None = None,
    overwrite: bool,
) -> dict[str, Any]:
    """Evaluates item neighbours; writes and prints the report and returns the content of `report.json`.

    Args:
        bundle: the bundle.
        data: the data set it was trained on.
        out: REPORT.
        provenance: the keys that every report has.
        ks: list lengths to evaluate.
        slices: columns of items by which to slice, too.
        maps: columns of items that colour a map; None takes that of the classes, an empty list draws no map.
        overwrite: replace an existing REPORT.

    Raises:
        ConfigError, DataError: the labels are gone, or are not those of the training; a user was forgotten in the data
            set since; there is no such column; or another command changes the bundle meanwhile.
    """
    config = parse_config(bundle.manifest.lineage["config"], f"{bundle.path}: lineage.config")
    classes = config.similarity.column
    pairs = config.similarity.pairs
    named = None if pairs is None else shown_place(pairs)
    if pairs is not None and pairs_digest(pairs) != bundle.manifest.training.get("pairs"):
        raise DataError(f"{named}: not the pairs that {bundle.path} was trained on; it has changed since")
    # The items that were held out are known by their numbers alone, which `towers forget` changes.
    if bundle.manifest.lineage.get("dataset") not in (None, data.manifest.fingerprint):
        raise DataError(
            f"{data.path}: a user was forgotten in it since {bundle.path} was trained, so the items that were held out "
            "cannot be told any more; train again"
        )
    sliced = item_columns(data, slices)
    columns = map_columns(data, [classes] if maps is None and classes is not None else maps)
    labels = read_labels(config, data)
    known = seen(data, KNOWN)
    popularity = np.bincount(known[1], minlength=data.manifest.items)
    served = Served.match(bundle, open_index(bundle), data)
    rows = served.item_rows[labels.items]
    vectors = np.where((rows >= 0)[:, np.newaxis], bundle.item_vectors[np.maximum(rows, 0)], np.float32(0))
    # By `known`, the events of training and validation, as is the popularity that the service falls back on.
    ranked = Ranked(labels, vectors, rows >= 0, known)
    depths = [k for k in sorted(set(ks)) if k < len(labels.items)] or [len(labels.items) - 1]
    metric, k = metric_of(labels), headline(depths)
    parts = {name: Asked.of(ranked, part) for name, part in GROUPS.items()}
    asked = {name: each for name, each in parts.items() if len(each.places)}
    if TRAINED not in asked:
        raise DataError(f"{data.path}: no training item is like another one; there is nothing to measure")
    with progress(EVALUATE, total=sum(each.steps for each in asked.values()), unit="items") as advance:
        measured = {name: neighbours(ranked, each, depths, advance) for name, each in asked.items()}
    group = measured[group_of(measured)]
    shares = item_slices(labels, group, popularity, classes, sliced)
    with progress(INTERVALS, total=resamples(measured) + RESAMPLES * len(shares), unit="resamples") as advance:
        content = provenance | {
            "task": "similarity",
            "protocol": PROTOCOL,
            "interval": provenance["interval"].replace("over users", "over items"),
            "label": {"column": classes, "pairs": named, "classes": list(labels.classes)},
            "counts": _counts(labels, ranked, measured),
            "baselines": {"left_out": {} if ranked.left_out is None else {KNN: ranked.left_out}},
            "ks": depths,
            "ks_left_out": sorted(set(ks) - set(depths)),
            **figures(measured, metric, depths, advance),
        }
        content |= verdict(content, f"{metric}@{k}")
        content["slices"] = {part.name: slice_figures(group, part, metric, depths, advance) for part in shares}
    stored = np.asarray(bundle.item_vectors)
    stored = stored[np.any(stored != 0, axis=1)]
    dimensions = max(len(labels.classes) - 1, 1) if labels.classes else stored.shape[1]
    shown = exposure(group.nearest, len(labels.items), k)
    items, of_items = data.items[labels.items], {"item": stored}
    made = checks(shown, len(group.places), k, of_items, items, side="items", dimensions=dimensions)
    content |= {
        "findings": [each.content() for each in look(made)],
        "training": [stage for stage in bundle.manifest.training.get("stages", []) if stage.get("best_epoch")],
        "index_curve": curve(bundle, served.index),
    }
    drawn = item_maps(served, data, popularity, columns)
    content["map"] = map_content(drawn)
    page = exhibits(content, group, labels, served, data, popularity, drawn)
    tables = {PER_ITEM: _per_item(measured, labels, data)}
    refuse_other_digest(bundle.path, provenance["bundle"]["digest"])
    write(out, content, about_neighbours(content), page, tables, overwrite=overwrite)
    _show(content, out)
    return content


def _counts(labels: Labels, ranked: Ranked, measured: dict[str, Neighbours]) -> dict[str, Any]:
    return {
        "labelled": len(labels.items),
        **{
            name: int((labels.part == part).sum())
            for name, part in (("training", TRAINING), ("validation", VALIDATION), ("held_out", HELD_OUT))
        },
        "without_vector": int((~ranked.has_vector).sum()),
        "asked": {name: len(group.places) for name, group in measured.items()},
        "asked_without_vector": {name: int((~ranked.has_vector[g.places]).sum()) for name, g in measured.items()},
    }


def _per_item(measured: dict[str, Neighbours], labels: Labels, data: Dataset) -> pl.DataFrame:
    frames = [
        pl.DataFrame(
            {
                "item_id": data.items["item_id"].gather(labels.items[group.places]),
                "group": pl.repeat(name, len(group.places), dtype=pl.String, eager=True),
                "likes": group.likes,
                **group.columns,
                NEARER: pl.Series(group.nearer).fill_nan(None),
            }
        )
        for name, group in measured.items()
    ]
    return pl.concat(frames)


def _show(content: dict[str, Any], out: Path) -> None:
    counts, console = content["counts"], results(markup=False)
    head = [content["verdict"]["text"], *(f"{each['name']}: {each['text']}" for each in content["findings"])]
    console.print("\n".join(map(printable, head)), soft_wrap=True)
    for group, rankers in content["metrics"].items():
        names = list(next(iter(rankers.values())))
        asked = amount(counts["asked"][group], f"{group.replace('_', '-')} items")
        title = f"{asked} among {counts['labelled']:,} labelled"
        console.print(figures_table(title, names, rankers, TITLES))
        nearer = content[NEARER][group]
        if "value" in nearer:
            console.print(f"d(within) < d(between): {interval(nearer)}, {amount(nearer['triples'], 'triples')}")
        for pair, differences in content["differences"][group].items():
            other = TITLES[pair.removeprefix(f"{EXACT}_minus_")]
            console.print(f"{names[0]} minus {other}: {interval(differences[names[0]], '+')}")
    console.print(f"({content['interval']})")
    for line in notes(content):
        say(line)
    say(f"{out / 'report.html'}: plots, slices and examples; open it in a browser")
