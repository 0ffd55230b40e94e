"""A compiled TensorFlow function as an HLO module, with the arrays that it takes.

A module's parameters are the function's arguments, then the variables and constants that it reads; its results are the
function's, then the new values of the variables that it writes. The first line of its text names them all.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from towers.data.batch import Batch

NUMPY = {
    "pred": "bool",
    "s32": "int32",
    "s64": "int64",
    "u32": "uint32",
    "u64": "uint64",
    "f32": "float32",
    "f64": "float64",
}
SHAPE = re.compile(r"(\w+)\[([\d,]*)\]")
ALIAS = re.compile(r"\{(\d+)\}: \((\d+), \{\}")

Types = list[tuple[str, tuple[int, ...]]]


def entry_of(function: Any, batches: Sequence[Batch]) -> dict[str, Any]:
    """Compiles `function`, a `tf.function` with `jit_compile=True` that takes a batch.

    Returns:
        `module`: an `HloModuleProto` as bytes, uint8. `batches`: for each batch, the arrays of its parameters. `state`:
        the arrays of the other parameters, as they are now. `written`: places in `state` of the variables whose new
        values are the module's last results. `results`: dtype and shape of each result.

    Raises:
        ValueError: its parameters or results are not those above, or it calls code that is compiled for this device.
    """
    ir = function.experimental_get_compiler_ir(batches[0])
    text = ir(stage="hlo")
    if calls := set(re.findall(r'custom_call_target="([^"]*)"', text)):
        raise ValueError(f"the module calls {', '.join(sorted(calls))}, which another device may not have")
    header = text.partition("\n")[0]
    takes, gives = (_types(part) for part in header.partition("entry_computation_layout=")[2].split("->", 1))
    arguments = arrays_of(batches[0])
    state = state_of(function, batches[0], [dtype for dtype, _ in takes[len(arguments) :]])
    given = [(array.dtype.name, array.shape) for array in arguments + state]
    if takes != given:
        raise ValueError(f"the module takes {takes}, the function {given}")
    written = {int(result): int(parameter) - len(arguments) for result, parameter in ALIAS.findall(header)}
    if list(written) != list(range(len(gives) - len(written), len(gives))):
        raise ValueError(f"of {len(gives)} results the new values are {list(written)}, not the last ones")
    return {
        "module": np.frombuffer(ir(stage="hlo_serialized"), np.uint8),
        "batches": [arrays_of(batch) for batch in batches],
        "state": state,
        "written": list(written.values()),
        "results": gives,
    }


def arrays_of(batch: Batch) -> list[NDArray[Any]]:
    """The tensors of a batch in TensorFlow's order, without empty ones, which no module takes."""
    return [each.numpy() for each in tf.nest.flatten(batch) if np.prod(each.shape)]


def state_of(function: Any, batch: Batch, dtypes: Sequence[Any]) -> list[NDArray[Any]]:
    """What the variables and constants that `function` reads hold now; `dtypes` are their types."""
    tensors = function.get_concrete_function(batch).captured_inputs
    return [
        # Of a variable TensorFlow passes its handle.
        (tf.raw_ops.ReadVariableOp(resource=each, dtype=dtype) if each.dtype == tf.resource else each).numpy()
        for each, dtype in zip(tensors, dtypes, strict=True)
    ]


def places_of(function: Any, batch: Batch, variables: Sequence[tf.Variable]) -> list[int]:
    """Which arrays of `state_of` hold these variables, in rising order."""
    handles = {id(each.handle) for each in variables}
    return [n for n, each in enumerate(function.get_concrete_function(batch).captured_inputs) if id(each) in handles]


def _types(text: str) -> Types:
    return [(NUMPY[name], tuple(int(n) for n in sizes.split(",") if n)) for name, sizes in SHAPE.findall(text)]
