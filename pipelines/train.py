"""`towers train`: a data set and a recipe to a run.

In: DATASET and a `Config`. Out: RUN with the settled recipe, what the features learnt, the weights and a summary. It
works in a hidden sibling of RUN; one that was cut off stays there, and the same command goes on where it stopped.
"""

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import tensorflow as tf
import tomli_w

from pipelines.alone import alone
from pipelines.check import check_recipe
from pipelines.dataset import Dataset
from pipelines.errors import DataError
from pipelines.leaks import refuse_leaks
from pipelines.pairs_file import pairs_digest
from pipelines.progress import say
from pipelines.stage import run_stage
from serving.staging import publish, refuse_existing, remove
from towers.config import Config

SUMMARY = "summary.json"


def run(config: Config, dataset: Path, out: Path, *, resume: bool = True, overwrite: bool = False) -> dict[str, Any]:
    """Trains a model.

    Args:
        config: the recipe; feature sides it leaves out are derived from the data set.
        dataset: what `towers prepare` wrote.
        out: RUN.
        resume: go on with an unfinished run of the same recipe and data; False discards it.
        overwrite: replace a finished RUN.

    Returns:
        The content of `summary.json`.

    Raises:
        ConfigError: the recipe and the data set do not fit.
        DataError: the data set is damaged or leaks, or an unfinished run of other settings is in the way.
        OutputExistsError: RUN exists.
        DivergedError: the loss became NaN or infinite.
    """
    refuse_existing(out, overwrite=overwrite, marker=SUMMARY)
    data = Dataset.open(dataset)
    config = check_recipe(config, data)
    refuse_leaks(data)
    work = out.absolute().parent / f".{out.name}.unfinished"
    started = time.time()
    with alone(work, f"{out}: another process is training this run; wait for it, or name another --out"):
        refuse_existing(out, overwrite=overwrite, marker=SUMMARY)  # another process may have finished it just now
        _open_work(work, out, config, data, resume=resume)
        summary = {
            "dataset": data.manifest.fingerprint,
            # Relative, so that run and data set may move together.
            "dataset_path": os.path.relpath(dataset.resolve(), out.resolve()),
            "refit": config.data.refit,
            **({"pairs": pairs_digest(Path(config.similarity.pairs))} if config.similarity.pairs is not None else {}),
            "stages": _train_stages(config, data, work),
            "tensorflow": tf.__version__,
        }
        summary["seconds"] = round(time.time() - started, 1)
        text = json.dumps(summary, indent=2, allow_nan=False) + "\n"
        (work / SUMMARY).write_text(text, encoding="utf-8")
        refuse_existing(out, overwrite=overwrite, marker=SUMMARY)
        publish(work, out.absolute())
    _say_summary(summary, out)
    return summary


def _open_work(work: Path, out: Path, config: Config, data: Dataset, *, resume: bool) -> None:
    """Goes on with an unfinished run of the same recipe and data, or starts one."""
    recipe = tomli_w.dumps(config.model_dump(exclude_none=True, mode="json"))
    pairs = config.similarity.pairs
    learnt_from = data.manifest.fingerprint + (pairs_digest(Path(pairs)) if pairs is not None else "")
    key = hashlib.sha256((recipe + learnt_from).encode()).hexdigest()
    if resume and (work / "key").exists():
        if (work / "key").read_text() != key:
            raise DataError(
                f"{out}: an unfinished run of another recipe or data set is in the way; finish it with its own "
                "command, or discard it with --fresh"
            )
        say(f"going on with the unfinished run of {out}")
        return
    for each in list(work.iterdir()):
        remove(each)
    (work / "config.toml").write_text(recipe, encoding="utf-8")
    (work / "key").write_text(key)


def _train_stages(config: Config, data: Dataset, work: Path) -> list[dict[str, Any]]:
    """Trains on the training events; with `data.refit` once more on training + validation, for the chosen epochs."""
    if not config.data.refit:
        validated = data.manifest.events["valid"] > 0
        return [run_stage("train", config, data, ("train",), work, work, validated=validated)]
    choose = work / "choose"
    chosen = run_stage("train", config, data, ("train",), choose, work, validated=True)
    if (choose / "tensorboard").exists():
        (choose / "tensorboard").replace(work / "tensorboard_choose")
    best = config.model_copy(update={"train": config.train.model_copy(update={"epochs": chosen["best_epoch"]})})
    refit = run_stage("refit", best, data, ("train", "valid"), work, work, validated=False)
    remove(choose)
    return [chosen, refit]


def _say_summary(summary: dict[str, Any], out: Path) -> None:
    last = summary["stages"][-1]
    first = summary["stages"][0]
    chosen = (
        f"; best {first['metric']} {first['best_metric']:.4f} at epoch {first['best_epoch']}" if first["metric"] else ""
    )
    say(f"{out}: {last['epochs']} epochs of {last['examples']:,} examples in {summary['seconds']:.0f} s{chosen}")
