"""The run that `--warm-from` names: whether it fits the recipe and the data, and where its rows stand in this one.

Each stage starts from the same stage of the earlier run, so that what validates or tests here trained nothing there:
the stage that chooses the epochs never sees the weights of the one that also trained on the validation events.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.console import say
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.popularity import TICKS_PER_S
from pipelines.dataset.vocabulary import load_features
from pipelines.errors import DataError
from pipelines.training.structure import differences, told
from towers.config.recipe import Config, load_config
from towers.data.events import Int64s
from towers.errors import ConfigError
from towers.features.encoder import FeatureSpec
from towers.model.two_tower import TwoTower
from towers.training.checkpoints import STATE, WEIGHTS
from towers.training.warm_start import NONE, WarmStart

CHECKPOINTS, FINAL = "checkpoints", "final"
CHOOSE = "choose"  # in a run, the directory of the stage that chooses the epochs
RANKS = "ranks.parquet"  # `item_id` by rank, if the sampler learns
REPEATS = {  # by data.duplicates
    "last": "; with data.duplicates = 'last' each pair that repeats is one; with 'first', or 'keep' and times, none is",
    "keep": "; where no times tell, each pair that repeats is one; with data.duplicates = 'first' none is",
}


@dataclass(frozen=True)
class EarlierRun:
    """A finished run, to start from."""

    path: Path
    config: Config
    summary: dict[str, Any]

    @classmethod
    def open(cls, path: Path) -> "EarlierRun":
        """Reads recipe and summary.

        Raises:
            DataError: it is not a finished run.
            ConfigError: its recipe cannot be read, as one of another version of this program.
        """
        try:
            summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            raise DataError(f"--warm-from {path}: not a finished run (no summary.json)") from None
        except (OSError, ValueError) as error:
            raise DataError(f"--warm-from {path}: summary.json cannot be read: {error}") from None
        try:
            return cls(path, load_config(path / "config.toml"), summary)
        except ConfigError as error:
            raise ConfigError(f"--warm-from {path}: {error}") from None

    @cached_property
    def digest(self) -> str:
        """SHA-256 of its summary, which tells it from other runs."""
        return hashlib.sha256((self.path / "summary.json").read_bytes()).hexdigest()

    def refuse_other(self, config: Config) -> None:
        """Refuses a recipe whose weights, moments or counts are not those of the earlier run.

        Raises:
            ConfigError: names the keys that differ, and both values.
        """
        if config.task != "retrieval":
            raise ConfigError(f"--warm-from: is for task = 'retrieval'; the recipe's is {config.task!r}")
        found = differences(self.config, config)
        if found:
            raise ConfigError(f"--warm-from {self.path}: trained by another recipe: {told(found)}")

    def in_order(self, config: Config) -> Config:
        """Returns a recipe of the same features with these in the run's order, by which weights have their places.

        A derived recipe has them in the order of the columns, which may be another one in a newer file.
        """
        ours, theirs = config.features, self.config.features
        sides = {
            side: {name: own[name] for name in getattr(theirs, side)}
            for side in ("query", "candidate")
            if (own := getattr(ours, side))
        }
        return config.model_copy(update={"features": ours.model_copy(update=sides)})

    def refuse_stages(self, names: list[str]) -> None:
        """Refuses a training of other stages.

        Raises:
            ConfigError: the earlier run had other ones.
            DataError: it does not hold them any more.
        """
        if names != self._names:
            raise ConfigError(
                f"--warm-from {self.path}: its stages are {', '.join(self._names)}, this recipe's {', '.join(names)}; "
                "let data.refit and train.choose_epoch be the same"
            )
        for name in names:
            if not (self._folder(name) / CHECKPOINTS / f"{FINAL}.index").is_file():
                raise DataError(
                    f"--warm-from {self.path}: holds no weights of the stage {name!r}; a run with "
                    "train.keep_state = true keeps them"
                )

    def refuse_leak(self, data: Dataset, held: dict[str, tuple[str, ...]]) -> None:
        """Refuses to go on from a stage that trained on events that are held out here.

        Args:
            data: the data set of this training.
            held: by name of a stage, the splits that it must not have seen.

        Raises:
            DataError: it did, or its data set, which tells, is gone.
        """
        if self.summary["dataset"] in data.manifest.fingerprints:
            return
        try:
            earlier = Dataset.open((self.path / self.summary["dataset_path"]).resolve())
        except DataError as error:
            raise DataError(f"--warm-from {self.path}: its data set tells what it was trained on; {error}") from None
        # Of a user forgotten since then it cannot tell; a file of events that still has them brings them back.
        if self.summary["dataset"] not in earlier.manifest.fingerprints:
            raise DataError(
                f"--warm-from {self.path}: {earlier.path} is no longer the data set that it was trained on, so nothing "
                "tells whether it saw the events held out here"
            )
        for name, splits in held.items():
            trained = [_events(earlier, part, earlier, data) for part in earlier.parts(*_trained(name))]
            for split in splits:
                asked = pl.concat(_events(data, part, earlier, data) for part in data.parts(split))
                seen = asked.join(pl.concat(trained), on=asked.columns, how="semi").height
                if seen:
                    raise DataError(
                        f"--warm-from {self.path}: its stage {name!r} trained on {seen:,} of the "
                        f"{data.manifest.events[split]:,} {split} events of {data.path}, so their figures would be too "
                        "good; go on with a data set whose held-out events are newer, or train without --warm-from"
                        f"{'' if 'time' in asked.columns else REPEATS.get(data.manifest.config.duplicates, '')}"
                    )

    def start(self, stage: str, model: TwoTower, directory: Path, share: float) -> WarmStart:
        """Finds the rows of a stage's tables, and the ranks of its sampler, in the same stage of the earlier run.

        Args:
            stage: its name.
            model: the towers of this training.
            directory: of this training, with `RANKS` if its sampler learns.
            share: weight of the earlier values.
        """
        folder = self._folder(stage)
        learnt = load_features(folder)
        before = {(side, each.name): each for side in ("query", "candidate") for each in getattr(learnt, side)}
        rows: dict[str, Int64s] = {}
        for side, tower in (("query", model.query_tower), ("candidate", model.candidate_tower)):
            for spec in (encoder.spec for encoder in tower.encoders):
                earlier = before[side, spec.name]
                for own, its in zip((spec, *spec.columns), (earlier, *earlier.columns), strict=True):
                    if own.table not in rows:
                        rows[own.table] = earlier_rows(own, its)
        known = ", ".join(
            f"{np.count_nonzero(each != NONE):,} of {len(each):,} of {name}" for name, each in rows.items()
        )
        say(f"warm start from {self.path}: rows {known}")
        state: Path | None = folder / CHECKPOINTS / STATE / WEIGHTS
        if not (folder / CHECKPOINTS / STATE).is_dir():
            say(f"{self.path}: kept no moments, they start over; a run with train.keep_state = true keeps them")
            state = None
        ranks = None
        if (directory / RANKS).is_file() and (folder / RANKS).is_file():
            there, here = (pl.read_parquet(each / RANKS, glob=False)["item_id"] for each in (folder, directory))
            ranks = _places(there, here)
        stages = {each["stage"]: each for each in self.summary["stages"]}
        steps = stages[stage].get("optimizer_steps", 0)
        return WarmStart(folder / CHECKPOINTS / FINAL, state, rows, ranks, steps, share)

    @property
    def _names(self) -> list[str]:
        return [each["stage"] for each in self.summary["stages"]]

    def _folder(self, stage: str) -> Path:
        return self.path if stage == self._names[-1] else self.path / CHOOSE


def earlier_rows(spec: FeatureSpec, before: FeatureSpec) -> Int64s:
    """The earlier row of each row of a feature's table, or `NONE`: [spec.rows].

    Rows without an id (missing, a bucket, an hour, a number of a vector) are those in the same place.

    Raises:
        ConfigError: vectors have another length, or another kind was derived for the column.
    """
    if spec.config.kind != before.config.kind:
        raise ConfigError(
            f"--warm-from: {spec.table}: its column is of kind {spec.config.kind!r} here and was "
            f"{before.config.kind!r} there; add a feature of it to features.candidate, which fixes the kind"
        )
    buckets = spec.rows - 1 - spec.size if spec.config.kind in ("categorical", "multi", "text") else 0
    if not spec.vocabulary and not before.vocabulary and not buckets:
        if spec.rows != before.rows:
            raise ConfigError(f"--warm-from: {spec.name}: {before.size} numbers there, {spec.size} here")
        return np.arange(spec.rows, dtype=np.int64)
    places = _places(_lines(before), _lines(spec))
    rows = np.concatenate([[0], np.where(places == NONE, NONE, places + 1)])
    return np.concatenate([rows, 1 + before.size + np.arange(buckets)]).astype(np.int64)


def _lines(spec: FeatureSpec) -> pl.Series:
    text = Path(spec.vocabulary).read_text(encoding="utf-8").split("\n")[: spec.size] if spec.vocabulary else []
    return pl.Series(text, dtype=pl.String)


def _places(there: pl.Series, here: pl.Series) -> Int64s:
    """The place in `there` of each value of `here`, or `NONE`; values are distinct."""
    known = pl.DataFrame({"value": there}).with_row_index("place")
    found = pl.DataFrame({"value": here}).join(known, on="value", how="left", maintain_order="left")
    return found["place"].cast(pl.Int64).fill_null(NONE).to_numpy()


def _trained(stage: str) -> tuple[str, ...]:
    return ("train", "valid") if stage == "refit" else ("train",)


def _events(data: Dataset, part: str, earlier: Dataset, later: Dataset) -> pl.DataFrame:
    """The events of a part by user, item and, if both data sets have the same clock, time; strangers left out.

    If the later one holds the last event of each pair alone, the one that was trained on is no longer there, so no time
    tells; impressions and other events are pairs of their own.
    """
    events = data.events(part)
    columns: dict[str, NDArray[Any]] = {}
    for name, numbers in (("user", events.user), ("item", events.item)):
        ids = [getattr(each, f"{name}s")[f"{name}_id"] for each in (earlier, data)]
        columns[name] = _places(*ids).astype(np.int32)[numbers]
    units = {earlier.manifest.time_unit, later.manifest.time_unit}
    if later.manifest.config.duplicates == "last" and later.manifest.split.kind != "given":
        columns["shown"] = np.zeros(len(events), np.bool_) if events.weight is None else events.weight <= 0
    elif len(units) == 1 and units <= TICKS_PER_S.keys() and events.time is not None:
        columns["time"] = np.asarray(events.time)
    return pl.DataFrame(columns).filter((pl.col("user") != NONE) & (pl.col("item") != NONE))
