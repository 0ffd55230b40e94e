"""Learns what features need before any gradient step: vocabularies, means and deviations, stored with the run."""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import TypeAdapter

from pipelines.console import Advance, no_bar
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.number_text import as_strings
from pipelines.dataset.resolve_features import column_of, item_feature
from towers.config.feature_section import Side
from towers.config.features import Feature
from towers.config.recipe import Config
from towers.data.events import Events, Int32s
from towers.data.item_ranks import counted
from towers.features.encoder import EARLIER_BREAKS, WORD_BREAKS, FeatureSpec

ROWS = 100_000  # of a column that are read or looked up at once
VECTORS = 10_000  # whose moments are computed at once, in float64
# Relative deviations that are rounding alone: of vectors, stored as float32, and of equal numbers in float64.
RESOLUTION, ROUNDING = float(np.finfo(np.float32).eps), 1e-14


@dataclasses.dataclass(frozen=True)
class LearntFeatures:
    """The learnt features of both sides."""

    query: list[FeatureSpec]
    candidate: list[FeatureSpec]


_FEATURES = TypeAdapter(LearntFeatures)


def learn_features(
    config: Config,
    dataset: Dataset,
    events: Events,
    context: pl.LazyFrame | None,
    directory: Path,
    advance: Advance = no_bar,
) -> LearntFeatures:
    """Learns every feature of a resolved `config` and writes the vocabularies below `directory`.

    Args:
        config: names the features.
        dataset: provides users and items.
        events: the training events.
        context: the events' own columns, in the same order.
        directory: the run's directory.
        advance: called with half a feature for each one learnt; `build_tables` reports the other half.
    """
    learner = _Learner(dataset, events, context, directory)
    (directory / "vocabulary").mkdir(parents=True, exist_ok=True)

    def specs(side: str, features: dict[str, Feature] | None) -> Iterator[FeatureSpec]:
        for name, feature in (features or {}).items():
            yield learner.learn(side, name, feature)
            advance(0.5)

    candidate = [*specs("candidate", config.features.candidate)]
    query = [learner.with_columns(spec, candidate) for spec in specs("query", config.features.query)]
    learnt = _sharing(query, candidate)
    save_features(learnt, directory)
    return learnt


def feature_count(config: Config) -> int:
    """Counts the features of a resolved recipe, which `learn_features` and `build_tables` together advance by."""
    return len(config.features.query or {}) + len(config.features.candidate or {})


def _sharing(query: list[FeatureSpec], candidate: list[FeatureSpec]) -> LearntFeatures:
    """Gives features made of users or items the table of their ids."""
    sides: dict[Side, list[FeatureSpec]] = {"query": query, "candidate": candidate}
    ids = {side: next((spec for spec in specs if spec.config.kind == "id"), None) for side, specs in sides.items()}

    def shared(side: Side, spec: FeatureSpec) -> FeatureSpec:
        source = spec.config.ids_of(side)
        its = None if source is None else ids[source]
        if its is None:
            return spec
        return dataclasses.replace(spec, vocabulary=its.vocabulary, size=its.size, table=its.table)

    return LearntFeatures(**{side: [shared(side, spec) for spec in specs] for side, specs in sides.items()})


def save_features(learnt: LearntFeatures, directory: Path) -> None:
    """Writes `features.json`; vocabulary files are named relative to it."""
    sides = _FEATURES.dump_python(learnt)
    for spec in _raw_specs(sides):
        if spec["vocabulary"]:
            spec["vocabulary"] = str(Path(spec["vocabulary"]).relative_to(directory))
    (directory / "features.json").write_text(json.dumps(sides, indent=2) + "\n", encoding="utf-8")


def load_features(directory: Path) -> LearntFeatures:
    """Reads what `save_features` wrote."""
    sides = json.loads((directory / "features.json").read_text(encoding="utf-8"))
    for spec in _raw_specs(sides):
        spec.setdefault("word_breaks", EARLIER_BREAKS)  # a run of an earlier release learnt its words by these
        if spec["vocabulary"]:
            spec["vocabulary"] = str(directory / spec["vocabulary"])
    # How features fit together was checked when the run was made.
    return _FEATURES.validate_json(json.dumps(sides))


def _raw_specs(sides: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every feature of both sides and each column of a list of items, which earlier releases did not know."""
    for spec in (*sides["query"], *sides["candidate"]):
        yield from (spec, *spec.get("columns", ()))


def _below_its_digest(path: Path) -> Path:
    """Moves a file into a folder named by its content: TensorFlow gives one table to all readers of one path."""
    with path.open("rb") as file:
        folder = path.parent / hashlib.file_digest(file, "sha256").hexdigest()[:12]
    folder.mkdir(exist_ok=True)
    return path.rename(folder / path.name)


@dataclasses.dataclass(frozen=True)
class _Learner:
    dataset: Dataset
    events: Events
    context: pl.LazyFrame | None
    directory: Path

    def learn(self, side: str, name: str, feature: Feature) -> FeatureSpec:
        spec = FeatureSpec(name=name, config=feature, table=f"{side}.{name}")
        match feature.kind:
            case "id" if side == "query":
                ids = by_falling_count(self.dataset.users["user_id"], self.events.user, feature.min_count)
            case "id":
                ids = by_falling_count(self.dataset.items["item_id"], self.events.item, feature.min_count)
            case "neighbours" if side == "candidate":
                ids = by_falling_count(self.dataset.users["user_id"], self.events.user, 1)
            case "history" | "neighbours" | "cooccurrence" | "sequence":
                ids = by_falling_count(self.dataset.items["item_id"], self.events.item, 1)
            case "categorical" | "multi" | "text":
                ids = _values(self._blocks(side, name, feature), feature.kind, feature.max_values)
            case "numeric":
                return with_moments(spec, _numbers(self._blocks(side, name, feature), log=feature.log))
            case "vector":
                return with_moments(spec, _vectors(self._blocks(side, name, feature)))
            case _:
                return spec
        if not len(ids):  # TensorFlow rejects empty vocabularies; every value is missing or in a bucket
            return spec
        path = self.directory / "vocabulary" / f"{side}.{name}.txt"
        pl.DataFrame({"value": ids}).write_csv(path, include_header=False, quote_style="never")
        return dataclasses.replace(spec, vocabulary=str(_below_its_digest(path)), size=len(ids))

    def with_columns(self, spec: FeatureSpec, candidate: Sequence[FeatureSpec]) -> FeatureSpec:
        """Adds to a history the columns of its items: the candidate's features of them, or features of its own."""
        columns = []
        for column in getattr(spec.config, "item_features", ()):
            name, feature = item_feature(self.dataset, column, {each.name: each.config for each in candidate})
            shared = next((each for each in candidate if each.config is feature), None)
            own = self.learn("candidate", name, feature) if shared is None else shared
            columns.append(shared or dataclasses.replace(own, table=f"{spec.table}.{name}"))
        return dataclasses.replace(spec, columns=tuple(columns))

    def _blocks(self, side: str, name: str, feature: Feature) -> Iterable[pl.Series]:
        """Returns the values of a column, in blocks if it is an event column."""
        column = column_of(name, feature)
        manifest = self.dataset.manifest
        if side == "candidate":
            return [self.dataset.items[column]]
        if column in manifest.user_columns:
            return [self.dataset.users[column]]
        if self.context is None:
            raise KeyError(column)
        return column_blocks(self.context, column)


def column_blocks(context: pl.LazyFrame, column: str) -> Iterator[pl.Series]:
    """Yields the values of one of the events' own columns (device, …), in the order of the events."""
    for block in context.select(column).collect_batches(chunk_size=ROWS, maintain_order=True):
        yield block[column]


def with_moments(spec: FeatureSpec, blocks: Iterable[NDArray[np.float64]]) -> FeatureSpec:
    """Computes mean and deviation of numbers [N], or of each place of vectors [N, L], block by block.

    Source: Chan, Golub & LeVeque, COMPSTAT 1982.
    """
    count, size, least = 0, 0, ROUNDING
    mean = squares = np.zeros(())
    for values in blocks:
        if values.ndim == 2:
            size, least = values.shape[1], RESOLUTION
        if not len(values):
            continue
        together, step = count + len(values), values.mean(axis=0) - mean
        squares = squares + (values.var(axis=0) * len(values) + step**2 * count * len(values) / together)
        mean, count = mean + step * len(values) / together, together
    if not count:
        return dataclasses.replace(spec, size=size)
    deviation = np.sqrt(squares / count)
    # A place with one value deviates by rounding alone, and below its smallest normal number float32 divides by 0.
    deviation = np.where(deviation > np.maximum(least * np.abs(mean), np.finfo(np.float32).tiny), deviation, 1.0)
    return dataclasses.replace(spec, size=size, mean=mean.tolist(), deviation=deviation.tolist())


def _numbers(blocks: Iterable[pl.Series], *, log: bool) -> Iterator[NDArray[np.float64]]:
    for block in blocks:
        values = block.cast(pl.Float64).drop_nulls().drop_nans().to_numpy()
        yield np.sign(values) * np.log1p(np.abs(values)) if log else values


def _vectors(blocks: Iterable[pl.Series]) -> Iterator[NDArray[np.float64]]:
    for block in blocks:
        for begin in range(0, max(1, len(block)), VECTORS):
            yield block.slice(begin, VECTORS).drop_nulls().to_numpy().astype(np.float64)


def by_falling_count(ids: pl.Series, numbers: Int32s, min_count: int) -> pl.Series:
    """Returns the ids with at least `min_count` events, most frequent first, ties in the data set's order."""
    counts = counted(numbers, len(ids))
    order = np.argsort(-counts, kind="stable")
    return ids.gather(order[: int((counts >= min_count).sum())])


def _values(blocks: Iterable[pl.Series], kind: str, most: int) -> pl.Series:
    """Returns a column's values, most frequent first, except those with a line break, which a text file cannot hold."""
    values = pl.DataFrame(schema={"value": pl.String, "count": pl.UInt32})
    for column in blocks:
        if kind == "text":
            text = column.list.join(" ") if column.dtype == pl.List else column
            column = text.str.to_lowercase().str.replace_all(WORD_BREAKS, " ").str.split(" ").explode()
        elif kind == "multi":
            column = column.explode()
        found = as_strings(column).rename("value").drop_nulls().value_counts()
        values = pl.concat([values, found]).group_by("value").sum()
    kept = values.filter((pl.col("value") != "") & ~pl.col("value").str.contains("[\r\n]"))
    return kept.sort(["count", "value"], descending=[True, False])["value"].head(most)
