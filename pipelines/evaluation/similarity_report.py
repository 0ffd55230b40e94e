"""`towers report` on a bundle of `task = "similarity"`: are an item's neighbours similar to it?

Writes REPORT with `report.json` and `per_item.parquet`, and prints a short table.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from rich.console import Console

from pipelines.console import phase, phases, say
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import seen
from pipelines.errors import DataError
from pipelines.evaluation.item_neighbours import CHANCE, GROUPS, Neighbours, Ranked, metric_of, neighbours
from pipelines.evaluation.report_json import PER_ITEM, REPORT, write_report
from pipelines.evaluation.report_table import figures_table, interval
from pipelines.rankers.bootstrap import bootstrap
from pipelines.rankers.item_knn import PHASE as KNN_PHASE
from pipelines.rankers.ranker import BEST, EXACT, KNN, POPULARITY
from pipelines.training.similar_pairs import pairs_digest
from pipelines.training.similarity_labels import HELD_OUT, TRAINING, VALIDATION, Labels, read_labels
from serving.bundle.reader import Bundle
from serving.files.staging import staged
from towers.config.recipe import Config, parse_config

PROTOCOL = (
    "Each labelled item asks for its neighbours among all other labelled items, by dot product of stored vectors; "
    "precision@k = neighbours that share a class / k; with pairs recall@k = partners found / partners; mean over the "
    "items that are like another one. Held-out items trained nothing and chose no epoch. within_below_between: share "
    "of (item, like, unlike) in which the like one is nearer, equal ones half, mean over the items."
)
TITLES = {EXACT: "model", KNN: "item-kNN", POPULARITY: "popularity", CHANCE: "chance", BEST: "best attainable"}
NEARER = "within_below_between"
EVALUATE = "evaluate"


def is_similarity(bundle: Bundle) -> bool:
    """Whether the bundle was trained with `task = "similarity"`."""
    recipe = bundle.manifest.lineage.get("config")
    return isinstance(recipe, dict) and recipe.get("task") == "similarity"


def run(
    bundle: Bundle, data: Dataset, out: Path, provenance: dict[str, Any], *, ks: Sequence[int], overwrite: bool
) -> dict[str, Any]:
    """Evaluates item neighbours; writes and prints the report and returns the content of `report.json`.

    Raises:
        ConfigError, DataError: the labels are gone, or are not those of the training.
    """
    config = parse_config(bundle.manifest.lineage["config"], f"{bundle.path}: lineage.config")
    _refuse_other_pairs(config, bundle)
    phases("report", KNN_PHASE, EVALUATE)
    labels = read_labels(config, data)
    # The popularity that the service falls back on: events of training and validation.
    ranked = _ranked(bundle, data, labels)
    depths = [k for k in sorted(set(ks)) if k < len(labels.items)] or [len(labels.items) - 1]
    held_out = bool(config.similarity.holdout_share)
    with phase(EVALUATE):
        measured = {
            name: neighbours(ranked, part, depths) for name, part in GROUPS.items() if part == TRAINING or held_out
        }
    content = provenance | {
        "task": "similarity",
        "protocol": PROTOCOL,
        "interval": provenance["interval"].replace("over users", "over items"),
        "label": {
            "column": config.similarity.column,
            "pairs": config.similarity.pairs,
            "classes": list(labels.classes),
        },
        "counts": _counts(labels, ranked, measured),
        "baselines": {"left_out": {} if ranked.left_out is None else {KNN: ranked.left_out}},
        "ks": depths,
        **_figures(measured, metric_of(labels), depths),
    }
    with staged(out, overwrite=overwrite, marker=REPORT) as directory:
        directory.mkdir()
        _per_item(measured, labels, data).write_parquet(directory / PER_ITEM)
        write_report(content, directory, PER_ITEM)
    _show(content)
    say(f"{out / 'report.json'}: every figure with its interval")
    return content


def _refuse_other_pairs(config: Config, bundle: Bundle) -> None:
    path, trained_on = config.similarity.pairs, bundle.manifest.training.get("pairs")
    if path is not None and pairs_digest(path) != trained_on:
        raise DataError(f"{path}: not the pairs that {bundle.path} was trained on; it has changed since")


def _ranked(bundle: Bundle, data: Dataset, labels: Labels) -> Ranked:
    names = data.items["item_id"].gather(labels.items).to_list()
    rows = np.array([bundle.item_rows.get(name, -1) for name in names], np.int64)
    vectors = np.where((rows >= 0)[:, np.newaxis], bundle.item_vectors[np.maximum(rows, 0)], np.float32(0))
    return Ranked(labels, vectors, rows >= 0, seen(data, ("train", "valid")))


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


def _figures(measured: dict[str, Neighbours], metric: str, ks: Sequence[int]) -> dict[str, Any]:
    content: dict[str, Any] = {"metrics": {}, "differences": {}, NEARER: {}}
    for name, group in measured.items():
        drawn = bootstrap(np.stack(list(group.columns.values()), axis=1), list(group.columns))
        rankers = [each for each in TITLES if f"{each}_{metric}@{ks[0]}" in group.columns]
        content["metrics"][name] = {
            ranker: {f"{metric}@{k}": drawn.estimate(f"{ranker}_{metric}@{k}") for k in ks} for ranker in rankers
        }
        content["differences"][name] = {
            f"{EXACT}_minus_{other}": {
                f"{metric}@{k}": drawn.difference(f"{EXACT}_{metric}@{k}", f"{other}_{metric}@{k}") for k in ks
            }
            for other in rankers
            if other not in (EXACT, BEST)
        }
        shares = group.nearer[~np.isnan(group.nearer)]
        counted = {"anchors": len(shares), "triples": group.triples}
        content[NEARER][name] = (
            bootstrap(shares[:, np.newaxis], [NEARER]).estimate(NEARER) if len(shares) else {}
        ) | counted
    return content


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


def _show(content: dict[str, Any]) -> None:
    counts, console = content["counts"], Console(highlight=False)
    for group, rankers in content["metrics"].items():
        names = list(next(iter(rankers.values())))
        title = f"{counts['asked'][group]:,} {group.replace('_', '-')} items among {counts['labelled']:,} labelled"
        console.print(figures_table(title, names, rankers, TITLES))
        nearer = content[NEARER][group]
        if "value" in nearer:
            console.print(f"d(within) < d(between): {interval(nearer)}, {nearer['triples']:,} triples")
        for pair, differences in content["differences"][group].items():
            other = TITLES[pair.removeprefix(f"{EXACT}_minus_")]
            console.print(f"{names[0]} minus {other}: {interval(differences[names[0]], '+')}")
    console.print(f"({content['interval']})")
