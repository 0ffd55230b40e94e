"""Builds the sampler that a recipe's section names."""

import numpy as np

from towers.config import samplers
from towers.data.events import Int64s
from towers.errors import ConfigError
from towers.samplers import noises
from towers.samplers.distinct import Doubles, plan
from towers.samplers.learned import LearnedUnigramNoise
from towers.samplers.sampler import InBatchSampler, MixedSampler, NegativeSampler, NoiseSampler


def build_sampler(
    config: samplers.SamplerConfig, counts: Int64s, batch_size: int, examples_seen: int
) -> NegativeSampler:
    """Builds the sampler of a recipe.

    Args:
        config: the recipe's sampler section.
        counts: int64 [N] training examples of the items by rank.
        batch_size: B.
        examples_seen: positives that the whole run will count.

    Raises:
        ConfigError: `counts` rise with log_uniform, one is negative or none positive, there are more distinct negatives
            than items to draw, or the list of a learned_unigram does not hold a batch.
    """
    if counts.min(initial=0) < 0:
        raise ConfigError(f"sampler: a number of training examples must not be negative; got {counts.min()}")
    if not counts.any():
        raise ConfigError("sampler: draws items by their training examples, and no item has one")
    # The losses expect the batch's own items first. Sorted before numbering, so their place does not change the draws.
    keyed = sorted(config.by_key.items(), key=lambda pair: not isinstance(pair[1], samplers.InBatch))
    parts = [_part(part, key, place, counts, batch_size, examples_seen) for place, (key, part) in enumerate(keyed)]
    return MixedSampler(parts) if isinstance(config, samplers.Mixed) else parts[0]


def _part(
    config: samplers.Sampler,
    key: str,
    place: int,
    counts: Int64s,
    batch_size: int,
    examples_seen: int,
) -> NegativeSampler:
    if isinstance(config, samplers.InBatch):
        return InBatchSampler(counts, learned=config.frequencies == "learned", distinct=config.distinct)
    assert isinstance(config, samplers.Drawing)
    if isinstance(config, samplers.LearnedUnigram) and config.capacity < batch_size:
        raise ConfigError(
            f"{key}.capacity = {config.capacity}: the list of positives must hold a batch of {batch_size}; take a "
            "larger capacity or a smaller train.batch_size"
        )
    noise, expected = _noise(config, key, counts, max(batch_size, examples_seen))
    drawable = np.count_nonzero(expected)
    if config.distinct and config.negatives > drawable:
        raise ConfigError(
            f"{key}.negatives = {config.negatives} with distinct = true: only {drawable:,} items can be drawn; ask "
            "for fewer, or set distinct to false"
        )
    drawing = plan(expected, config.negatives) if config.distinct else None
    return NoiseSampler(noise, config.negatives, drawing, config.name, place)  # type: ignore[attr-defined]


def _noise(config: samplers.Drawing, key: str, counts: Int64s, positives: int) -> tuple[noises.Noise, Doubles]:
    """The noise of a section, and the probabilities for planning its distinct draws."""
    size = len(counts)
    if isinstance(config, samplers.LogUniform):
        if np.any(np.diff(counts) > 0):
            rank = int(np.argmax(np.diff(counts) > 0))
            raise ConfigError(
                f'{key}.name = "log_uniform": items must be numbered by falling number of training examples; number '
                f"{rank} has {counts[rank]} of them, number {rank + 1} has {counts[rank + 1]}"
            )
        return noises.LogUniformNoise(size), np.log1p(1 / (np.arange(size) + 1.0)) / np.log1p(size)
    if isinstance(config, samplers.LearnedUnigram):
        capacity = min(config.capacity, positives)
        # As of the end of the run, when the rarest items are at their rarest.
        expected = 1 + counts * (capacity / counts.sum())
        return LearnedUnigramNoise(size, capacity), -np.sort(-expected / expected.sum())
    if isinstance(config, samplers.Unigram):
        return noises.UnigramNoise(counts, config.power), -np.sort(-noises.power_probabilities(counts, config.power))
    if isinstance(config, samplers.Uniform):
        return noises.UniformNoise(size), np.full(size, 1 / size)
    raise TypeError(f"{type(config).__name__}: no noise of that section in towers/samplers/registry.py")
