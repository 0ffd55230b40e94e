"""A stranger's timed data: the model is never below the strongest cheap baseline, as `towers report` names it.

In: the folder with the data, a working directory. Out: benchmarks/quality/results/timed.json; 1 where a claim fails.

Data: MovieLens-100k at the five cut-offs of `benchmarks.quality.rolling`, and two synthetic worlds in which items
go in and out of fashion. Models: `default`, the recipe of that name as it is, and `tune`, the recipe that `towers tune`
finds within its budget. The strongest baseline is that of each report, chosen on validation. The questions of all
cut-offs (worlds) are pooled, and the model is compared with the strongest baseline of each, paired.

Claims, for recall and NDCG at 20 and 50: the default is at most 0.003 below (by the whole interval), tune is above.

`--models` and `--sets` run a part, which may run beside other parts with the same `--work`; the call without them takes
what is there, runs the rest and writes the result.
"""

import argparse
import fcntl
import os
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import tensorflow as tf

from benchmarks.harness.cut_offs import CUTS, prepared
from benchmarks.harness.machine import ROOT, verdict, write
from benchmarks.harness.pool import INTERVAL, Column, estimates
from benchmarks.harness.resumable import Store
from pipelines.bundles import export
from pipelines.dataset.dataset import Dataset
from pipelines.evaluation import report
from pipelines.ingest import prepare
from pipelines.ingest.synthetic import synth
from pipelines.rankers.evaluate import column
from pipelines.rankers.ranker import BEST, EXACT, INDEX
from pipelines.training import train
from pipelines.tuning import tune
from towers.config.recipe import Config, load_config
from towers.config.sections import DataConfig

RECIPE = ROOT / "towers" / "recipes" / "default.toml"
MODELS = ("default", "tune")
SEEDS = (0, 1)
WORLD: dict[str, Any] = {"users": 6_000, "items": 5_000, "events": 300_000, "fashion": 1.0}
FIGURES = tuple(f"{metric}@{k}" for metric in ("recall", "ndcg") for k in (20, 50))
BUDGET_MINUTES = 20.0
MOST_BELOW = 0.003
MODEL, STRONGEST = "model", "strongest baseline"
AHEAD = f"{MODEL} minus {STRONGEST}"
Run = dict[str, Any]


def cut_offs(data: Path | None, work: Path) -> dict[str, Dataset]:
    """MovieLens-100k at each cut-off; `data` holds ``ml-100k/``."""
    if data is None:
        raise ValueError("data: the folder that holds ml-100k/ is needed")
    return {f"{cut:g}": prepared(data / "ml-100k", cut, work) for cut in CUTS}


def worlds(seeds: Sequence[int], work: Path, sizes: Mapping[str, Any] = WORLD) -> dict[str, Dataset]:
    """A world of each seed, made where it is not there yet."""
    found = {}
    for seed in seeds:
        out = work / "datasets" / f"world_{sizes['events']}_{seed}"
        if not out.exists():
            out.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=work) as folder:
                synth.run(Path(folder) / "world", **sizes, seed=seed)
                prepare.run(DataConfig(), Path(folder) / "world", out)
        found[f"seed {seed}"] = Dataset.open(out)
    return found


SETS: dict[str, Callable[[Path | None, Path], dict[str, Dataset]]] = {
    "ml-100k": cut_offs,
    "world": lambda _, work: worlds(SEEDS, work),
}
SAME_USERS = {"ml-100k": True, "world": False}
"""Whether an id names the same person on every data set: at every cut-off yes, in another world no."""


def main(data: Path | None, work: Path, models: Sequence[str], sets: Sequence[str], budget_minutes: float) -> int:
    """Runs what is not in `work` yet; writes the result unless only a part was asked for."""
    store = Store(work / "runs")
    runs: dict[str, dict[str, dict[str, Run]]] = {}
    for name in sets:
        with locked(work / "datasets.lock"):
            places = SETS[name](data, work)
        runs[name] = {
            model: {place: run_of(model, dataset, store, work, budget_minutes) for place, dataset in places.items()}
            for model in models
        }
    figures = {
        name: {model: compared(*pooled(by_place, SAME_USERS[name])) for model, by_place in by_model.items()}
        for name, by_model in runs.items()
    }
    claims = claims_of(figures)
    code = verdict({"claims": claims})
    if set(models) != set(MODELS) or set(sets) != set(SETS):
        return 0
    chosen = ("strongest", "validation", "settings", "epochs")
    result = {
        "claims": claims,
        "figures": figures,
        "runs": {
            name: {
                model: {place: {key: run[key] for key in chosen} for place, run in by_place.items()}
                for model, by_place in by_model.items()
            }
            for name, by_model in runs.items()
        },
        "interval": INTERVAL,
        "world": WORLD | {"seeds": list(SEEDS)},
        "budget_minutes": budget_minutes,
        "recipe": RECIPE.read_text(encoding="utf-8"),
    }
    print(write(__file__, "timed", result))
    return code


def run_of(model: str, dataset: Dataset, store: Store, work: Path, budget_minutes: float = BUDGET_MINUTES) -> Run:
    """The finished run of a model on a data set, made where it is not in the store."""
    settings: dict[str, Any] = {"model": model, "dataset": dataset.manifest.fingerprint}
    if model == "default":
        settings["recipe"] = tomllib.loads(RECIPE.read_text(encoding="utf-8"))
        return store.run(settings, lambda: questions(load_config(RECIPE), dataset, work))
    settings["budget_minutes"] = budget_minutes
    folder = work / "tuned" / store.path(settings).stem
    return store.run(settings, partial(tuned, dataset, folder, work, budget_minutes))


def tuned(dataset: Dataset, folder: Path, work: Path, budget_minutes: float) -> Run:
    """Searches for a recipe without any given one, then trains it; an interrupted search resumes."""
    recipe, complete = folder / "recipe.toml", folder / "complete"
    folder.mkdir(parents=True, exist_ok=True)
    if not complete.exists():
        tune.run(dataset.path, recipe, budget_minutes=budget_minutes, overwrite=True)
        tf.keras.backend.clear_session()
        complete.touch()
    return questions(load_config(recipe), dataset, work)


def questions(config: Config, dataset: Dataset, work: Path) -> Run:
    """Trains, exports and reports: one entry per test user in each list.

    Returns:
        ``user`` ids, ``figures``: ranker -> figure -> list, of the model, every baseline and the best attainable;
        ``strongest``: the baseline with the best validation, ``validation``: what each reached there; ``epochs``,
        ``settings``.
    """
    summary, content, rows = reported(config, dataset, work)
    rankers = [name for name in content["metrics"] if name != INDEX]
    return {
        "user": rows["user_id"].to_list(),
        "figures": {ranker: figures_of(ranker, rows) for ranker in rankers},
        "strongest": content["strongest"]["ranker"],
        "validation": {name: content["baselines"][name]["validation"] for name in rankers if name not in (EXACT, BEST)},
        "epochs": summary["stages"][-1]["epochs"],
        "settings": config.model_dump(mode="json", exclude_unset=True),
    }


def reported(config: Config, dataset: Dataset, work: Path) -> tuple[dict[str, Any], dict[str, Any], pl.DataFrame]:
    """Trains and exports in a folder that is thrown away: the run's summary, the report, its rows by user."""
    with tempfile.TemporaryDirectory(dir=work) as folder:
        run, bundle, out = (Path(folder) / name for name in ("run", "bundle", "report"))
        summary = train.run(config, dataset.path, run)
        export.run(run, bundle)
        content = report.run(bundle, dataset.path, out, user_ids=True)
        rows = pl.read_parquet(out / "per_user.parquet")
    tf.keras.backend.clear_session()
    return summary, content, rows


def figures_of(ranker: str, rows: pl.DataFrame, names: Sequence[str] = FIGURES) -> dict[str, list[float]]:
    """Figure -> one value for each row."""
    parts = ((name, *name.split("@")) for name in names)
    return {name: rows[column(ranker, metric, int(k))].to_list() for name, metric, k in parts}


def pooled(runs: dict[str, Run], same_users: bool) -> tuple[list[str], dict[str, dict[str, Column]]]:
    """The questions of all places, one after another.

    Args:
        runs: place -> its run.
        same_users: an id names the same person in every place.

    Returns:
        The user of each question; figure -> ranker -> values, of the model, of each place's strongest baseline, and of
        every ranker that all places have.
    """
    users = [user if same_users else f"{place}, {user}" for place, run in runs.items() for user in run["user"]]
    first, *others = (run["figures"] for run in runs.values())
    shared = [ranker for ranker in first if ranker != EXACT and all(ranker in other for other in others)]

    def joined(figure: str, ranker_of: Callable[[Run], str]) -> Column:
        return np.concatenate([np.asarray(run["figures"][ranker_of(run)][figure], np.float64) for run in runs.values()])

    columns = {
        figure: {
            MODEL: joined(figure, lambda _: EXACT),
            STRONGEST: joined(figure, lambda run: str(run["strongest"])),
            **{ranker: joined(figure, lambda _, ranker=ranker: ranker) for ranker in shared},  # type: ignore[misc]
        }
        for figure in first[EXACT]
    }
    return users, columns


def compared(users: list[str], columns: dict[str, dict[str, Column]]) -> dict[str, Any]:
    """By figure every ranker's mean, and the model's less that of the strongest baseline."""
    return {
        figure: estimates(users, values | {AHEAD: values[MODEL] - values[STRONGEST]})
        for figure, values in columns.items()
    }


def claims_of(figures: dict[str, dict[str, dict[str, Any]]]) -> dict[str, bool]:
    """What the figures must show, by the whole interval."""
    least = {"default": (-MOST_BELOW, f"at most {MOST_BELOW} below"), "tune": (0.0, "above")}
    return {
        f"{name}, {model}, {figure}: {least[model][1]} the strongest baseline": found[AHEAD]["low"] > least[model][0]
        for name, by_model in figures.items()
        for model, by_figure in by_model.items()
        for figure, found in by_figure.items()
    }


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Waits until no other process holds `path`: parts that run side by side share the data sets."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def parser_of(name: str, description: str | None) -> argparse.ArgumentParser:
    """A parser that asks for the data and a working directory."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.quality.{name}", description=description)
    data = os.environ.get("TOWERS_DATA")
    parser.add_argument("--data", type=Path, default=data and Path(data), help="folder that holds ml-100k/")
    parser.add_argument("--work", type=Path, required=True, help="keep everything here, and go on with what is there")
    return parser


def refuse_missing(parser: argparse.ArgumentParser, data: Path | None) -> None:
    """Ends with an error where the folder of the data does not hold ml-100k."""
    if data is None or not (data / "ml-100k").is_dir():
        parser.error("name the folder that holds ml-100k/ by --data or TOWERS_DATA")


def _arguments() -> argparse.Namespace:
    parser = parser_of("timed", __doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="only these")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS), help="only these")
    parser.add_argument("--budget-minutes", type=float, default=BUDGET_MINUTES, help="of each search of tune")
    given = parser.parse_args()
    if "ml-100k" in given.sets:
        refuse_missing(parser, given.data)
    return given


if __name__ == "__main__":
    words = _arguments()
    sys.exit(main(words.data, words.work.resolve(), words.models, words.sets, words.budget_minutes))
