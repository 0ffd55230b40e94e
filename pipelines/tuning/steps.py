"""Finds the points one step from the best one: one setting changed to its next value up or down.

With few trials such steps find more than a sampler that must first learn the space; Optuna's takes over later.
"""

from collections.abc import Iterator

from pipelines.tuning.space import Family, Point


def steps(family: Family, best: Point, before: Point | None) -> Iterator[tuple[str, Point]]:
    """Yields the neighbours of a point, the most promising first, with the name of the setting that differs.

    Args:
        family: its parameters, the most important first.
        best: the best point so far.
        before: the point from which one step led to `best`, or None; the same direction comes first.
    """
    changed = [name for name in family.parameters if before is not None and best[name] != before.get(name, best[name])]
    for name in changed if len(changed) == 1 else []:
        for value in family.parameters[name].neighbours(best[name]):
            if before is not None and value != before[name]:
                yield name, {**best, name: value}
    # For each setting, by importance, both directions before the next setting.
    for name, parameter in family.parameters.items():
        for value in parameter.neighbours(best[name]):
            yield name, {**best, name: value}
