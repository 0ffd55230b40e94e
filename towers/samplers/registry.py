"""Which sampler a recipe's section stands for.

In: a section and the training counts. Out: a `NegativeSampler`.
"""

import numpy as np
from numpy.typing import NDArray

from towers.errors import ConfigError
from towers.samplers.distinct import Doubles, plan
from towers.samplers.noises import (
    LearnedUnigramNoise,
    LogUniformNoise,
    Noise,
    UniformNoise,
    UnigramNoise,
    power_probabilities,
)
from towers.samplers.sampler import InBatchSampler, MixedSampler, NegativeSampler, NoiseSampler
from towers.samplers.settings import (
    Drawing,
    InBatch,
    LearnedUnigram,
    LogUniform,
    Mixed,
    SamplerConfig,
    Uniform,
    Unigram,
)

Counts = NDArray[np.int64]


def build_sampler(config: SamplerConfig, counts: Counts, batch_size: int, examples_seen: int) -> NegativeSampler:
    """The sampler of a recipe.

    Args:
        config: its section.
        counts: int64 [N] training examples of the items by rank, at least 1 each.
        batch_size: B.
        examples_seen: positives that the whole run will count.

    Raises:
        ConfigError: log_uniform where `counts` do not fall, an item without an example, or more distinct negatives than
            items.
    """
    if not len(counts) or counts.min() < 1:
        raise ConfigError("sampler: every item that can be drawn needs a training example; got an item without one")
    if not isinstance(config, Mixed):
        return _part(config, "sampler", 0, counts, batch_size, examples_seen)
    keyed = [(f"sampler.parts[{number}]", part) for number, part in enumerate(config.parts)]
    # The batch's own items first, where the losses look for them. Where a part stands does not change what it draws.
    keyed.sort(key=lambda pair: not isinstance(pair[1], InBatch))
    parts = [_part(part, key, place, counts, batch_size, examples_seen) for place, (key, part) in enumerate(keyed)]
    return MixedSampler(parts)


def _part(
    config: InBatch | Drawing, key: str, place: int, counts: Counts, batch_size: int, examples_seen: int
) -> NegativeSampler:
    if isinstance(config, InBatch):
        return InBatchSampler(counts, learned=config.frequencies == "learned", distinct=config.distinct)
    if config.distinct and config.negatives > len(counts):
        raise ConfigError(
            f"{key}.negatives = {config.negatives} with distinct = true: only {len(counts)} items have training "
            f"examples; at most {len(counts)} can be distinct"
        )
    noise, expected = _noise(config, key, counts, max(batch_size, examples_seen))
    drawing = plan(expected, config.negatives) if config.distinct else None
    return NoiseSampler(noise, config.negatives, drawing, config.name, place)  # type: ignore[attr-defined]


def _noise(config: Drawing, key: str, counts: Counts, capacity: int) -> tuple[Noise, Doubles]:
    """The noise of a section, and the probabilities by which distinct draws are planned."""
    size = len(counts)
    if isinstance(config, LogUniform):
        if np.any(np.diff(counts) > 0):
            rank = int(np.argmax(np.diff(counts) > 0))
            raise ConfigError(
                f'{key}.name = "log_uniform": items must be numbered by falling number of training examples; number '
                f"{rank} has {counts[rank]} of them, number {rank + 1} has {counts[rank + 1]}"
            )
        return LogUniformNoise(size), np.log1p(1 / (np.arange(size) + 1.0)) / np.log1p(size)
    if isinstance(config, LearnedUnigram):
        # Towards the end of the run, when the rarest items are at their rarest.
        expected = 1 + counts * (capacity / counts.sum())
        return LearnedUnigramNoise(size, capacity), -np.sort(-expected / expected.sum())
    if isinstance(config, Unigram):
        return UnigramNoise(counts, config.power), -np.sort(-power_probabilities(counts, config.power))
    if isinstance(config, Uniform):
        return UniformNoise(size), np.full(size, 1 / size)
    raise TypeError(f"{type(config).__name__}: no noise of that section in towers/samplers/registry.py")
