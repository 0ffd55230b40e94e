"""Computes how each side differs from the first: tests of the metrics, slices, users, items, lists, vectors.

Returns plain dictionaries for `compare.json`; every difference is the other side minus the baseline.
"""

from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.console import Advance
from pipelines.evaluation.examples import names
from pipelines.evaluation.figures import SMALL
from pipelines.evaluation.slices import COLD, DEFINITIONS, TRAINING, WARM, Slice, activity_slices
from pipelines.launch.agreement import P, drift, list_agreement
from pipelines.launch.measure import Measured
from pipelines.launch.sides import USER, Side
from pipelines.launch.significance import LEVEL, detectable, holm, sign_flip_p
from pipelines.rankers.bootstrap import bootstrap

ROUNDING = 1e-7
SHOWN = 10  # users, and items, of the largest changes in each direction

Content = dict[str, Any]
Floats = NDArray[np.float64]


def metric_tests(sides: Sequence[Side], metrics: Sequence[str], advance: Advance) -> dict[str, Content]:
    """Tests each metric of each side against the first; Holm's correction covers all of these tests.

    Args:
        sides: the baseline, then the others.
        metrics: for example ``"recall@20"``.
        advance: of `pipelines.console.progress`, in differences: one for each test.

    Returns:
        side -> metric -> ``value``, ``low``, ``high``, ``p``, ``p_holm``, ``shown``, ``detectable``, ``wins``,
        ``losses`` and ``ties`` (numbers of users).
    """
    figures = {(side.name, metric): side.values(metric) for side, metric in product(sides, metrics)}
    baseline, *others = (side.name for side in sides)
    tests = list(product(others, metrics))
    differences = np.stack([_change(figures[baseline, test[1]], figures[test]) for test in tests], axis=1)
    drawn = bootstrap(np.stack(list(figures.values()), axis=1), [" ".join(each) for each in figures])
    p = np.empty(len(tests))
    for place, difference in enumerate(differences.T):
        p[place] = sign_flip_p(difference)
        advance(1)
    could, adjusted = detectable(differences), holm(p)
    content: dict[str, Content] = {name: {} for name in others}
    for place, (name, metric) in enumerate(tests):
        content[name][metric] = {
            **drawn.difference(f"{name} {metric}", f"{baseline} {metric}"),
            "p": float(p[place]),
            "p_holm": float(adjusted[place]),
            "shown": bool(adjusted[place] <= LEVEL),
            "detectable": float(could[place]),
            **_wins(differences[:, place]),
        }
    return content


def report_slices(side: Side) -> list[Slice]:
    """Returns the slices that a report's rows tell: warm and cold users, and activity."""
    rows = side.members[0].rows
    masks = {name: (rows["slice"] == name).to_numpy() for name in (WARM, COLD)}
    return [
        *(Slice(TRAINING, name, DEFINITIONS[name], users=mask) for name, mask in masks.items()),
        *activity_slices(rows["history"].to_numpy().astype(np.int64)),
    ]


def slice_differences(
    baseline: Side, other: Side, parts: Sequence[Slice], metric: str, measured: Measured | None, advance: Advance
) -> dict[str, Content]:
    """Returns the difference, wins and losses in each slice; of targets recall at the metric's k.

    Args:
        baseline: the first side.
        other: another.
        parts: slices; those of targets need `measured`.
        metric: the primary one.
        measured: the bundles; None for reports.
        advance: of `pipelines.console.progress`, in differences: one for each slice.
    """
    k, found = int(metric.partition("@")[2]), {}
    whole = [side.values(metric) for side in (baseline, other)]
    for part in parts:
        pair, name = whole, metric
        if part.targets is not None and measured is not None:
            pair, name = [measured.slice_values(side, part, k) for side in (baseline, other)], f"recall@{k}"
        users = ~np.isnan(pair[0]) if part.users is None else part.users
        if users.any():
            one, two = (values[users] for values in pair)
            found[part.name] = {
                "group": part.group,
                "definition": part.definition,
                "metric": name,
                "users": int(users.sum()),
                "small": bool(users.sum() < SMALL),
                "baseline": float(one.mean()),
                "other": float(two.mean()),
                **bootstrap(np.stack([one, two], axis=1), ("baseline", "other")).difference("other", "baseline"),
                **_wins(_change(one, two)),
            }
        advance(1)
    return found


def _change(one: Floats, two: Floats) -> Floats:
    # Figures of users are float32: means over seeds that are equal in truth differ by less than this.
    change = two - one
    return np.where(np.abs(change) < ROUNDING, 0.0, change)


def _wins(differences: Floats) -> dict[str, int]:
    wins, losses = int((differences > 0).sum()), int((differences < 0).sum())
    return {"wins": wins, "losses": losses, "ties": len(differences) - wins - losses}


def user_changes(baseline: Side, other: Side, metric: str, *, named: bool) -> dict[str, list[Content]]:
    """Returns the users who gain most, and those who lose most; `named` adds their ids."""
    one, two = baseline.values(metric), other.values(metric)
    rows = baseline.members[0].rows

    def content(row: int) -> Content:
        about = {"baseline": float(one[row]), "other": float(two[row])}
        about |= {name: int(rows[name][row]) for name in ("targets", "history")}
        return about | ({USER: rows[USER][row]} if named else {})

    return _largest(_change(one, two), content)


def item_changes(baseline: Side, other: Side, k: int, measured: Measured) -> dict[str, list[Content]]:
    """Returns the items that come into more lists of k, and those that leave most: shares of all lists."""
    one, two = (
        np.mean([measured.evaluation.exposure(str(member.path), k) for member in side.members], axis=0)
        / len(measured.held.users)
        for side in (baseline, other)
    )
    called = names(measured.data.items)
    return _largest(
        two - one, lambda item: {"item": called[item], "baseline": float(one[item]), "other": float(two[item])}
    )


def _largest(difference: Floats, content: Callable[[int], Content]) -> dict[str, list[Content]]:
    """The content of the rows that gain most, and of those that lose most."""
    order = np.argsort(-difference, kind="stable").tolist()
    return {
        "gain": [content(row) for row in order[:SHOWN] if difference[row] > 0],
        "lose": [content(row) for row in order[::-1][:SHOWN] if difference[row] < 0],
    }


def likeness(one: Path, other: Path, measured: Measured) -> Content:
    """Returns how alike two bundles are: ``lists`` (overlap, rank-biased overlap) and ``vectors`` (cosines)."""
    overlap, rbo = list_agreement(measured.lists[one], measured.lists[other])
    some = ~np.isnan(overlap)
    lists = {
        "k": measured.lists[one].shape[1],
        "users": int(some.sum()),
        "overlap": float(overlap[some].mean()) if some.any() else None,
        "rbo": float(rbo[some].mean()) if some.any() else None,
        "rbo_p": P,
        "equal": int((measured.lists[one] == measured.lists[other]).all(axis=1)[some].sum()),
    }
    return {"lists": lists, "vectors": _vectors(one, other, measured)}


def _vectors(one: Path, other: Path, measured: Measured) -> Content:
    sides = [measured.served[path] for path in (one, other)]
    items = np.flatnonzero(np.all([side.item_rows >= 0 for side in sides], axis=0))
    users = measured.held.users
    users = users[np.all([side.query_rows[users] >= 0 for side in sides], axis=0)]
    moved = drift(
        *(side.bundle.item_vectors[side.item_rows[items]] for side in sides),
        *(side.bundle.query_vectors[side.query_rows[users]] for side in sides),
    )
    cosines, called = moved.pop("cosines"), names(measured.data.items)
    order = np.argsort(cosines, kind="stable")[:SHOWN]
    farthest = [
        {"item": called[int(items[place])], "cosine": float(cosines[place])}
        for place in order
        if not np.isnan(cosines[place])
    ]
    return moved | {"items_of_both": len(items), "users_of_both": len(users), "farthest": farthest}
