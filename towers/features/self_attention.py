"""Encodes the history as an ordered sequence: causal self-attention over the last items, positions and time gaps.

Training passes `towers.data.packing.Sequences`, a request `[B, L, 2]`. A place sees itself and earlier places of its
own window, so one pass over a window gives the vectors of all its prefixes. Positions count from the oldest item, so a
request with fewer items gets exactly the vector of training.

Source: Kang & McAuley, Self-attentive sequential recommendation, ICDM 2018, with the norms before each part (Xiong et
al., ICML 2020); the time gaps after Li et al., Time interval aware self-attention, WSDM 2020, as buckets of the gap to
the item before.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from towers.config.features import SequenceFeature
from towers.data.bags import MISSING
from towers.data.packing import GAP_BOUNDS, NO_PLACE, UNKNOWN_GAP, Sequences
from towers.features.encoder import FeatureEncoder, FeatureSpec
from towers.ops.stateless_random import dropped, first_weights, own_seed

EPSILON = 1e-6  # of layer norms
HIDDEN = -1e9  # score of a masked place
NO_TIME = np.int64(-1)
START = 0.1  # mean length of an item's vector before training (`towers.features.encoder.new_table`)
POSITION_DEVIATION = 0.1  # of the elements of initial positions and time gaps; those of items are stretched to 1


class SelfAttention(FeatureEncoder):
    """Looks up and embeds one feature of kind "sequence".

    Args:
        spec: the feature and what it learnt.
        settings: the recipe's section for it.
        table: item rows `[spec.rows, D]`.
        seed: of the initial weights.
    """

    def __init__(self, spec: FeatureSpec, settings: SequenceFeature, table: tf.Variable, seed: int) -> None:
        super().__init__(spec, table)
        self.settings = settings
        width = int(table.shape[1])
        # Scales the input to numbers of about 1, like those that the layers add; otherwise they would drown it.
        self.stretch = width**0.5 / START
        limit = 3.0**0.5 * POSITION_DEVIATION
        self.positions = _uniform(f"{spec.name}.positions", [settings.max_length, width], limit, seed)
        self.gaps: tf.Variable | None = None
        if settings.time_gaps:
            self.gaps = _uniform(f"{spec.name}.gaps", [1 + len(GAP_BOUNDS), width], limit, seed)
        self.blocks = [
            _Block(f"{spec.name}.block_{number}", width, settings.heads, settings.dropout, seed)
            for number in range(settings.blocks)
        ]
        self.norm = _Norm(f"{spec.name}.norm", width)

    def lookup_all(self, raw: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Turns raw ids [B, L], newest last, and any times in seconds into row and time gap: int32 [B, L, 2].

        An unknown item counts as never taken: the next item's gap is the time since the item before the unknown one.
        """
        ids = raw[self.spec.name]
        rows = self.lookup(ids)
        known = rows != MISSING
        rows = _closed_up(rows, known, MISSING)
        if self.spec.times is None:
            return tf.stack([rows, tf.fill(tf.shape(rows), UNKNOWN_GAP)], axis=2)
        times = raw[self.spec.times][:, : tf.shape(ids)[1]]
        short = tf.shape(ids)[1] - tf.shape(times)[1]
        times = tf.pad(times, [[0, 0], [0, short]], constant_values=NO_TIME)[:, -self.settings.max_length :]
        times = _closed_up(times, known, NO_TIME)
        before = tf.concat([tf.fill(tf.shape(times[:, :1]), NO_TIME), times[:, :-1]], axis=1)
        seconds = tf.maximum(times - before, 0)
        bucket = tf.searchsorted(tf.constant(GAP_BOUNDS), tf.reshape(seconds + 1, [-1]), side="right")
        gaps = tf.where((times < 0) | (before < 0), UNKNOWN_GAP, tf.reshape(bucket, tf.shape(times)))
        return tf.stack([rows, gaps], axis=2)

    def embed(self, rows: Any, seed: tf.Tensor | None = None) -> tf.Tensor:
        """Vectors `[B, D]`; zero for an example without a history.

        Args:
            rows: `Sequences` of B examples, or [B, L, 2] histories with missing items at any position.
            seed: [2] of the masks; None outside training.
        """
        windows = rows if isinstance(rows, Sequences) else _one_by_one(rows)
        out = self._contextual(windows, seed)
        out = tf.reshape(out, [-1, int(out.shape[2])])
        known = windows.place != NO_PLACE
        if seed is not None and self.settings.mask_share > 0:
            known &= self._kept(tf.shape(windows.place)[0], seed)
        vectors = tf.gather(out, tf.maximum(windows.place, 0))
        return vectors * tf.cast(known, tf.float32)[:, tf.newaxis]

    def informs(self, rows: tf.Tensor) -> tf.Tensor:
        """Whether a history [B, L, 2] holds an item that training learnt: bool [B]."""
        return super().informs(rows[:, :, 0])

    def _contextual(self, windows: Sequences, seed: tf.Tensor | None) -> tf.Tensor:
        """[R, L, D] vector of each place, from itself and the places before it."""
        item = windows.items[:, :, 0]
        present = tf.cast(item != MISSING, tf.float32)[:, :, tf.newaxis]
        hidden = self.vectors(item) * self.stretch + tf.gather(self.positions, windows.position)
        if self.gaps is not None:
            hidden += tf.gather(self.gaps, self._seen_gaps(windows, seed))
        hidden = dropped(hidden * present, self.settings.dropout, seed, f"{self.spec.name}.input")
        length = tf.shape(item, out_type=tf.int64)[1]
        place = tf.range(length)
        segment = windows.segment
        sees = (place[:, tf.newaxis] >= place) & (segment[:, :, tf.newaxis] == segment[:, tf.newaxis, :])
        for block in self.blocks:
            hidden = block(hidden, sees, seed)
        return self.norm(hidden)

    def _seen_gaps(self, windows: Sequences, seed: tf.Tensor | None) -> tf.Tensor:
        """The time gaps [R, L]; a share of the windows trains with unknown ones, as in a request without times."""
        gaps = windows.items[:, :, 1]
        if seed is None or not self.settings.gap_mask_share:
            return gaps
        shape = tf.shape(gaps)
        draws = tf.random.stateless_uniform([shape[0], shape[1] + 1], own_seed(seed, f"{self.spec.name}.gaps"))
        kept = tf.gather(draws, windows.segment, batch_dims=1) >= self.settings.gap_mask_share
        return tf.where(kept, gaps, tf.constant(UNKNOWN_GAP, gaps.dtype))


class _Norm(tf.Module):
    """Layer normalisation. Source: Ba et al., 2016."""

    def __init__(self, name: str, width: int) -> None:
        super().__init__()
        self.scale = tf.Variable(tf.ones([width]), name=f"{name}.scale")
        self.offset = tf.Variable(tf.zeros([width]), name=f"{name}.offset")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        centred = x - tf.reduce_mean(x, axis=-1, keepdims=True)
        variance = tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True)
        return centred * tf.math.rsqrt(variance + EPSILON) * self.scale + self.offset


class _Dense(tf.Module):
    """A linear layer with Glorot initialisation."""

    def __init__(self, name: str, width: int, seed: int) -> None:
        super().__init__()
        self.kernel = _uniform(f"{name}.kernel", [width, width], (3.0 / width) ** 0.5, seed)
        self.bias = tf.Variable(tf.zeros([width]), name=f"{name}.bias")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return tf.tensordot(x, self.kernel, 1) + self.bias


class _Block(tf.Module):
    """Attention, then a feed-forward layer at each place, both with a residual connection."""

    def __init__(self, name: str, width: int, heads: int, dropout: float, seed: int) -> None:
        super().__init__()
        self.label, self.heads, self.dropout = name, heads, dropout
        self.norms = [_Norm(f"{name}.norm_{part}", width) for part in ("attention", "forward")]
        self.query, self.key, self.value, self.mixed, self.inner, self.outer = (
            _Dense(f"{name}.{part}", width, seed) for part in ("query", "key", "value", "mixed", "inner", "outer")
        )

    def __call__(self, x: tf.Tensor, sees: tf.Tensor, seed: tf.Tensor | None) -> tf.Tensor:
        """[R, L, D] from [R, L, D]; `sees` [R, L, L] is True where a place may attend to another."""
        x += self._drop(self._attention(self.norms[0](x), sees, seed), seed, "attention")
        inner = tf.nn.relu(self.inner(self.norms[1](x)))
        return x + self._drop(self.outer(self._drop(inner, seed, "inner")), seed, "forward")

    def _attention(self, x: tf.Tensor, sees: tf.Tensor, seed: tf.Tensor | None) -> tf.Tensor:
        query, key, value = (self._split(layer(x)) for layer in (self.query, self.key, self.value))
        scores = tf.matmul(query, key, transpose_b=True) * int(query.shape[-1]) ** -0.5
        weights = tf.nn.softmax(tf.where(sees[:, tf.newaxis], scores, HIDDEN))
        seen = tf.matmul(self._drop(weights, seed, "weights"), value)
        return self.mixed(tf.reshape(tf.transpose(seen, [0, 2, 1, 3]), tf.shape(x)))

    def _split(self, x: tf.Tensor) -> tf.Tensor:
        """[R, L, D] to [R, heads, L, D / heads]."""
        shape = tf.shape(x)
        width = int(x.shape[2]) // self.heads
        return tf.transpose(tf.reshape(x, [shape[0], shape[1], self.heads, width]), [0, 2, 1, 3])

    def _drop(self, x: tf.Tensor, seed: tf.Tensor | None, part: str) -> tf.Tensor:
        return dropped(x, self.dropout, seed, f"{self.label}.{part}")


def _closed_up(values: tf.Tensor, known: tf.Tensor, filler: int | np.int64) -> tf.Tensor:
    """The known values [B, L] of each row, moved to the front, then at least one filler: no request is empty."""
    return tf.pad(tf.ragged.boolean_mask(values, known).to_tensor(filler), [[0, 0], [0, 1]], constant_values=filler)


def _one_by_one(histories: tf.Tensor) -> Sequences:
    """Histories [B, L, 2] as windows, one per row."""
    histories = tf.cast(histories, tf.int64)
    present = histories[:, :, 0] != MISSING
    count = tf.cumsum(tf.cast(present, tf.float32), axis=1)
    shape = tf.shape(histories, out_type=tf.int64)
    newest = tf.reduce_max(tf.where(present, tf.range(shape[1]), tf.constant(NO_PLACE, tf.int64)), axis=1)
    place = tf.where(newest == NO_PLACE, newest, newest + tf.range(shape[0]) * shape[1])
    position = tf.maximum(tf.cast(count, tf.int64) - 1, 0)
    return Sequences(histories, tf.cast(present, tf.int64), position, place)


def _uniform(name: str, shape: list[int], limit: float, seed: int) -> tf.Variable:
    return tf.Variable(first_weights(name, shape, limit, seed), name=name)
