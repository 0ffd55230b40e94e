"""What the comparison of losses tries: each loss with its knob, the samplers, and the recipe that they share.

In: names. Out: recipes as nested dictionaries, each a `towers train` recipe of its own.

Where a loss can correct by log Q it does, in full: what the strength does is a part of its own (`logq`).
"""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

from towers.config.loss_section import Loss
from towers.config.losses import LOSSES

Recipe = dict[str, Any]

TEMPERATURE, SCALE, MARGIN = ("model", "temperature"), ("loss", "scale"), ("loss", "margin")
CORRECTED = {"correction": 1.0}


class Row(NamedTuple):
    """One loss as it is tried.

    Attributes:
        tuned: section and key of what is tuned.
        small: its values on ml-100k, whose few items want smooth scores.
        large: its values on gowalla, the likeliest first.
        loss: settings of the loss.
        model: settings of the model.
    """

    tuned: tuple[str, str]
    small: tuple[float, ...]
    large: tuple[float, ...]
    loss: Mapping[str, Any] = MappingProxyType({})
    model: Mapping[str, Any] = MappingProxyType({})


# A temperature t and a scale 1 / t are one thing by two names, so their grids are the same.
LOGITS = (TEMPERATURE, (0.2, 0.4), (0.1, 0.07, 0.2))
SCALED = (SCALE, (2.5, 5.0), (10.0, 15.0, 5.0))
ROWS: dict[str, Row] = {
    "full_softmax": Row(*LOGITS),
    "sampled_softmax": Row(*LOGITS, CORRECTED),
    "bsl": Row(*LOGITS, CORRECTED),
    "am_softmax": Row(*SCALED, CORRECTED | {"margin": 0.1}),
    "distance_softmax": Row(SCALE, (5.0, 10.0), (10.0, 15.0, 5.0), CORRECTED | {"margin": 0.1}),
    # With one positive it is am_softmax to the letter.
    "pair": Row(*SCALED, CORRECTED | {"margin": 0.1, "positives_per_query": 4}),
    # Its optimum is no cosine, and scores that start at 0 start far from it: log_z = log N, see `recipe`.
    "nce": Row(TEMPERATURE, (0.5, 1.0), (0.5, 0.25, 1.0), {}, {"similarity": "dot"}),
    "triplet": Row(MARGIN, (0.3, 0.5), (0.5, 0.3, 0.7)),
    "circle": Row(SCALE, (5.0, 10.0), (10.0, 5.0, 20.0), {"margin": 0.25}),
    "ccl": Row(MARGIN, (0.2, 0.7), (0.4, 0.2, 0.7), {"negative_weight": 10.0}),
    "neg": Row(TEMPERATURE, (0.05, 0.1), (0.07, 0.05, 0.1)),
    "gbce": Row(TEMPERATURE, (0.05, 0.1), (0.07, 0.05, 0.1)),
    "bce": Row(*LOGITS),
    "graded_hinge": Row(MARGIN, (0.2, 0.5), (0.5, 0.2, 0.8)),
    "sampled_softmax, excluded": Row(*LOGITS, CORRECTED | {"positive": "excluded"}),
}
NAMES = ("in_batch", "uniform", "log_uniform", "learned_unigram", "unigram", "mixed")
NO_SAMPLER = "-"
LEARNING_RATE = 0.005
CHOSEN_BY = "recall@20"  # on validation


def samples(row: str) -> bool:
    """Does the loss take negatives from a sampler?"""
    return settings_of(row).samples


def graded(row: str) -> bool:
    """Does it learn from the events' weights?"""
    return settings_of(row).graded


def settings_of(row: str) -> type[Loss]:
    """The class of the loss's section."""
    return next(loss for loss in LOSSES if get_args(loss.model_fields["name"].annotation) == (loss_name(row),))


def loss_name(row: str) -> str:
    """The name in a recipe; a row may be a variant of a loss."""
    return row.partition(",")[0]


def samplers(row: str) -> tuple[str, ...]:
    """The samplers that a loss is tried with."""
    return NAMES if samples(row) else (NO_SAMPLER,)


def sampler_section(name: str, negatives: int) -> dict[str, Any] | None:
    """A sampler's section. A mixture's uniform part is as large as the batch, which is its other part."""
    if name == NO_SAMPLER:
        return None
    if name == "in_batch":
        return {"name": "in_batch"}
    if name == "mixed":
        return {"name": "mixed", "parts": [{"name": "in_batch"}, {"name": "uniform", "negatives": negatives}]}
    return {"name": name, "negatives": negatives}


def recipe(row: str, sampler: str, value: float, *, items: int, batch_size: int, epochs: int, **loss: Any) -> Recipe:
    """The recipe of one run: ids only, 64 dimensions, Adam.

    Args:
        row: of `ROWS`.
        sampler: of `NAMES`, or `NO_SAMPLER`.
        value: of what is tuned.
        items: of the data set.
        batch_size: examples per step, and negatives where the sampler draws them.
        epochs: all of them are trained, and the last one's weights are kept.
        loss: further keys of the loss's section.
    """
    settings, name = ROWS[row], loss_name(row)
    where, key = settings.tuned
    normaliser = {"log_z": round(math.log(items), 2)} if name == "nce" else {}
    made: Recipe = {
        "features": {"query": {"user_id": {"kind": "id"}}, "candidate": {"item_id": {"kind": "id"}}},
        "model": {"dimension": 64, "similarity": "cosine", **settings.model},
        "loss": {"name": name, **settings.loss, **normaliser, **loss},
        "optimizer": {"name": "adam", "learning_rate": LEARNING_RATE},
        "train": {"epochs": epochs, "batch_size": batch_size, "seed": 0},
    }
    made[where] |= {key: value}
    drawn = sampler_section(sampler, batch_size)
    return made if drawn is None else made | {"sampler": drawn}


def grid(row: str, sampler: str, values: Sequence[float], **shared: int) -> list[Recipe]:
    """The recipes that a cell is tuned over: `values` of what the row tunes; `shared` as in `recipe`."""
    return [recipe(row, sampler, value, **shared) for value in values]


def best_of(cells: dict[str, Any]) -> str | None:
    """The sampler of the highest validation figure; None where every cell failed."""
    found = {name: cell["valid"][CHOSEN_BY] for name, cell in cells.items() if "valid" in cell}
    return max(found, key=lambda name: found[name]) if found else None
