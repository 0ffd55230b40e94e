"""`towers tune`: searches a recipe for a data set within a budget, on its validation events alone.

Writes RECIPE.toml and RECIPE.trials.csv. Works in a hidden sibling of RECIPE; an interrupted search stays there, and
the same command resumes it.
"""

import hashlib
import json
import math
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from pipelines.console import phases, progress, say
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.digests import refuse_changes
from pipelines.dataset.heldout import has_targets
from pipelines.dataset.leaks import refuse_leaks
from pipelines.dataset.manifest import digest_of
from pipelines.errors import DataError
from pipelines.training.check import check_recipe
from pipelines.training.train import open_work
from pipelines.tuning.finals import MOST_TRAININGS, Finals
from pipelines.tuning.recipe import FOUND_BY, comments, recipe, text
from pipelines.tuning.search import Search, SearchGoal
from pipelines.tuning.space import Family, FixedSettings, families
from pipelines.tuning.starts import ORIGINS
from pipelines.tuning.traits import Traits, validation
from serving.files.disk_full import telling_full_disk
from serving.files.lock import exclusive
from serving.files.staging import OutputExistsError, refuse_existing, remove, staged
from towers.config.recipe import Config, parse_config
from towers.errors import ConfigError

Row = dict[str, Any]

# Of a trial's stored data: an unfinished search of another version is refused.
VERSION = 12
DEFAULT_MINUTES = 60.0
DIMENSION = 64
WRITTEN = "written"  # the digests of the recipes and tables that an interrupted search has written, a line each
COLUMNS = "trial,family,origin,"  # the first of RECIPE.trials.csv
SHOWN = 10  # trials in the table at the end, a line each
LINE = "{trial:>5}  {family:9}  {origin:16}  {metric:>7}  {epochs:>6}  {seconds:>7}  {end}"
NEVER_TARGETS = "leave_last_out"  # in this protocol validation events are input at the test, never targets


def run(
    dataset: Path,
    out: Path,
    *,
    config: Config | None = None,
    budget_minutes: float | None = None,
    trials: int | None = None,
    train_minutes: float = 15.0,
    metric: str | None = None,
    dimensions: Sequence[int] = (),
    without_starts: Collection[str] = (),
    seed: int | None = None,
    resume: bool = True,
    overwrite: bool = False,
) -> list[Row]:
    """Searches for a recipe.

    Args:
        dataset: what `towers prepare` wrote; only the leak check reads its test events.
        out: the recipe to write.
        config: a recipe whose settings stay fixed; the rest is searched.
        budget_minutes: for the whole command, including interrupted processes; 60 if `trials` is None.
        trials: maximum number of trials. Without a budget, the same seed then gives the same recipe.
        train_minutes: minutes that the recipe may train.
        metric: the validation metric to maximise; by default the recipe's, else recall@20.
        dimensions: of the vectors to try; by default the recipe's, else 64.
        without_starts: public data sets (`pipelines.tuning.starts.ORIGINS`) whose starts are left out.
        seed: of the sampler and the training runs; by default the recipe's, else 0.
        resume: resume an unfinished search; False discards it.
        overwrite: replace an existing recipe.

    Returns:
        Every trial, the best first, as in RECIPE.trials.csv.

    Raises:
        ConfigError: the recipe does not fit the data set, fixes everything, or has every trial refused; no start is of
            that name; or the minutes are no finite number.
        DataError: the data set is damaged or leaks, or has no validation targets; no trial finished; or an unfinished
            search of other settings is in the way.
        OutputExistsError: RECIPE exists.
    """
    begun = time.monotonic()
    for option, minutes in (("--budget-minutes", budget_minutes), ("--train-minutes", train_minutes)):
        if minutes is not None and not math.isfinite(minutes):
            raise ConfigError(f"{option}: must be a finite number; got {minutes}")
    if budget_minutes is None and trials is None:
        budget_minutes = DEFAULT_MINUTES
    data, fixed = Dataset.open(dataset), FixedSettings(config)
    budget_s = None if budget_minutes is None else 60.0 * budget_minutes
    seed = fixed.config.train.seed if seed is None else seed
    asked = SearchGoal(metric or fixed.config.train.metric, seed, trials, budget_s, 60.0 * train_minutes)
    parse_config({"train": {"metric": asked.metric, "seed": seed}}, origin="--metric, --seed")
    refuse_changes(data)
    traits, space = _space(data, fixed, asked.metric, dimensions, without_starts)
    refuse_leaks(data)
    if not has_targets(data, "valid"):
        raise DataError(f"{dataset}: it has no validation targets, so settings cannot be compared")
    work = out.absolute().parent / f".{out.name}.unfinished"

    def refuse_taken() -> None:
        # What the interrupted search that is resumed has written may be replaced.
        written = work / WRITTEN
        ours = written.read_text(encoding="utf-8", errors="replace").splitlines() if resume and written.exists() else []
        for each, starts in ((out, f"# {FOUND_BY}"), (_table(out), COLUMNS)):
            own = each.is_file() and digest_of(each) in ours
            refuse_existing(each, overwrite=overwrite or own, starts=starts.encode())

    refuse_taken()
    with (
        telling_full_disk(out),
        exclusive(work, f"{out}: another process is searching for this recipe; wait for it, or name another --out"),
    ):
        key = _key_of(fixed, data, asked, space)
        open_work(work, out, key, "search", "data set or other settings", resume=resume)
        search = Search(data, fixed, space, traits, asked, work, begun)
        finals = Finals(search, _growth(data, fixed))
        say(f"validation: {validation(data.manifest)}")
        phases("tune", "trials", "finals")
        try:
            with progress("trials", total=trials, unit="trials") as advance:
                search.run(advance)
            with progress("finals", total=MOST_TRAININGS, unit="trainings") as advance:
                finals.run(advance)
        except KeyboardInterrupt:
            search.clock.save(now=True)
            try:
                refuse_taken()
                _write(finals, out, dataset.resolve().name)
            except OutputExistsError as taken:
                say(f"the best recipe so far is not written: {taken}")
            raise
        refuse_taken()  # another process may have written it in the meantime
        rows = _write(finals, out, dataset.resolve().name)
        error = None if rows else _nothing(search)
        remove(work)
    if error:
        raise error
    return rows


def describe(rows: list[Row]) -> str:
    """Formats the best trials as a table."""
    names = {name: name for name in rows[0]}
    best = [row | {"metric": f"{row['metric']:.4f}"} for row in rows[:SHOWN]]
    return "\n".join(LINE.format_map(each) for each in (names, *best))


def _write(finals: Finals, out: Path, name: str) -> list[Row]:
    """Writes the best recipe so far and the table of trials; returns no rows if no trial has finished."""
    best = finals.best()
    if best is None:
        return []
    raw = recipe(finals, best)
    rows = _rows(finals.search)
    made = {out: text(raw, comments(finals, best, raw, name)), _table(out): pl.DataFrame(rows).write_csv()}
    for path, content in made.items():
        with staged(path, overwrite=True) as half:
            half.write_text(content, encoding="utf-8")
            # Before it has its place: whatever ends this process, the next one knows it again.
            with (finals.search.work / WRITTEN).open("a", encoding="utf-8") as written:
                written.write(f"{digest_of(half)}\n")
    say(f"{out}: {finals.search.asked.metric} {best.value:.4f}, trial {best.number} of {len(rows)}")
    return rows


def _rows(search: Search) -> list[Row]:
    return [
        {
            "trial": each.number,
            "family": each.family,
            "origin": each.origin,
            "metric": each.run.value,
            "best_epoch": each.run.best_epoch,
            "epochs": len(each.run.epochs),
            "seconds": round(sum(epoch.seconds for epoch in each.run.epochs), 1),
            "end": each.run.end,
            "reason": each.run.reason,
            "settings": json.dumps(
                {name: each.point[name] for name in search.families[each.family].settings if each.point}
            ),
        }
        for each in sorted(search.tried(), key=lambda each: (-each.run.value, each.number))
    ]


def _nothing(search: Search) -> ConfigError | DataError:
    runs = [each.run for each in search.tried()]
    reasons = sorted({f"{run.end} ({run.reason})" for run in runs}) or ["there was no time for one"]
    told = f"no trial finished: {'; '.join(reasons)}"
    if runs and all(run.end == "refused" for run in runs):
        return ConfigError(told)  # no budget lets it train
    slow = any(run.end == "too slow" for run in runs)
    option = search.scarce if slow else "--budget-minutes" if all(run.end == "budget" for run in runs) else ""
    return DataError(f"{told}{f'; give a larger {option}' if option and search.clock.timed else ''}")


def _space(
    data: Dataset, fixed: FixedSettings, metric: str, dimensions: Sequence[int], without_starts: Collection[str]
) -> tuple[Traits, list[Family]]:
    """Returns what the data set is like and what to search; refuses a recipe that leaves nothing or does not fit."""
    for each in dimensions:
        parse_config({"model": {"dimension": each}}, origin="--dimension")
    if dimensions and "dimension" in fixed.raw.get("model", {}):
        raise ConfigError("--dimension: the recipe of --config fixes model.dimension; leave one of them out")
    for name in without_starts:
        if name not in ORIGINS:
            raise ConfigError(f"--without-starts: no start was made from {name!r}; allowed: {', '.join(ORIGINS)}")
    # With the metric that every trial has, which would be refused trial by trial.
    train = fixed.config.train.model_copy(update={"metric": metric})
    check_recipe(fixed.config.model_copy(update={"train": train}), data)
    traits = Traits.of(data, fixed.config)
    sizes = tuple(dict.fromkeys(dimensions)) or (DIMENSION,)
    return traits, fixed.families(families(traits, sizes, without_starts), traits)


def _growth(data: Dataset, fixed: FixedSettings) -> float:
    """Examples of the final training per training example; 1 if it does not train on the validation events."""
    graded = fixed.config.loss.graded  # trains from impressions, too
    parts = (data.parts(split) if graded else [split] for split in ("train", "valid"))
    train, valid = (sum(len(data.events(part)) for part in each) for each in parts)
    refit = data.manifest.split.kind != NEVER_TARGETS
    if "refit" in fixed.raw.get("data", {}):
        refit = check_recipe(fixed.config, data).data.refit is True
    return 1.0 + valid / train if refit else 1.0


def _key_of(fixed: FixedSettings, data: Dataset, asked: SearchGoal, space: Sequence[Family]) -> str:
    # Includes the searched settings: another version of this command may search others.
    identity = [VERSION, fixed.raw, data.manifest.fingerprint, asked, repr(space)]
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def _table(out: Path) -> Path:
    return out.with_name(f"{out.name.removesuffix('.toml')}.trials.csv")
