"""Concludes from a comparison: which side to ship, and whether the difference is real, in one sentence.

Takes the content of `compare.json`; the primary metric decides, by its p-value after Holm's correction.
"""

from collections.abc import Mapping
from typing import Any

from pipelines.rankers.bootstrap import opposite, texts

BETTER, WORSE = "better", "worse"
NOT_SHOWN, SEEDS = "no difference shown", "within the spread of seeds"

Content = Mapping[str, Any]


def conclusion(primary: Content, seeds: Content | None) -> str:
    """Concludes for one side.

    Args:
        primary: the test of the primary metric.
        seeds: the comparison over seeds; None where neither side has several.
    """
    if not primary["shown"]:
        return NOT_SHOWN
    if seeds is not None and not seeds["beyond"]:
        return SEEDS
    return BETTER if primary["value"] > 0 else WORSE


def shipped(content: Content) -> str:
    """Returns the name of the side to ship: the highest of those that are better, or the baseline."""
    metric = content["primary"]
    better: list[str] = [name for name, each in content["comparisons"].items() if each["conclusion"] == BETTER]
    value = {name: content["sides"][name]["metrics"][metric]["value"] for name in better}
    return max(better, key=value.__getitem__, default=str(content["baseline"]))


def sentence(content: Content) -> str:
    """Says which side to ship, and of each other side whether its difference from the baseline is real."""
    ship, comparisons = content["ship"], content["comparisons"]
    order = sorted(comparisons, key=lambda name: name != ship)
    verb = "Keep" if ship == content["baseline"] else "Ship"
    return f"{verb} {ship}: {'; '.join(_clause(content, name) for name in order)}."


def contrary(content: Content) -> list[str]:
    """Says which other metrics show a difference that the conclusion does not: the sentence would hide a loss."""
    return [
        f"{name} is {'above' if test['value'] > 0 else 'below'} {content['baseline']} in {metric} by "
        f"{abs(test['value']):.4f}, too large for chance among users (p = {test['p_holm']:.2g}, Holm over "
        f"{content['tests']} tests); {content['primary']} decides"
        for name, comparison in content["comparisons"].items()
        for metric, test in comparison["metrics"].items()
        if test["shown"]
        and comparison["conclusion"] != (BETTER if test["value"] > 0 else WORSE)
        and (comparison["conclusion"], metric) != (SEEDS, content["primary"])  # of that its sentence tells
    ]


def _clause(content: Content, name: str) -> str:
    baseline, metric, comparison = content["baseline"], content["primary"], content["comparisons"][name]
    test = comparison["metrics"][metric]
    value, low, high = texts(test, "+")
    p = (
        f"p = {test['p_holm']:.2g}, Holm over {content['tests']} tests"
        if content["tests"] > 1
        else f"p = {test['p']:.2g}"
    )
    if comparison["conclusion"] == SEEDS:
        value, low, high = texts({**comparison["seeds"], "value": test["value"]}, "+")
        return (
            f"{name} differs from {baseline} in {metric} by {value} ({p}), but two seeds of one recipe differ, "
            f"too, and over the seeds the difference is not shown ({low} to {high})"
        )
    if comparison["conclusion"] == NOT_SHOWN:
        could = f"these {content['counts']['users']:,} test users could have shown {test['detectable']:.4f}"
        if test["ties"] == content["counts"]["users"]:
            could = "it is the same for every user"
        return f"no difference shown between {name} and {baseline} in {metric} ({value}, {low} to {high}; {p}); {could}"
    side = "above" if comparison["conclusion"] == BETTER else "below"
    value, low, high = texts(opposite(test) if comparison["conclusion"] == WORSE else test)
    return f"{name} is {side} {baseline} in {metric} by {value} ({low} to {high}); the difference is real ({p})"
