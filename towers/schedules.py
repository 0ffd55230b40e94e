"""The learning rate of a step: a function of the global step alone, so that a resumed run goes on as it would have.

In: the optimizer's settings, the steps of all epochs. Out: the step's share of `learning_rate`.
"""

import math

import tensorflow as tf

from towers.config import OptimizerConfig


def rate_share(settings: OptimizerConfig, steps: int, done: tf.Tensor) -> tf.Tensor:
    """Which share of `learning_rate` a step has.

    With t steps done and W of warm-up: ``t / W`` while t < W, so the first step only fills the moments. Then, with
    ``p = (t - W) / (steps - W)`` and the final share f: constant 1; linear ``f + (1 - f)(1 - p)``; cosine
    ``f + (1 - f)(1 + cos pi p) / 2``. These are Keras's `PolynomialDecay` and `CosineDecay`.

    Args:
        settings: schedule, warmup_steps, final_share.
        steps: of all epochs of the run, whether it stops early or not.
        done: int64 scalar, steps done before this one.

    Returns:
        float32 scalar.

    Source: Loshchilov & Hutter, SGDR, ICLR 2017 (cosine).
    """
    warmup, final = settings.warmup_steps, settings.final_share
    at = tf.cast(done, tf.float32)
    passed = tf.clip_by_value((at - warmup) / max(1, steps - warmup), 0.0, 1.0)
    match settings.schedule:
        case "linear":
            share = final + (1 - final) * (1 - passed)
        case "cosine":
            share = final + (1 - final) * (1 + tf.cos(math.pi * passed)) / 2
        case _:
            share = tf.ones_like(at)
    return tf.where(at < warmup, at / warmup, share) if warmup else share
