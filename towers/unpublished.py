"""The names of TensorFlow that it does not publish: here and nowhere else, with the reason for each.

In: what is traced, and a pass forward and back. Out: whether XLA compiles it; results with a gradient of their own.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

# Whose names these are. To add a release, run the tests of rows, full_softmax and optimizers with it.
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
    """Whether XLA compiles what is traced now: it lacks operations, and TensorFlow publishes no way to ask."""
    return bool(GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))


def recorded(
    forward: Callable[[], Sequence[tf.Tensor]],
    inputs: Sequence[tf.Tensor],
    backward: Callable[[list[tf.Tensor], Sequence[tf.Tensor], Sequence[tf.Variable]], list[Any]],
) -> list[tf.Tensor]:
    """What `forward` gives, with `backward` as its gradient on every `GradientTape`.

    Not `tf.custom_gradient`: that reads each variable whole, which copies a table that is also scattered to, and holds
    the graph and all tables in it until the process ends. In a `tf.function` inside another one TensorFlow does not
    ask this gradient, but differentiates what `forward` did.

    Args:
        forward: the results; no tape sees how they are made.
        inputs: what gets a gradient beside the variables that `forward` reads.
        backward: of the results, their gradients and those variables; gradients of the inputs, then of the variables.
    """
    with stop_recording(), VariableWatcher() as watcher:
        results = list(forward())
    variables = sorted(watcher.watched_variables(), key=lambda one: one.name)
    variables_accessed(variables)

    def gradient(*upstream: tf.Tensor) -> list[Any]:
        return backward(results, upstream, variables)

    record_operation("recorded", results, [*inputs, *(one.handle for one in variables)], gradient)
    return results
