"""How much sooner a warm start is as good as a cold one, as events come in, by `train.warm_share`.

In: the folder with the data, a working directory. Out: benchmarks/training/results/warm_start.json and
    docs/plots/warm_start.svg; 1 where a claim fails.

Data: MovieLens-100k at the five cut-offs of `benchmarks.harness.cut_offs`, each validated on the tenth of events before
it, and the last days of a synthetic world with fashion, each validated on the day that follows its training events. At
the first place all trainings are cold. From then on a warm one starts from the warm one of the place before, as it
would every day. Each trains the same number of epochs, so that equal epochs are equal steps, and validates after each.
The popularity prior is off: it alone would make one epoch look as good as ten.

Claim: averaged over the places after the first, the warm metric reaches the best cold one in at most a third of the
steps that the cold one took. `--sets`, `--shares` run a part, which may run beside others with the same `--work`.
"""

import argparse
import copy
import os
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import tensorflow as tf

from benchmarks.harness.cut_offs import CUTS, prepared, split_at
from benchmarks.harness.machine import ROOT, verdict, write
from benchmarks.harness.plots import figure, line
from benchmarks.harness.resumable import Store
from pipelines.dataset.dataset import Dataset
from pipelines.ingest import prepare
from pipelines.ingest.synthetic import synth
from pipelines.training import train
from towers.config.recipe import parse_config
from towers.config.sections import TrainConfig

COLD = "cold"
SHARES = (1.0, 0.9, 0.7, 0.5, 0.3)
DEFAULT = TrainConfig().warm_share
MOST = 1 / 3
WORLD = {"users": 3_000, "items": 2_500, "events": 150_000, "fashion": 1.0, "seed": 0}
DAYS, DAY_S = 5, 86_400
# Model alone, and one stage; the rest is the recipe's own.
ALONE: dict[str, dict[str, Any]] = {
    "data": {"refit": False},
    "model": {"prior": "off", "norm_exponent": 0.0},
    "train": {"patience": 1_000},
}
Curves = dict[str, list[list[float]]]


def ml_100k(data: Path | None, work: Path) -> Iterable[tuple[Dataset, dict[str, Any]]]:
    """The data set of each cut-off, and its recipe."""
    if data is None:
        raise ValueError("name the folder that holds ml-100k/ by --data or TOWERS_DATA")
    for cut in CUTS:
        yield prepared(data / "ml-100k", cut, work), recipe("ml-100k", 12, data=split_at(cut))


def days(_: Path | None, work: Path) -> Iterable[tuple[Dataset, dict[str, Any]]]:
    """The last days of the world: all events before a day train, those of the day validate."""
    folder = work / "datasets" / "days"
    if not (folder / "world").exists():
        synth.run(folder / "world", **WORLD)  # type: ignore[arg-type]
    events = pl.read_parquet(folder / "world" / "events.parquet")
    end = int(events["time"].max()) + 1  # type: ignore[arg-type]
    for day in reversed(range(DAYS)):
        until = events.filter(pl.col("time") < end - day * DAY_S)
        newest = until.filter(pl.col("time") >= end - (day + 1) * DAY_S).height
        split = {"split": "global_time", "valid_share": newest / until.height, "test_share": 0.0}
        out = folder / f"{DAYS - day}"
        if not out.exists():
            with tempfile.TemporaryDirectory(dir=work) as raw:
                until.write_parquet(Path(raw) / "events.parquet")
                for side in ("items", "users"):
                    pl.read_parquet(folder / "world" / f"{side}.parquet").write_parquet(Path(raw) / f"{side}.parquet")
                prepare.run(parse_config({"data": split}).data, Path(raw), out)
        yield Dataset.open(out), recipe("default", 10, data=split)


SETS: dict[str, Callable[[Path | None, Path], Iterable[tuple[Dataset, dict[str, Any]]]]] = {
    "ml-100k": ml_100k,
    "days": days,
}


def recipe(name: str, epochs: int, **sections: dict[str, Any]) -> dict[str, Any]:
    """A recipe that comes with towers, its model alone, for a number of epochs."""
    raw = tomllib.loads((ROOT / "towers" / "recipes" / f"{name}.toml").read_text(encoding="utf-8"))
    for changes in (ALONE, sections, {"train": {"epochs": epochs}}):
        for section, values in changes.items():
            raw[section] = raw.get(section, {}) | values
    return raw


def main(data: Path | None, work: Path, sets: Sequence[str], shares: Sequence[float]) -> int:
    """Runs what is not in `work` yet; writes the result unless only a part was asked for."""
    store = Store(work / "curves")
    figures, metrics = {}, {}
    for name in sets:
        places = list(SETS[name](data, work))
        metrics[name] = places[0][1]["train"]["metric"]
        curves = curves_of(name, places, shares, store, work)
        figures[name] = figures_of(curves)
        for start, found in figures[name].items():
            print(f"{name:8} {start:10} best {found['best']:.4f}, cold's best after {found['epochs']} epochs")
    if set(sets) != set(SETS) or DEFAULT not in shares:
        return 0
    result = {
        "claims": claims_of(figures),
        "figures": figures,
        "metrics": metrics,
        "world": WORLD | {"days": DAYS},
        "default": DEFAULT,
    }
    print(write(__file__, "warm_start", result))
    draw(figures, metrics)
    return verdict(result)


def curves_of(
    name: str, places: Sequence[tuple[Dataset, dict[str, Any]]], shares: Sequence[float], store: Store, work: Path
) -> Curves:
    """By start, the metric after each epoch, at each place after the first."""
    found: Curves = {}
    chains = {COLD: None} | {f"{share:g}": share for share in shares}
    for start, share in chains.items():
        found[start] = []
        for number, (dataset, raw) in enumerate(places):
            warm = share is not None and number > 0
            chain = start if warm else COLD
            folder = work / "runs" / name
            settings = {
                "set": name,
                "place": number,
                "start": chain,
                "recipe": raw,
                "data": dataset.manifest.fingerprint,
            }
            before = folder / f"{start if number > 1 else COLD}-{number - 1}" if warm else None
            config = copy.deepcopy(raw)
            if share is not None:
                config["train"] |= {"warm_share": share}
            made = partial(trained, config, dataset, folder / f"{chain}-{number}", before)
            curve = store.run(settings, made)["metric"]
            if number > 0:
                found[start].append(curve)
    return found


def trained(raw: dict[str, Any], dataset: Dataset, out: Path, before: Path | None) -> dict[str, Any]:
    """Trains, keeps the run for the next place; returns the metric after each epoch."""
    out.parent.mkdir(parents=True, exist_ok=True)
    # The next place starts from it.
    config = parse_config(raw | {"train": raw["train"] | {"keep_state": True}})
    summary = train.run(config, dataset.path, out, overwrite=True, warm_from=before)
    tf.keras.backend.clear_session()
    (stage,) = summary["stages"]
    return {"metric": [each[config.train.metric] for each in stage["history"]]}


def figures_of(curves: Curves) -> dict[str, Any]:
    """By start: the mean ``curve`` over the places, its ``best``, the ``epochs`` until it is as good as cold's best.

    ``places`` has the best of each place.
    """
    means = {start: np.mean(each, axis=0) for start, each in curves.items()}
    goal = means[COLD].max()
    return {
        start: {
            "curve": [round(float(value), 5) for value in mean],
            "best": float(mean.max()),
            "epochs": int(np.argmax(mean >= goal)) + 1 if (mean >= goal).any() else None,
            "places": [round(max(curve), 5) for curve in curves[start]],
        }
        for start, mean in means.items()
    }


def claims_of(figures: dict[str, dict[str, Any]]) -> dict[str, bool]:
    """That the default share reaches cold's best in time."""
    return {
        f"{name}: warm reaches the best cold metric in at most a third of its steps": (
            found[f"{DEFAULT:g}"]["epochs"] is not None
            and found[f"{DEFAULT:g}"]["epochs"] <= MOST * found[COLD]["epochs"]
        )
        for name, found in figures.items()
    }


def draw(figures: dict[str, dict[str, Any]], metrics: dict[str, str]) -> None:
    """One panel a data set, one line a start."""
    with figure("warm_start", panels=len(figures)) as panels:
        for axes, (name, found) in zip(panels, figures.items(), strict=True):
            for number, (start, each) in enumerate(found.items()):
                label = start if start == COLD else f"warm_share = {start}"
                axes.plot(range(1, len(each["curve"]) + 1), each["curve"], **line(number), label=label)
            axes.set(title=name, xlabel="epochs", ylabel=f"{metrics[name]} on validation")
            axes.legend()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training.warm_start", description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("TOWERS_DATA"), help="folder that holds ml-100k/")
    parser.add_argument("--work", type=Path, help="keep finished runs here, and go on from those that are there")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS), help="only these")
    parser.add_argument("--shares", nargs="+", type=float, default=list(SHARES), help="only these")
    return parser.parse_args()


if __name__ == "__main__":
    words = _arguments()
    with tempfile.TemporaryDirectory() as thrown_away:
        place = words.work or Path(thrown_away)
        sys.exit(main(Path(words.data) if words.data else None, place, words.sets, words.shares))
