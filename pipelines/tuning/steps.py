"""Which points lie one step from the best one: one setting changed to its next value up or down.

In: a family's parameters, its best point and the one that this came from. Out: neighbours, the most promising first.
With few trials such steps find more than a sampler that must first learn the space; Optuna's takes over after them.
"""

from collections.abc import Iterator

from pipelines.tuning.space import Family, Point


def steps(family: Family, best: Point, before: Point | None) -> Iterator[tuple[str, Point]]:
    """The neighbours of a point, with the name of the setting that differs.

    Args:
        family: its parameters, the most important first.
        best: the best point so far.
        before: the point that one step led from to `best`, or None: the same direction comes first, it was right once.
    """
    changed = [name for name in family.parameters if before is not None and best[name] != before.get(name, best[name])]
    for name in changed if len(changed) == 1 else []:
        for value in family.parameters[name].neighbours(best[name]):
            if before is not None and value != before[name]:
                yield name, {**best, name: value}
    # Both directions of the important settings come before the first of the others.
    for name, parameter in family.parameters.items():
        for value in parameter.neighbours(best[name]):
            yield name, {**best, name: value}
