"""What is compiled: every loss with a sampler, every sampler with one loss, and the steps that are timed.

Losses and samplers come from the recipe's own lists, so a new one is in here from the day it exists.
"""

from collections.abc import Mapping
from itertools import cycle
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

from towers.config.losses import LOSSES
from towers.config.samplers import SAMPLERS

Section = dict[str, Any]

NEGATIVES, TIMED_NEGATIVES = 32, 4_096
TIMED_BATCHES = tuple(1_024 << n for n in range(7))


class Sizes(NamedTuple):
    """A catalogue and a batch of it."""

    users: int
    items: int
    dimension: int
    batch: int


class Cell(NamedTuple):
    """One train step: sections of a recipe.

    Attributes:
        loss, sampler: the sections; no sampler for a loss that takes none.
        train: further settings of `[train]`.
    """

    loss: Section
    sampler: Section | None
    train: Mapping[str, Any] = MappingProxyType({})


SMALL = Sizes(users=300, items=400, dimension=16, batch=64)
TIMED = Sizes(users=10_000, items=40_000, dimension=64, batch=0)

SOFTMAX: Section = {"name": "sampled_softmax"}
OPTIONS: dict[str, Section] = {
    "bce": {"max_label": 3.0},
    "graded_hinge": {"list_length": 4},
    "pair": {"positives_per_query": 3},
}
UNIFORM: Section = {"name": "uniform", "negatives": NEGATIVES}
# The samplers with settings other than a number of negatives.
SETTINGS: dict[str, Section] = {
    "in_batch": {"name": "in_batch"},
    "mixed": {"name": "mixed", "parts": [{"name": "in_batch"}, UNIFORM]},
}
# A draw of distinct items is other code: rounds of draws, a race where nearly all are drawn, a mask in the batch.
DISTINCT: dict[str, Section] = {
    "log_uniform, distinct": {"name": "log_uniform", "negatives": NEGATIVES, "distinct": True},
    "log_uniform, distinct, a race": {"name": "log_uniform", "negatives": SMALL.items - 10, "distinct": True},
    "in_batch, distinct and learned": {"name": "in_batch", "frequencies": "learned", "distinct": True},
}


def cells() -> dict[str, Cell]:
    """Every cell by name, `LOSS` or `LOSS with SAMPLER`."""
    samplers = {name: SETTINGS.get(name, {"name": name, "negatives": NEGATIVES}) for name in map(_name, SAMPLERS)}
    found: dict[str, Cell] = {}
    # In turn, so that a sampler meets other losses than the one below.
    turn = cycle(samplers)
    for kind in LOSSES:
        section = {"name": _name(kind)} | OPTIONS.get(_name(kind), {})
        if kind.samples:
            sampler = next(turn)
            found[f"{_name(kind)} with {sampler}"] = Cell(section, samplers[sampler])
        else:
            found[_name(kind)] = Cell(section, None)
    return found | {f"sampled_softmax with {name}": Cell(SOFTMAX, each) for name, each in (samplers | DISTINCT).items()}


def timed() -> dict[str, Cell]:
    """The steps that are timed, by name."""
    return {
        "in_batch": Cell(SOFTMAX, {"name": "in_batch"}),
        "in_batch, bfloat16": Cell(SOFTMAX, {"name": "in_batch"}, {"precision": "bfloat16"}),
        "log_uniform": Cell(SOFTMAX, {"name": "log_uniform", "negatives": TIMED_NEGATIVES}),
    }


def _name(choice: type[Any]) -> str:
    """The name of a section of a recipe's union."""
    return str(get_args(choice.model_fields["name"].annotation)[0])
