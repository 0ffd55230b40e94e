"""Says which operations of a graph would not run on a GPU, and how large its tensors are; no GPU is needed for that.

In: a concrete function's graph. Out: `problems`, sentences, empty where all is well; `largest`, its tensors by size.

TensorFlow registers the GPU kernels of its Linux wheels on every machine. An operation is a problem where
1. no kernel for a GPU (or for any device, "DEFAULT") matches its types, or it calls Python, asserts, or makes a result
   whose size only the data say;
2. its kernel reads *data* from host memory: each step would wait for a copy from the GPU. That is int32 arithmetic,
   mostly. Data is what comes from an input, a variable or a random draw; what comes from constants and shapes alone is
   not, and neither is an int32 input of a few elements (a seed), which lies in host memory from the start;
3. its kernel leaves more than a few elements in host memory, from where each step would copy them to the GPU;
4. it carries int32 data through a loop or a branch: they keep int32 in host memory.
Resource handles and seeds may be in host memory. An operation whose result is unused is not checked.
"""

from collections.abc import Iterator
from functools import cache
from math import prod
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, types_pb2
from tensorflow.python.framework import kernels

FEW = 64  # more elements than any shape, axis list or seed has
SEED = 8  # elements of an int32 input that is a seed or a count, no data
REFUSED = (
    dict.fromkeys(("PyFunc", "PyFuncStateless", "EagerPyFunc"), "calls Python")
    | dict.fromkeys(("Where", "Unique", "UniqueWithCounts"), "makes a result whose size the data say")
    | {"Assert": "asserts"}
)
# What the runtime itself does, or a rewrite takes out of the graph before it runs.
PLUMBING = {"Placeholder", "NoOp", "Identity", "IdentityN", "StopGradient", "PreventGradient", "_Arg", "_Retval"}
METADATA = {"Shape", "ShapeN", "Size", "Rank", "BroadcastGradientArgs", "VariableShape", "TensorListLength"}
LOOPS, BRANCHES = {"While", "StatelessWhile"}, {"If", "StatelessIf", "Case", "StatelessCase"}
CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
FROM_VALUES = {"Range", "Fill", "Tile", "BroadcastTo"}  # their result is as large as a value says


def problems(graph: Any, ignore: frozenset[str] = frozenset()) -> list[str]:
    """Why this graph would not stay on a GPU.

    Args:
        graph: of a concrete function (`step.get_concrete_function(...).graph`), or a `tf.Graph`.
        ignore: types of operations that are not looked at.

    Returns:
        One sentence for each operation, that names it; sorted.
    """
    walk = _Walk(ignore)
    inputs = [] if not hasattr(graph, "inputs") else [_is_data_input(tensor) for tensor in graph.inputs]
    walk.graph(graph, inputs, "")
    return sorted(walk.found)


def largest(graph: Any) -> list[tuple[int, tuple[int | None, ...], str]]:
    """Every tensor that operations of this graph and of the functions it calls make, the largest first.

    Inputs are left out, and so are variables; a whole variable that is read is not.

    Returns:
        (elements, shape, operation), a dimension that is not known counted as 1, a shape without known rank as ().
    """
    sizes = set()
    for path, op in _all_ops(graph, ""):
        # What only passes something on makes nothing; what a loop or a call makes, an operation in it makes.
        for tensor in () if op.type in PLUMBING | LOOPS | BRANCHES | CALLS else op.outputs:
            shape = tuple(tensor.shape) if tensor.shape.rank is not None else ()
            elements = prod(1 if size is None else size for size in shape)
            sizes.add((elements, shape, f"{path}{op.name} ({op.type})"))
    return sorted(sizes, key=lambda entry: (-entry[0], entry[2]))


class _Walk:
    """One pass over a graph and the functions that it calls, as often as a loop needs until nothing changes."""

    def __init__(self, ignore: frozenset[str]) -> None:
        self.ignore = ignore
        self.found: set[str] = set()

    def graph(self, graph: Any, inputs: list[bool], path: str) -> list[bool]:
        """Which of the graph's outputs are data, given which of its inputs are."""
        data: dict[Any, bool] = {}
        for tensor, given in zip(getattr(graph, "inputs", []), inputs, strict=True):
            data[tensor.ref()] = given
        for op in _needed(graph):
            given = [data.get(tensor.ref(), False) for tensor in op.inputs]
            if op.type in LOOPS | BRANCHES | CALLS:
                made = self._called(op, given, path)
            else:
                self._check(op, given, path)
                made = [_makes_data(op, given)] * len(op.outputs)
            for tensor, value in zip(op.outputs, made, strict=True):
                data.setdefault(tensor.ref(), value)
        return [data.get(tensor.ref(), False) for tensor in getattr(graph, "outputs", [])]

    def _called(self, op: Any, given: list[bool], path: str) -> list[bool]:
        functions = _functions(op)
        inside = f"{path}{op.name}/"
        if op.type in LOOPS:
            while True:
                self.graph(functions["cond"], given, inside)
                after = [
                    old or new for old, new in zip(given, self.graph(functions["body"], given, inside), strict=True)
                ]
                if after == given:
                    break
                given = after
            self._carried(op, given, path)
            return given
        if op.type in BRANCHES:
            if given[0]:
                self._say(path, op, "chooses its branch by data, which has to be in host memory")
            self._carried(op, [False, *given[1:]], path)
            given = given[1:]
        results = [self.graph(function, given, inside) for function in functions.values()]
        return [any(values) for values in zip(*results, strict=True)]

    def _carried(self, op: Any, given: list[bool], path: str) -> None:
        for tensor, value in zip(op.inputs, given, strict=True):
            if value and tensor.dtype == tf.int32:
                self._say(path, op, f"carries int32 data ({tensor.name}), which it keeps in host memory")

    def _check(self, op: Any, given: list[bool], path: str) -> None:
        if op.type in REFUSED:
            self._say(path, op, REFUSED[op.type])
        elif op.type not in PLUMBING:
            kernel = _kernel(op)
            if kernel is None:
                types = ", ".join(tensor.dtype.name for tensor in [*op.inputs, *op.outputs])
                self._say(path, op, f"has no GPU kernel for {types or 'no input'}")
                return
            host = set(kernel.host_memory_arg)
            kept = False
            for name, tensor, value in zip(_names(op, "input_arg", op.inputs), op.inputs, given, strict=True):
                if value and name in host and name != "seed" and tensor.dtype != tf.resource:
                    kept = True
                    self._say(
                        path, op, f"keeps its argument {name} ({tensor.dtype.name}, {tensor.name}) in host memory"
                    )
            for name, tensor in zip(_names(op, "output_arg", op.outputs), op.outputs, strict=True):
                size = tensor.shape.num_elements()
                many = size > FEW if size is not None else op.type in FROM_VALUES
                # An int32 constant is in host memory whatever its kernel says.
                if many and not kept and (name in host or (op.type == "Const" and tensor.dtype == tf.int32)):
                    self._say(path, op, f"leaves its result {tensor.dtype.name} {tensor.shape} in host memory")

    def _say(self, path: str, op: Any, what: str) -> None:
        if op.type not in self.ignore:
            self.found.add(f"{path}{op.name} ({op.type}) {what}")


def _is_data_input(tensor: Any) -> bool:
    size = tensor.shape.num_elements()
    return not (tensor.dtype == tf.resource or (tensor.dtype == tf.int32 and size is not None and size <= SEED))


def _makes_data(op: Any, given: list[bool]) -> bool:
    if op.type in METADATA:
        return False
    stateless_key = op.type == "StatelessRandomGetKeyCounter"
    reads = any(tensor.dtype == tf.resource for tensor in op.inputs)
    return any(given) or reads or stateless_key or (op.op_def.is_stateful and op.type not in PLUMBING | {"Const"})


def _needed(graph: Any) -> list[Any]:
    """The operations that a call runs, each after what it needs."""
    outputs = [tensor.op for tensor in getattr(graph, "outputs", [])]
    wanted = [*outputs, *getattr(graph, "control_outputs", [])] or list(graph.get_operations())
    wanted += [op for op in graph.get_operations() if op.op_def.is_stateful]
    reached, stack = set(), list(wanted)
    while stack:
        op = stack.pop()
        if op not in reached:
            reached.add(op)
            stack += [tensor.op for tensor in op.inputs] + list(op.control_inputs)
    # An operation is made after its inputs; a graph lists them in that order.
    return [op for op in graph.get_operations() if op in reached]


def _all_ops(graph: Any, path: str) -> Iterator[tuple[str, Any]]:
    for op in _needed(graph):
        yield path, op
        if op.type in LOOPS | BRANCHES | CALLS:
            for function in _functions(op).values():
                yield from _all_ops(function, f"{path}{op.name}/")


def _functions(op: Any) -> dict[str, Any]:
    """The graphs of the functions that an operation calls, by the name of the attribute."""
    found = {}
    for name, value in op.node_def.attr.items():
        several = enumerate(value.list.func) if value.list.func else [("", value.func)] if value.func.name else []
        for place, function in several:
            owner: Any = op.graph
            while owner is not None and owner._get_function(function.name) is None:
                owner = getattr(owner, "outer_graph", None)
            if owner is None:
                raise LookupError(f"{op.name}: no function {function.name} in its graph")
            found[f"{name}{place}"] = owner._get_function(function.name).graph
    return found


def _names(op: Any, kind: str, tensors: Any) -> list[str]:
    """The name of the argument that each tensor belongs to: one argument may be a list of tensors."""
    names: list[str] = []
    for arg in getattr(op.op_def, kind):
        count = len(op.node_def.attr[arg.type_list_attr].list.type) if arg.type_list_attr else 1
        names += [arg.name] * (op.node_def.attr[arg.number_attr].i if arg.number_attr else count)
    return names or [""] * len(tensors)


def _kernel(op: Any) -> Any:
    """The kernel that a GPU would use, None where there is none."""
    attributes = op.node_def.attr
    types = {}
    for name in _constrained(op.type):
        value: attr_value_pb2.AttrValue = attributes[name]
        types[name] = tuple(value.list.type) or ((value.type,) if value.type != types_pb2.DT_INVALID else ())
    return _kernel_for(op.type, tuple(types.items()))


@cache
def _kernel_for(kind: str, types: tuple[tuple[str, tuple[int, ...]], ...]) -> Any:
    matching = [kernel for kernel in _registered(kind) if _matches(kernel, dict(types))]
    own = [kernel for kernel in matching if kernel.device_type == "GPU"]
    return max(own or matching, key=lambda kernel: kernel.priority, default=None)


@cache
def _registered(kind: str) -> tuple[Any, ...]:
    listed = kernels.get_registered_kernels_for_op(kind).kernel
    return tuple(kernel for kernel in listed if kernel.device_type in ("GPU", "DEFAULT") and not kernel.label)


@cache
def _constrained(kind: str) -> tuple[str, ...]:
    """The attributes that decide among the kernels of an operation."""
    return tuple({constraint.name for kernel in _registered(kind) for constraint in kernel.constraint})


def _matches(kernel: Any, types: dict[str, tuple[int, ...]]) -> bool:
    return all(set(types[each.name]) <= set(each.allowed_values.list.type) for each in kernel.constraint)
