"""Makes the train step a graph, or compiles it with XLA; a step that XLA cannot compile is refused, with the reason."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from towers.errors import ConfigError

REMEDY = "set it to false"


def compiled(step: Callable[[Any], tf.Tensor], one: Any, *, jit_compile: bool) -> Any:
    """`step` as a `tf.function`.

    Args:
        step: maps a batch to a loss.
        one: a batch of tensors.
        jit_compile: compile with XLA.

    Raises:
        ConfigError: XLA has no kernel for part of the step, or would compile it anew for every batch.
    """
    if not jit_compile:
        # One graph from the first batch on, in a new and in a resumed run: known and unknown sizes make different
        # graphs, which differ in the last bits.
        return tf.function(step, input_signature=[_of_any_size(one)], autograph=False)
    function = tf.function(step, reduce_retracing=True, autograph=False, jit_compile=True)
    if changing := sorted(_changing(one)):
        raise ConfigError(
            f"train.jit_compile: how many rows {', '.join(changing)} reads changes from batch to batch, and XLA would "
            f"compile the step for each anew; {REMEDY}"
        )
    try:
        function.experimental_get_compiler_ir(one)(stage="hlo_serialized")
    except (tf.errors.OpError, ValueError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0][:300]
        raise ConfigError(f"train.jit_compile: XLA cannot compile this step ({reason}); {REMEDY}") from None
    return function


def _of_any_size(batch: Any) -> Any:
    """The signature of a batch; parts of several tensors, `Bag` or `Sequences`, change in size between batches."""
    if type(batch) is tuple:  # one for each device
        return tuple(map(_of_any_size, batch))
    return type(batch)(*(_signature(part) for part in batch))


def _signature(part: Any) -> Any:
    if isinstance(part, Mapping):
        return {name: _signature(value) for name, value in part.items()}
    if isinstance(part, tuple):
        return tf.nest.map_structure(lambda each: tf.TensorSpec([None] * each.shape.rank, each.dtype), part)
    return tf.TensorSpec(part.shape, part.dtype)


def _changing(batch: Any) -> list[str]:
    """Names of the parts of a batch that change in size, by their type: two batches may happen to be alike."""
    parts: dict[str, Any] = {}
    for name, part in batch._asdict().items():
        parts |= part if isinstance(part, Mapping) else {name: part}
    return [name for name, part in parts.items() if isinstance(part, tuple)]
