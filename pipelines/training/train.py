"""`towers train`: trains a run from a data set and a recipe.

Writes RUN with the resolved recipe, what the features learnt, the weights and a summary. Works in a hidden sibling of
RUN; an interrupted run stays there, and the same command resumes it.
"""

import json
import os
import time
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl
import tensorflow as tf

from pipelines.console import amount, phases, say
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.digests import refuse_changes
from pipelines.dataset.leaks import refuse_leaks
from pipelines.errors import DataError
from pipelines.rankers import choice, item_knn
from pipelines.rankers.baselines import validation_verdict
from pipelines.training.check import check_recipe
from pipelines.training.earlier_run import CHOOSE, EarlierRun
from pipelines.training.prior import chosen_on_validation
from pipelines.training.progress import CHOSEN_BY, epoch_seconds
from pipelines.training.similarity.labels import pairs_digest
from pipelines.training.stage import VALIDATION, features_of, run_stage, stages
from pipelines.training.structure import differences, told
from pipelines.training.teachers import TEACHERS, teachers_of, train_teachers
from pipelines.training.workers import agree, key_of, refuse_unshared, text_of
from serving.files.disk_full import telling_full_disk
from serving.files.lock import exclusive
from serving.files.staging import publish, refuse_existing, remove, staged
from towers.config.look_ahead import look_ahead
from towers.config.recipe import Config, load_config
from towers.config.sections import PriorConfig
from towers.errors import ConfigError
from towers.ops.replicas import ALONE, Replicas

SUMMARY, RECIPE = "summary.json", "config.toml"


def run(
    config: Config,
    dataset: Path,
    out: Path,
    *,
    resume: bool = True,
    overwrite: bool = False,
    compares: bool = False,
    warm_from: Path | None = None,
    replicas: Replicas = ALONE,
) -> dict[str, Any]:
    """Trains a model.

    Args:
        config: the recipe; feature sides it leaves out are derived from the data set.
        dataset: what `towers prepare` wrote.
        out: RUN.
        resume: resume an unfinished run of the same recipe and data; False discards it.
        overwrite: replace a finished RUN.
        compares: whether `verdict` follows; the first line then names its phases, too.
        warm_from: a finished run to start from; `train.warm_share` says how much of it.
        replicas: what shares each batch; of several workers each calls this with the same recipe and data set, and the
            first one writes RUN.

    Returns:
        The content of `summary.json`; of a worker that is not the first, empty.

    Raises:
        ConfigError: the recipe does not fit the data set, `warm_from` or the number of workers or devices.
        DataError: the data set is damaged or leaks, `warm_from` is not a run or saw events that are held out here, an
            unfinished run of other settings is in the way, or the workers differ in recipe or data set.
        OutputExistsError: RUN exists.
        DivergedError: the loss or a weight became NaN or infinite, or the loss exploded.
        DiskFullError: the disk is full; training up to the last checkpoint is kept.
    """
    if not replicas.rank:
        refuse_existing(out, overwrite=overwrite, marker=SUMMARY)
    refuse_unshared(config.train, replicas, warm=warm_from is not None, taught=config.distillation.models > 0)
    data = Dataset.open(dataset)
    refuse_changes(data)
    config = check_recipe(config, data)
    refuse_leaks(data)
    if replicas.rank:
        agree(key_of(config, data), replicas)
        if not replicas.from_first(""):
            with TemporaryDirectory(prefix="towers-worker-") as folder:
                _train_stages(config, data, Path(folder), None, replicas, compares=False)
        replicas.from_first("")  # without this worker the first could not resume before it has published
        return {}
    warm = None if warm_from is None else _earlier(warm_from, config, data)
    config = config if warm is None else warm.in_order(config)
    work = out.absolute().parent / f".{out.name}.unfinished"
    busy = f"{out}: another process is training this run; wait for it, or name another --out"
    with telling_full_disk(out), exclusive(work, busy):
        refuse_existing(out, overwrite=overwrite, marker=SUMMARY)  # another process may just have finished it
        key = key_of(config, data, warm)
        settings = "recipe, data set or --warm-from"
        open_work(work, out, key, "run", settings, resume=resume, other=lambda: _other(work, config))
        (work / RECIPE).write_text(text_of(config), encoding="utf-8")
        agree(key, replicas)
        if not replicas.from_first("done" if (work / SUMMARY).exists() else ""):
            started = time.monotonic()
            try:
                trained = _train_stages(config, data, work, warm, replicas, compares=compares)
            except ConfigError:
                if not any(work.rglob("*.index")):  # no checkpoint: it would only be in the corrected recipe's way
                    remove(work)
                raise
            made: dict[str, Any] = {
                "dataset": data.manifest.fingerprint,
                # Relative, so that run and data set may move together.
                "dataset_path": os.path.relpath(dataset.resolve(), out.resolve()),
                "refit": config.data.refit,
                "looks_ahead": look_ahead(config.features, timed=data.manifest.timed),
                **({"pairs": pairs_digest(config.similarity.pairs)} if config.similarity.pairs is not None else {}),
                **({"warm_from": warm.digest} if warm is not None else {}),
                "stages": trained,
                "tensorflow": tf.__version__,
                "seconds": round(max(time.monotonic() - started, epoch_seconds(trained)), 1),
            }
            with staged(work / SUMMARY) as half:
                half.write_text(json.dumps(made, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        summary: dict[str, Any] = json.loads((work / SUMMARY).read_text(encoding="utf-8"))
        # Not earlier: until the summary exists, its `stage.json` is the only record that this stage is done.
        if not config.train.keep_state:
            remove(work / CHOOSE)
        remove(work / TEACHERS)
        publish(work, out.absolute(), partial(refuse_existing, out, overwrite=overwrite, marker=SUMMARY))
        replicas.published()
    _say_summary(summary, out)
    if text := chosen_on_validation(config.model.model_dump(), summary["stages"]):
        say(f"chosen on validation: {text}")
    return summary


def verdict(run: Path, dataset: Path) -> str:
    """Compares a finished run with the strongest baseline on its validation users, in one line.

    Args:
        run: RUN.
        dataset: the data set that it was trained on.
    """
    if not (file := run / VALIDATION).is_file():
        return "not compared with baselines: no user validates this training; `towers report` compares it on the test"
    values = pl.read_parquet(file, glob=False)
    metric, users = values.columns[1], values["user"].to_numpy().astype(np.int32)
    return "on validation: " + validation_verdict(Dataset.open(dataset), users, values[metric].to_numpy(), metric)


def _earlier(path: Path, config: Config, data: Dataset) -> EarlierRun:
    """Opens the run to start from; see `run` for what is refused."""
    run = EarlierRun.open(path)
    run.refuse_other(config)
    planned = stages(config, data)
    run.refuse_stages([stage.name for stage in planned])
    run.refuse_leak(data, {stage.name: ("valid", "test") if stage.validated else ("test",) for stage in planned})
    return run


def _other(work: Path, config: Config) -> str:
    """Tells in what the settings of an unfinished run are not those of this one; empty if nothing tells."""
    try:
        there = load_config(work / RECIPE)
    except ConfigError:  # killed before it was written, or of another version
        return ""
    if (work / RECIPE).read_text(encoding="utf-8") == text_of(config):
        return "the recipe is the same, so the data set or --warm-from is another"
    return told(differences(there, config, whole=True)) or "another version of this program began it"


def open_work(
    work: Path, out: Path, key: str, what: str, settings: str, *, resume: bool, other: Callable[[], str] = lambda: ""
) -> None:
    """Resumes the unfinished work that has the same key, or starts anew.

    Args:
        work, out: its directory, and what it makes.
        key: of all that it depends on.
        what, settings: "run" or "search", and what the key stands for, in words.
        resume: False discards unfinished work.
        other: tells in what the settings of unfinished work of another key differ, if that is known.

    Raises:
        DataError: unfinished work of another key is in the way.
    """
    file = work / "key"
    if resume and file.exists():
        if file.read_bytes() != key.encode():
            known = f" ({differs})" if (differs := other()) else ""
            raise DataError(
                f"{out}: an unfinished {what} of another {settings} is in the way{known}; finish it with its own "
                "command, or discard it with --fresh"
            )
        say(f"continuing the unfinished {what} of {out}")
        return
    # Delete the key first and write it last: a kill in between must not leave it beside half of the work.
    for each in [file, *work.iterdir()]:
        remove(each)
    with staged(file) as half:
        half.write_text(key, encoding="utf-8")


def _train_stages(
    config: Config, data: Dataset, work: Path, warm: EarlierRun | None, replicas: Replicas, *, compares: bool
) -> list[dict[str, Any]]:
    """Trains on the training events; with `data.refit` again on training + validation, for the chosen epochs."""
    *choosing, last = stages(config, data)
    names = [each.name for stage in (*choosing, last) for each in (*teachers_of(config, stage), stage)]
    validated = config.task == "retrieval" and any(stage.validated for stage in (*choosing, last))
    comparison = (choice.PHASE, item_knn.PHASE) if compares and validated else ()
    phases("train", *chain.from_iterable((features_of(name), name) for name in names), *comparison)
    if not choosing:
        taught_by, _ = train_teachers(config, data, last, work, (), replicas)
        return [run_stage(config, data, last, work, work, warm, replicas, taught_by)]
    choose = work / CHOOSE
    taught_by, teachers = train_teachers(config, data, choosing[0], work, (), replicas)
    chosen = run_stage(config, data, choosing[0], choose, work, warm, replicas, taught_by)
    if (choose / "tensorboard").exists():
        (choose / "tensorboard").replace(work / "tensorboard_choose")
    best = config.model_copy(update={"train": config.train.model_copy(update={"epochs": chosen["best_epoch"]})})
    if config.model.norm_exponent == "validation":
        model = config.model.model_copy(update={"norm_exponent": chosen["norm_exponent"]})
        best = best.model_copy(update={"model": model})
    if config.model.prior == "validation":
        given = "off" if chosen["prior"] is None else PriorConfig(**chosen["prior"])
        best = best.model_copy(update={"model": best.model.model_copy(update={"prior": given})})
    taught_by, _ = train_teachers(best, data, last, work, [each["best_epoch"] for each in teachers], replicas)
    return [chosen, run_stage(best, data, last, work, work, warm, replicas, taught_by)]


def _say_summary(summary: dict[str, Any], out: Path) -> None:
    first, last = summary["stages"][0], summary["stages"][-1]
    metric, chosen = first["metric"], ""
    if metric:
        best, epoch = f"{metric} {first['best_metric']:.4f}", f"at epoch {first['best_epoch']}"
        # Another epoch may have a higher metric then.
        by_mean = any(each.get("criterion", each[metric]) != each[metric] for each in first["history"])
        chosen = f"; best {CHOSEN_BY} {epoch}, {best}" if by_mean else f"; best {best} {epoch}"
    for line in summary.get("looks_ahead", []):
        say(f"looks ahead: {line}")
    trained = f"{amount(last['epochs'], 'epochs')} of {amount(last['examples'], 'examples')}"
    say(f"{out}: {trained} in {summary['seconds']:.0f} s{chosen}")
