"""The only place for names that TensorFlow does not publish, with the reason for each."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

# The releases that have these names. To add one, run the tests of rows, full_softmax and optimizers with it.
RELEASES = ("2.20",)

try:
    from tensorflow.python.eager.record import VariableWatcher, record_operation, stop_recording
    from tensorflow.python.eager.tape import variables_accessed
    from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext
except ImportError as error:
    raise ImportError(
        f"TensorFlow {tf.__version__} lacks a name that it does not publish and that towers needs ({error}); install "
        f"TensorFlow {' or '.join(RELEASES)}"
    ) from error


def compiled_by_xla() -> bool:
    """Whether XLA, which lacks some operations, compiles the current trace; TensorFlow publishes no way to ask."""
    return bool(GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))


def recorded(
    forward: Callable[[], Sequence[tf.Tensor]],
    inputs: Sequence[tf.Tensor],
    backward: Callable[[list[tf.Tensor], Sequence[tf.Tensor], Sequence[tf.Variable]], list[Any]],
) -> list[tf.Tensor]:
    """The results of `forward`, with `backward` as their gradient on every `GradientTape`.

    `tf.custom_gradient` would read each variable whole, which copies a table that is also scattered to, and would hold
    the graph and all its tables until the process ends. In a `tf.function` inside another one, TensorFlow ignores this
    gradient and differentiates `forward`.

    Args:
        forward: computes the results; no tape records it.
        inputs: tensors that get a gradient, besides the variables that `forward` reads.
        backward: takes the results, their gradients and those variables; returns the gradients of the inputs, then of
            the variables.
    """
    with stop_recording(), VariableWatcher() as watcher:
        results = list(forward())
    variables = sorted(watcher.watched_variables(), key=lambda one: one.name)
    variables_accessed(variables)

    def gradient(*upstream: tf.Tensor) -> list[Any]:
        return backward(results, upstream, variables)

    record_operation("recorded", results, [*inputs, *(one.handle for one in variables)], gradient)
    return results
