"""One block of self-attention: attention, then a feed-forward layer at each place, both added to their input.

In: the vectors `[R, L, D]` of the places of R rows, and which place may see which. Out: new vectors, same shape.

    h <- h + W_o sum_j softmax_j(q_t . k_j / sqrt(d) + b_(t-j)) v_j        h <- h + W_2 relu(W_1 h)

The layers read h through a norm (Xiong et al., On layer normalization in the transformer architecture, ICML 2020).
`towers.features.self_attention` says who sees whom, `SequenceFeature` which of these a block has:

- `positions = "distance"`: b, a number for each head and each distance from a place to an earlier one, which starts
  at zero; otherwise b = 0. Source: the positional part of the bias of HSTU (Zhai et al., Actions speak louder than
  words, ICML 2024), here in a softmax and of each head.
- `forward = "swiglu"`: `W_2 (silu(W_1 h) * W_3 h)`, silu(x) = x sigmoid(x). Source: Shazeer, GLU variants improve
  transformer, 2020, here with the biases that the other layers have.
- `gated`: of both parts `h <- h + f(norm(h)) * sigmoid(W_g h + c)`. The gate reads h without its norm. Source: LiGR
  (Borisyuk et al., From features to transformers, 2025) as in eSASRec (Tikhonovich et al., RecSys 2025, equation 1).
"""

import tensorflow as tf

from towers.config.features import SequenceFeature
from towers.ops.stateless_random import dropped, first_weights

EPSILON = 1e-6  # of layer norms
HIDDEN = -1e9  # score of a masked place
PARTS = ("attention", "forward")


class Norm(tf.Module):
    """Layer normalisation. Source: Ba et al., 2016."""

    def __init__(self, name: str, width: int) -> None:
        super().__init__()
        self.scale = tf.Variable(tf.ones([width]), name=f"{name}.scale")
        self.offset = tf.Variable(tf.zeros([width]), name=f"{name}.offset")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """[..., D] from [..., D]: each vector with mean 0 and deviation 1, times the scale, plus the offset."""
        centred = x - tf.reduce_mean(x, axis=-1, keepdims=True)
        variance = tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True)
        return centred * tf.math.rsqrt(variance + EPSILON) * self.scale + self.offset


class Block(tf.Module):
    """Attention, then a feed-forward layer at each place, both with a residual connection.

    Args:
        name: prefix of its variables' names.
        width: D, of the vectors.
        settings: the recipe's section of the feature.
        seed: of the initial weights.
    """

    def __init__(self, name: str, width: int, settings: SequenceFeature, seed: int) -> None:
        super().__init__()
        self.label, self.heads, self.dropout = name, settings.heads, settings.dropout
        self.norms = [Norm(f"{name}.norm_{part}", width) for part in PARTS]
        self.query, self.key, self.value, self.mixed, self.inner, self.outer = (
            _Dense(f"{name}.{part}", width, seed) for part in ("query", "key", "value", "mixed", "inner", "outer")
        )
        # None where an option is off, not an empty list, which would be one more object of a checkpoint.
        self.linear = _Dense(f"{name}.linear", width, seed) if settings.forward == "swiglu" else None
        self.gates = [_Dense(f"{name}.gate_{part}", width, seed) for part in PARTS] if settings.gated else None
        self.distances: tf.Variable | None = None
        if settings.positions == "distance":
            start = tf.zeros([settings.heads, settings.max_length])
            self.distances = tf.Variable(start, name=f"{name}.distances")

    def __call__(self, x: tf.Tensor, sees: tf.Tensor, seed: tf.Tensor | None) -> tf.Tensor:
        """[R, L, D] from [R, L, D].

        Args:
            x: the vectors.
            sees: bool [R, L, L], True where a place may attend to another. Places that see each other stand as far
                apart as their items in the history.
            seed: [2] of dropout; None outside training.
        """
        x = self._residual_sum(0, x, self._drop(self._attention(self.norms[0](x), sees, seed), seed, "attention"))
        inner = self._drop(self._inner(self.norms[1](x)), seed, "inner")
        return self._residual_sum(1, x, self._drop(self.outer(inner), seed, "forward"))

    def _residual_sum(self, part: int, x: tf.Tensor, change: tf.Tensor) -> tf.Tensor:
        return x + (change if self.gates is None else change * tf.sigmoid(self.gates[part](x)))

    def _inner(self, x: tf.Tensor) -> tf.Tensor:
        inner = self.inner(x)
        return tf.nn.relu(inner) if self.linear is None else inner * tf.sigmoid(inner) * self.linear(x)

    def _attention(self, x: tf.Tensor, sees: tf.Tensor, seed: tf.Tensor | None) -> tf.Tensor:
        query, key, value = (self._split(layer(x)) for layer in (self.query, self.key, self.value))
        scores = tf.matmul(query, key, transpose_b=True) * int(query.shape[-1]) ** -0.5
        if self.distances is not None:
            scores += _by_distance(self.distances, tf.shape(x, out_type=tf.int64)[1])
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


class _Dense(tf.Module):
    """A linear layer with Glorot initialisation."""

    def __init__(self, name: str, width: int, seed: int) -> None:
        super().__init__()
        self.kernel = uniform(f"{name}.kernel", [width, width], (3.0 / width) ** 0.5, seed)
        self.bias = tf.Variable(tf.zeros([width]), name=f"{name}.bias")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return tf.tensordot(x, self.kernel, 1) + self.bias


def uniform(name: str, shape: list[int], limit: float, seed: int) -> tf.Variable:
    """A variable whose numbers start uniform in [-limit, limit), seeded by its name."""
    return tf.Variable(first_weights(name, shape, limit, seed), name=name)


def _by_distance(bias: tf.Variable, length: tf.Tensor) -> tf.Tensor:
    """[heads, L, L] from [heads, max_length]: element t, j is the bias of distance t - j.

    The same for all rows, so that its gradient adds up L * L numbers of a head, however many rows there are. What no
    window has, a later place or one further away, gets some bias: no place sees it.
    """
    place = tf.range(length)
    distance = tf.clip_by_value(place[:, tf.newaxis] - place, 0, int(bias.shape[1]) - 1)
    return tf.gather(bias, distance, axis=1)
