"""Turns feature columns into tensors, inside the graph, in two stages that training and serving share.

`lookup` turns raw values (strings, numbers) into small integers: training runs it once over whole tables, the exported
SavedModel on every request. `embed` turns those into vectors `[B, D]`. As the code is shared, there is no skew.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from towers.config.features import Feature
from towers.data.bags import MISSING
from towers.ops.row_gradients import gathered
from towers.ops.stateless_random import first_weights, own_seed

if TYPE_CHECKING:
    from towers.features.item_columns import ItemColumns

# Between the words of a text. Marks after a letter, and what joins letters or parts them (U+200C, U+200D), belong to
# the word: in Hindi, Thai, Persian and others they write it. After another sign, and those that choose the look of an
# emoji (U+FE0E, U+FE0F), they do not. Earlier releases broke words at every mark.
WORD_BREAKS = r"(?:^\pM|[^\pL\pN\pM\x{200C}\x{200D}]|[\x{FE0E}\x{FE0F}])[^\pL\pN]*"
EARLIER_BREAKS = r"[^\pL\pN]+"
# What TensorFlow makes another letter of in Turkish, Azeri or Lithuanian, if that is the language of the process.
CAPITALS = {"I": "i", "\u0130": "i\u0307", "\u00cc": "\u00ec", "\u00cd": "\u00ed", "\u0128": "\u0129"}
CLOCK_VALUES = {"hour": 24, "weekday": 7}


@dataclass(frozen=True)
class FeatureSpec:
    """One feature with what it learnt from the data.

    Attributes:
        name: the input's name in the SavedModel and in requests.
        config: the recipe's section for it.
        vocabulary: text file, one value per line; "" for kinds without one, and for an empty vocabulary.
        size: lines of that file; of a vector, its numbers.
        mean, deviation: of a numeric column, after its log if it takes one; of a vector, a list with each number's.
        table: name of the embedding table; features that name the same table share its rows.
        columns: of a list of items, the columns whose vectors each item's vector includes.
        word_breaks: of a text, what is between two words.
    """

    name: str
    config: Feature
    vocabulary: str = ""
    size: int = 0
    mean: float | list[float] = 0.0
    deviation: float | list[float] = 1.0
    table: str = ""
    columns: tuple["FeatureSpec", ...] = ()
    word_breaks: str = WORD_BREAKS

    @property
    def dtype(self) -> tf.DType:
        """Type of the raw input."""
        types = {"numeric": tf.float32, "vector": tf.float32, "hour": tf.int64, "weekday": tf.int64}
        return types.get(self.config.kind, tf.string)

    @property
    def linear(self) -> bool:
        """Whether its numbers are multiplied with the table, whose last row stands for a missing value."""
        return self.config.kind in ("numeric", "vector")

    @property
    def length(self) -> int | None:
        """Maximum number of values in a list input `[B, L]`, all of a vector; None for a scalar input `[B]`."""
        config = self.config
        match config.kind:
            case "multi" | "history" | "neighbours" | "cooccurrence" | "sequence":
                return config.max_length
            case "vector":
                return self.size
            case _:
                return None

    @property
    def rows(self) -> int:
        """Rows of its embedding table: missing, vocabulary, out-of-vocabulary buckets."""
        config = self.config
        match config.kind:
            case "categorical" | "multi" | "text":
                return 1 + self.size + config.oov_buckets
            case "hashed":
                return 1 + config.buckets
            case "hour" | "weekday":
                return 1 + CLOCK_VALUES[config.kind]
            case "numeric":
                return 2  # one direction for the value, one for "missing"
            case _:
                return 1 + self.size  # of a vector, one direction for each number

    def signature(self) -> tf.TensorSpec:
        """The signature of the raw input in the SavedModel."""
        shape = [None] if self.length is None else [None, self.length if self.config.kind == "vector" else None]
        return tf.TensorSpec(shape, self.dtype, name=self.name)

    @property
    def times(self) -> str | None:
        """Name of the second raw input, if there is one: int64 [B, L] times of the values, -1 if unknown."""
        return f"{self.name}_times" if self.config.kind == "sequence" and self.config.time_gaps else None

    def signatures(self) -> list[tf.TensorSpec]:
        """The signatures of all raw inputs in the SavedModel."""
        times = [] if self.times is None else [tf.TensorSpec([None, None], tf.int64, name=self.times)]
        return [self.signature(), *times]


class FeatureEncoder(tf.Module):
    """Looks up one feature, and embeds it if it has one value per example.

    Args:
        spec: the feature and what it learnt.
        table: embedding rows `[spec.rows, D]`; a shared table comes from another encoder.
    """

    def __init__(self, spec: FeatureSpec, table: tf.Variable) -> None:
        super().__init__(name=f"feature_{spec.name}")
        self.spec = spec
        self.table = table
        self.columns: ItemColumns | None = None  # set by the towers, which have all tables
        self._vocabulary: Any = None
        if spec.vocabulary:
            self._vocabulary = tf.lookup.StaticHashTable(
                tf.lookup.TextFileInitializer(
                    spec.vocabulary,
                    key_dtype=tf.string,
                    key_index=tf.lookup.TextFileIndex.WHOLE_LINE,
                    value_dtype=tf.int64,
                    value_index=tf.lookup.TextFileIndex.LINE_NUMBER,
                ),
                default_value=-1,
            )

    def lookup(self, raw: tf.Tensor) -> tf.Tensor:
        """Turns raw values into table rows.

        Args:
            raw: `[B]`, or `[B, L]` for lists padded with "" and for vectors.

        Returns:
            int32 rows in the raw value's shape, `[B, max_length]` for text; for a number float32 `[B, 2]`, for a vector
            `[B, L + 1]`: the standardised values, and 1 if they are missing.
        """
        config = self.spec.config
        match config.kind:
            case "numeric":
                return self._standardise(raw, log=config.log)
            case "vector":
                return self._standardise_vectors(raw)
            case "hour" | "weekday":
                known = (raw >= 0) & (raw < CLOCK_VALUES[config.kind])
                return tf.cast(tf.where(known, raw + 1, MISSING), tf.int32)
            case "hashed":
                bucket = 1 + tf.strings.to_hash_bucket_fast(raw, config.buckets)
                return tf.cast(tf.where(raw == "", tf.constant(MISSING, tf.int64), bucket), tf.int32)
            case "text":
                for capital, small in CAPITALS.items():
                    raw = tf.strings.regex_replace(raw, capital, small)
                lower = tf.strings.lower(raw, "utf-8")
                words = tf.strings.split(tf.strings.regex_replace(lower, self.spec.word_breaks, " "))
                raw = words[:, : config.max_length].to_tensor("", shape=[None, config.max_length])
            case "history" | "neighbours" | "cooccurrence" | "sequence":
                raw = raw[:, -config.max_length :]
            case _:
                pass
        unknown = tf.fill(tf.shape(raw), tf.constant(-1, tf.int64))
        known = unknown if self._vocabulary is None else self._vocabulary.lookup(raw)
        buckets = getattr(config, "oov_buckets", 0)
        if buckets:
            hashed = self.spec.size + tf.strings.to_hash_bucket_fast(raw, buckets)
            known = tf.where((known < 0) & (raw != ""), hashed, known)
        return tf.cast(known + 1, tf.int32)

    def lookup_all(self, raw: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """The input of `embed`, from raw inputs by name: `lookup`, if the feature has one input."""
        return self.lookup(raw[self.spec.name])

    def embed(self, rows: Any, seed: tf.Tensor | None = None) -> tf.Tensor:
        """Turns looked-up rows into vectors `[B, D]`; `towers.features.pooling` pools several values per example.

        Args:
            rows: of B examples.
            seed: [2] of the masks; None outside training.
        """
        if seed is not None and self.spec.config.mask_share > 0:
            rows = self.mask(rows, seed)
        return tf.matmul(rows, self.table) if self.spec.linear else gathered(self.table, rows)

    def vectors(self, rows: tf.Tensor) -> tf.Tensor:
        """Vectors of table rows, in the shape of `rows` plus one axis: of items with their columns' vectors."""
        own = gathered(self.table, rows)
        return own if self.columns is None else own + self.columns.embed(rows)

    def served(self) -> "FeatureEncoder":
        """What gives a request the same vectors, perhaps sooner; it may share variables with this encoder."""
        return self

    def informs(self, rows: tf.Tensor) -> tf.Tensor:
        """Whether looked-up rows carry something that training learnt: bool [B].

        A missing value carries nothing, and a row that no training example read is zero (see
        `towers.model.untrained_rows`).
        """
        if self.spec.linear:
            return (rows[:, -1] == 0) & tf.reduce_any(self.table[:-1] != 0)
        known = (rows != MISSING) & tf.reduce_any(self.vectors(rows) != 0, axis=-1)
        return known if rows.shape.rank == 1 else tf.reduce_any(known, axis=1)

    def mask(self, rows: Any, seed: tf.Tensor) -> Any:
        """Makes a seeded `mask_share` of the examples missing, so that "missing" is learnt too."""
        keep = self._kept(tf.shape(rows)[0], seed)
        if self.spec.linear:
            return tf.where(keep[:, tf.newaxis], rows, tf.constant([0.0] * (self.spec.rows - 1) + [1.0]))
        keep = keep if rows.shape.rank == 1 else keep[:, tf.newaxis]
        return tf.where(keep, rows, tf.constant(MISSING, rows.dtype))

    def _kept(self, size: tf.Tensor, seed: tf.Tensor | None) -> tf.Tensor:
        """Which of `size` examples are not masked: bool [B]."""
        return tf.random.stateless_uniform([size], own_seed(seed, self.spec.name)) >= self.spec.config.mask_share

    def _standardise(self, raw: tf.Tensor, *, log: bool) -> tf.Tensor:
        value = tf.sign(raw) * tf.math.log1p(tf.abs(raw)) if log else raw
        missing = tf.math.is_nan(raw)
        value = tf.where(missing, 0.0, (value - self.spec.mean) / self.spec.deviation)
        return tf.stack([value, tf.cast(missing, tf.float32)], axis=1)

    def _standardise_vectors(self, raw: tf.Tensor) -> tf.Tensor:
        # Over sqrt(L), so that the vectors have a mean square of 1 and a step moves a long one as far as a short one.
        missing = tf.reduce_any(tf.math.is_nan(raw), axis=1, keepdims=True)
        value = (raw - self.spec.mean) / self.spec.deviation / self.spec.size**0.5
        return tf.concat([tf.where(missing, 0.0, value), tf.cast(missing, tf.float32)], axis=1)


def new_table(spec: FeatureSpec, dimension: int, seed: int, dtype: str = "float32") -> tf.Variable:
    """An embedding table `[spec.rows, dimension]`, seeded by its name; the row of missing values starts at zero.

    Uniform, with a mean length of 0.1: small enough that summed features start close to one another. The two directions
    of a number start at zero, so that an unused one adds nothing. Those of numbers are float32 whatever `dtype` is.
    """
    if spec.config.kind == "numeric":
        return tf.Variable(tf.zeros([spec.rows, dimension]), name=f"table_{spec.table}")
    # [rows, 1] rather than a slice and a concatenation, each of which would copy the table.
    limits = np.full([spec.rows, 1], (3.0 / dimension) ** 0.5 / 10, np.float32)
    limits[-1 if spec.linear else MISSING] = 0.0
    start = first_weights(spec.table, [spec.rows, dimension], limits, seed)
    return tf.Variable(start if spec.linear else tf.cast(start, dtype), name=f"table_{spec.table}")
