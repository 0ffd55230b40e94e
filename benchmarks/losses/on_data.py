"""Losses and samplers on real data: MovieLens-100k's matrix, Gowalla's best cells, what the logQ correction does.

In: the folder with the data, a working directory. Out: results/losses_{ml_100k,gowalla,logq}.json, a plot.
Every run is one entry of the working directory's store: an interrupted benchmark resumes with the next one.

Settings are chosen on validation; the test figures are those of the chosen one, trained on the training split alone.
"""

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.machine import write
from benchmarks.harness.resumable import Store
from benchmarks.losses import data_tables
from benchmarks.losses.data_claims import of_gowalla, of_matrix, of_starts, of_strengths
from benchmarks.losses.grid import CHOSEN_BY, ROWS, Recipe, best_of, grid, recipe, samplers
from benchmarks.losses.run import train_and_measure
from pipelines.dataset.dataset import Dataset
from pipelines.ingest import prepare
from towers.config.sections import DataConfig
from towers.errors import ConfigError, DivergedError

ML_100K = {"batch_size": 512, "epochs": 4}
GOWALLA = {"batch_size": 2048, "epochs": 3}
NOT_ON_GOWALLA = {
    "bce": "it learns from graded events; check-ins have no grades",
    "graded_hinge": "it learns from graded events; check-ins have no grades",
}
STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
TEMPERATURE = 0.1  # of the part logq
# A random split, so that every held-out user and most items are trained: with ids alone, half of the users of a split
# by time have no vector, and 166 users could not tell one loss from the next.
SPLITS = {"ml-100k": DataConfig(split="random"), "gowalla": DataConfig(validation="given")}
FORMATS = {"ml-100k": "recbole", "gowalla": "lightgcn"}


def run(part: str, data: Path, work: Path) -> dict[str, Any]:
    """Runs one part and writes its result.

    Args:
        part: ``ml-100k``, ``gowalla`` or ``logq``.
        data: the folder that holds ``ml-100k/`` and ``gowalla/``.
        work: keeps data sets and finished runs.

    Returns:
        What was written.
    """
    parts: dict[str, Callable[[Path, Path], dict[str, Any]]] = {
        "ml-100k": ml_100k,
        "gowalla": gowalla,
        "logq": logq,
    }
    result = parts[part](data, work)
    write(__file__, f"losses_{part.replace('-', '_')}", result)
    return result


def ml_100k(data: Path, work: Path) -> dict[str, Any]:
    """Every loss with every sampler, each cell tuned over the same small grid at the same number of epochs."""
    cells = Cells(prepared("ml-100k", data, work), work)
    shared = {"items": cells.data.manifest.items, **ML_100K}
    table = {
        row: {name: cells.best(grid(row, name, ROWS[row].small, **shared)) for name in samplers(row)} for row in ROWS
    }
    # Where NCE's log Z begins: at 0, at log N (the next two start there), and fixed to it as in the matrix.
    starts: tuple[Any, ...] = (0.0, "learned", "per_query", round(math.log(shared["items"]), 2))
    value = ROWS["nce"].small[0]
    by_start = {str(log_z): cells.one(recipe("nce", "uniform", value, **shared, log_z=log_z)) for log_z in starts}
    return {
        "claims": of_matrix(table) | of_starts(list(by_start.values())),
        "nce_by_log_z": by_start,
        "setting": cells.about(**ML_100K),
        "cells": table,
    }


def gowalla(data: Path, work: Path) -> dict[str, Any]:
    """Each loss with the sampler that was best for it on ml-100k's validation, three values of what it tunes.

    Full softmax, which takes minutes an epoch, is tried with the first value alone.
    """
    matrix = ml_100k(data, work)["cells"]
    cells = Cells(prepared("gowalla", data, work), work)
    items = cells.data.manifest.items
    named = {row: name for row in ROWS if row not in NOT_ON_GOWALLA and (name := best_of(matrix[row])) is not None}
    tried = {row: grid(row, name, ROWS[row].large, items=items, **GOWALLA) for row, name in named.items()}
    slow = tried.pop("full_softmax")[:1]
    # Each loss once before any a second time: what there is after a break compares all of them. The slowest comes last.
    for recipes in zip(*tried.values(), strict=True):
        for each in recipes:
            cells.one(each)
    tried["full_softmax"] = slow
    table = {row: cells.best(recipes) | {"sampler": named[row]} for row, recipes in tried.items()}
    return {
        "claims": of_gowalla(table),
        "setting": cells.about(**GOWALLA),
        "cells": table,
        "left_out": NOT_ON_GOWALLA,
    }


def logq(data: Path, work: Path) -> dict[str, Any]:
    """In-batch sampled softmax with the correction at several strengths."""
    cells = Cells(prepared("gowalla", data, work), work)
    shared = {"items": cells.data.manifest.items, **GOWALLA}
    rows = []
    for strength in STRENGTHS:
        tried = recipe("sampled_softmax", "in_batch", TEMPERATURE, **shared, correction=strength)
        rows.append({"correction": strength, **cells.one(tried)})
    data_tables.plot_logq({"runs": rows})
    return {"claims": of_strengths(rows), "setting": cells.about(**GOWALLA), "runs": rows}


class Cells:
    """Runs on one data set, each made once.

    Args:
        data: prepared.
        work: has the store.
    """

    def __init__(self, data: Dataset, work: Path) -> None:
        self.data, self.work = data, work
        self.store = Store(work / "runs")

    def one(self, tried: Recipe) -> dict[str, Any]:
        """The figures of one recipe; ``failed``, with the message, where it is refused or its loss diverges."""
        settings = {"dataset": self.data.manifest.fingerprint, "recipe": tried}

        def made() -> dict[str, Any]:
            try:
                return train_and_measure(tried, self.data, self.work)
            except (ConfigError, DivergedError) as error:
                return {"failed": f"{type(error).__name__}: {error}"}

        return self.store.run(settings, made)

    def best(self, tried: list[Recipe]) -> dict[str, Any]:
        """The recipe of the highest validation figure, its figures, and the validation figures of all in `tried`."""
        results = [self.one(each) for each in tried]
        print(f"  {tried[0]['loss']['name']} {tried[0].get('sampler', {}).get('name', '-')}", file=sys.stderr)
        values = [result["valid"][CHOSEN_BY] if "valid" in result else None for result in results]
        found = [value for value in values if value is not None]
        if not found:
            return {"failed": results[0]["failed"]}
        place = values.index(max(found))
        chosen = {key: value for key, value in results[place].items() if key != "epochs"}
        seconds = fastest_epoch(results)
        return {**chosen, "recipe": tried[place], "tried": values, "seconds_per_epoch": seconds}

    def about(self, **shared: Any) -> dict[str, Any]:
        """What all runs share."""
        manifest = self.data.manifest
        return {
            **shared,
            "users": manifest.users,
            "items": manifest.items,
            "events": manifest.events,
            "split": manifest.split.kind,
            "chosen_by": f"validation {CHOSEN_BY}",
        }


def fastest_epoch(results: Sequence[dict[str, Any]]) -> float:
    """Seconds of the fastest epoch of several runs: the one that other work on the machine disturbed least."""
    return min(float(epoch["train_seconds"]) for result in results for epoch in result.get("epochs", []))


def prepared(name: str, data: Path, work: Path) -> Dataset:
    """The data set of that name, prepared where it is not there yet."""
    out = work / "datasets" / name
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        prepare.run(SPLITS[name], data / name, out, format=FORMATS[name])
    return Dataset.open(out)
