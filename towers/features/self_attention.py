"""Encodes the history as an ordered sequence: causal self-attention over the last items, positions and time gaps.

Training passes `towers.data.packing.Sequences`, a request `[B, L, 2]`. A place sees itself and earlier places of its
own window, so one pass over a window gives the vectors of all its prefixes. Positions count from the oldest item, so a
request with fewer items gets exactly the vector of training. With `positions = "distance"` they are not read at all:
the blocks read how far apart two places of a window are, in a packed row as in a request.

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
from towers.features.attention_block import Block, Norm, uniform
from towers.features.encoder import FeatureEncoder, FeatureSpec
from towers.ops.stateless_random import dropped, own_seed

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
        self.positions: tf.Variable | None = None
        if settings.positions == "absolute":
            self.positions = uniform(f"{spec.name}.positions", [settings.max_length, width], limit, seed)
        self.gaps: tf.Variable | None = None
        if settings.time_gaps:
            self.gaps = uniform(f"{spec.name}.gaps", [1 + len(GAP_BOUNDS), width], limit, seed)
        self.blocks = [Block(f"{spec.name}.block_{number}", width, settings, seed) for number in range(settings.blocks)]
        self.norm = Norm(f"{spec.name}.norm", width)

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
        if isinstance(rows, Sequences):
            windows = rows
        else:
            # Blocks that read distances take them from the places, so no place between two items may be empty.
            windows = _one_by_one(rows if self.positions is not None else _items_first(rows))
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
        hidden = self.vectors(item) * self.stretch
        if self.positions is not None:
            hidden += tf.gather(self.positions, windows.position)
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


def _closed_up(values: tf.Tensor, known: tf.Tensor, filler: int | np.int64) -> tf.Tensor:
    """The known values [B, L] of each row, moved to the front, then at least one filler: no request is empty."""
    return tf.pad(tf.ragged.boolean_mask(values, known).to_tensor(filler), [[0, 0], [0, 1]], constant_values=filler)


def _items_first(histories: tf.Tensor) -> tf.Tensor:
    """Histories [B, L, 2] with their items at the front, in the same order."""
    missing = tf.cast(histories[:, :, 0] == MISSING, tf.int32)
    return tf.gather(histories, tf.argsort(missing, axis=1, stable=True), batch_dims=1)


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
