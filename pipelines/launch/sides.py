"""Reads what `towers compare` compares: reports as they are written, bundles once they are measured.

A side is one report or bundle, or several of one recipe with different seeds: `old-0,old-1,old-2`. All members of all
sides are about the same users in the same order; `refuse_different` holds that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.errors import DataError
from pipelines.evaluation import report_json
from pipelines.evaluation.findings import LATER_PRIOR
from pipelines.launch.records.record import leaves
from pipelines.rankers.evaluate import column
from pipelines.rankers.ranker import EXACT
from serving.bundle.manifest import MANIFEST

USER = "user_id"
FACTS = ("data set", "split", "protocol", "ks")
SAME_USERS = ("targets", "history")  # columns that no model changes
BY_TRAINING = ("training", "items", "new_items")  # groups of slices: by the events that the model was trained on
FIGURE, INSIDE = "figure", "inside"

Floats = NDArray[np.float64]


class UnpairedError(DataError):
    """Two reports of the same users and targets do not tell the figures of each of them."""


@dataclass(frozen=True)
class Member:
    """One bundle or report.

    Attributes:
        path: where it lies.
        version: its model version.
        facts: by name, what must be equal in all that is compared.
        rows: [Q] one row per test user, with the columns of `per_user.parquet`.
        recipe: the settings of its training without the seed; None where it is not known.
        training: what its bundle says of its training, seconds included; empty where it is not known.
        later_prior: the finding that its prior may count test events; empty without it.
    """

    path: Path
    version: str
    facts: Mapping[str, Any]
    rows: pl.DataFrame
    recipe: Mapping[str, Any] | None = None
    training: Mapping[str, Any] = field(default_factory=dict)
    later_prior: str = ""

    def values(self, metric: str) -> Floats:
        """The figures of one metric, such as ``"recall@20"``, by exact search, [Q]."""
        name, _, k = metric.partition("@")
        return self.rows[column(EXACT, name, int(k))].to_numpy().astype(np.float64)


@dataclass(frozen=True)
class Side:
    """What is compared: the mean of its members, which differ by their seed alone.

    Attributes:
        name: as the command names it.
        members: at least one.
    """

    name: str
    members: tuple[Member, ...]

    def seeds(self, metric: str) -> Floats:
        """The mean over users of each member, [S]."""
        return np.array([member.values(metric).mean() for member in self.members])

    def values(self, metric: str) -> Floats:
        """Each user's mean over the members, [Q]."""
        figures: Floats = np.mean([member.values(metric) for member in self.members], axis=0)
        return figures


def paths_of(names: Sequence[str]) -> dict[str, tuple[Path, ...]]:
    """Splits what the command names into paths: name -> one path, or several of one recipe.

    Raises:
        DataError: fewer than two, one is named twice, or one is neither a bundle nor a report.
    """
    found = {name: tuple(map(Path, [name] if _exists(name) else name.split(","))) for name in names}
    paths = [path for each in found.values() for path in each]
    if len(found) < 2:
        raise DataError(f"compare: {', '.join(names) or 'nothing'}; give at least two different bundles or reports")
    twice = sorted({str(path) for path in paths if paths.count(path) > 1})
    if twice or len(names) > len(found):
        again = twice or [name for name in names if names.count(name) > 1]
        raise DataError(f"compare: {again[0]} is named twice; name each bundle or report once")
    for path in paths:
        if not any((path / file).is_file() for file in (report_json.REPORT, MANIFEST)):
            raise DataError(f"{path}: neither a report (no {report_json.REPORT}) nor a bundle (no {MANIFEST})")
    return found


def _exists(name: str) -> bool:
    try:
        return Path(name).exists()
    except OSError:  # several names in one may be too long for a path
        return False


def read_report(path: Path) -> Member:
    """Reads a report.

    Raises:
        DataError: a file is missing or altered, or it is a report of neighbours.
    """
    content = report_json.read_report(path)
    if content.get("task") == "similarity":
        raise DataError(f"{path}: a report of item neighbours (task = 'similarity'); allowed are reports of recall")
    dataset, protocol = content["dataset"], report_json.protocol_of(content)
    facts = dict(zip(FACTS, (dataset["fingerprint"], dataset["split"], protocol, content["ks"]), strict=True))
    rows = pl.read_parquet(path / report_json.PER_USER, glob=False)
    later = report_json.finding(content, LATER_PRIOR)
    return Member(path, content["bundle"]["model_version"], facts, rows, later_prior=later)


def refuse_other_prior(path: Path, later: str, other_path: Path, other: str) -> None:
    """Refuses two models of which one alone may know test events by its prior; `later` and `other` say so.

    Raises:
        DataError: names both and the finding.
    """
    if bool(later) != bool(other):
        knows, not_it = (path, other_path) if later else (other_path, path)
        raise DataError(f"{knows}: {later or other}, and {not_it} has no such finding; compare it as it was trained")


def later_priors(members: Sequence[Member]) -> list[str]:
    """Says which members may know test events by their prior: one note where all know the same, else one for each."""
    notes = {member.path: member.later_prior for member in members if member.later_prior}
    if len(texts := {*notes.values()}) == 1:
        return [f"all sides: {texts.pop()}"]
    return [f"{path}: {note}" for path, note in notes.items()]


def refuse_different(members: Sequence[Member]) -> None:
    """Refuses figures that are not of the same users, measured alike, or of which one side's may know the test.

    Raises:
        DataError: names two members and what differs.
    """
    for one, other in pairwise(members):
        for fact in FACTS:
            if one.facts[fact] != other.facts[fact]:
                raise DataError(
                    f"{one.path} and {other.path} differ in {fact}: {one.facts[fact]} and {other.facts[fact]}; "
                    "measure both on one data set in the same way"
                )
        refuse_other_users(one.path, one.rows, other.path, other.rows)
        refuse_other_prior(one.path, one.later_prior, other.path, other.later_prior)


def refuse_other_users(path: Path, rows: pl.DataFrame, other_path: Path, other: pl.DataFrame) -> None:
    """Refuses two tables of users that are not of the same users in the same order.

    Raises:
        DataError: names both and what differs.
    """
    for name in (*SAME_USERS, *({USER} & {*rows.columns} & {*other.columns})):
        if not rows[name].equals(other[name]):
            raise DataError(f"{path} and {other_path} are not about the same users: {name} differs")


def paired_values(paths: tuple[Path, Path], ranker: str, metric: str, part: str | None = None) -> Floats:
    """Reads one metric of two reports, paired: [Q, 2], a row for each user of both.

    Args:
        paths: of the reports.
        ranker: whose lists: "index" or "exact".
        metric: for example ``"recall@20"``; of a slice of targets the recall on them.
        part: a slice, whose users alone are read; None for all users.

    Raises:
        UnpairedError: a report has no table of users, a table does not say who is in the slice, or others are in it.
        DataError: the reports are about other users or targets.
    """
    one, other = (_figures(path, ranker, metric, part) for path in paths)
    refuse_other_users(paths[0], one, paths[1], other)
    if not one[INSIDE].equals(other[INSIDE]):
        raise UnpairedError(f"{paths[0]} and {paths[1]} have other users in the slice {part!r}")
    values: Floats = np.stack([rows.filter(INSIDE)[FIGURE].to_numpy() for rows in (one, other)], axis=1)
    return values.astype(np.float64)


def _figures(path: Path, ranker: str, metric: str, part: str | None) -> pl.DataFrame:
    """The columns by which users are known, their `FIGURE`, and whether they are `INSIDE` the slice."""
    file, (name, _, k) = path / report_json.PER_USER, metric.partition("@")
    if not file.is_file():
        raise UnpairedError(f"{path} has no {file.name}")
    rows = pl.scan_parquet(file, glob=False)
    there = rows.collect_schema().names()
    of_all, of_targets = column(ranker, name, int(k)), column(ranker, str(part), int(k))
    if part is None or part in there:
        figure, inside = pl.col(of_all), pl.lit(True) if part is None else pl.col(part)
    elif of_targets in there:
        figure, inside = pl.col(of_targets), pl.col(of_targets).is_not_nan()
    else:
        raise UnpairedError(f"{file} does not say who is in the slice {part!r}: it is of an earlier release")
    about = [each for each in (*SAME_USERS, USER) if each in there]
    return rows.select(*about, figure.alias(FIGURE), inside.alias(INSIDE)).collect()


def same_slices(group: str, report: Mapping[str, Any]) -> str:
    """Says how two reports of one test get the same slices of a group; `report` is the content of one of them."""
    if group not in BY_TRAINING:
        return "report both with the same --slice, or name other groups in the rule"
    others = {part["group"] for part in report["slices"].values()} - {*BY_TRAINING}
    return (
        "one model was trained on validation events, too (data.refit); leave out the groups "
        f"{', '.join(BY_TRAINING[:-1])} and {BY_TRAINING[-1]}: name {', '.join(sorted(others))}"
    )


def refuse_other_recipes(side: Side) -> None:
    """Refuses members of one side that differ by more than their seed, or by none, as far as that is known.

    Raises:
        DataError: names two members, and a setting that differs.
    """
    for one, two in combinations(side.members, 2):
        if one.version == two.version or (one.training and one.training == two.training):
            raise DataError(f"{one.path} and {two.path} are of one training; name a seed once, or they seem to agree")
    known = [(each.path, dict(leaves(each.recipe, separator="."))) for each in side.members if each.recipe is not None]
    for (path, settings), (other_path, other) in pairwise(known):
        for key in sorted({*settings, *other}):
            if settings.get(key) != other.get(key):
                raise DataError(
                    f"{path} and {other_path} are named as seeds of one recipe, but differ in {key}: "
                    f"{settings.get(key)} and {other.get(key)}; separate them by a space"
                )
