"""A module of an export as a step of JAX: state and batch in, results and the next state out. No TensorFlow.

The one file that depends on JAX's version. JAX makes the function by its own exporter, with zeros for a body, and the
module takes the body's place.
"""

import io
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import export
from jax.extend.mlir import hlo_to_stablehlo, ir
from jax.interpreters.mlir import make_ir_context

# Items are int64, and samplers draw by float64.
jax.config.update("jax_enable_x64", True)


class Step:
    """A step, compiled for JAX's device by its first call.

    Args:
        entry: what `benchmarks.gpu.hlo.entry_of` returned.
        in_place: the next state takes over the memory of the old, which cannot be read any more.
    """

    def __init__(self, entry: dict[str, Any], *, in_place: bool = False) -> None:
        batch, state = entry["batches"][0], entry["state"]
        self._written: list[int] = entry["written"]
        takes = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in batch + state]
        gives = [jax.ShapeDtypeStruct(tuple(shape), dtype) for dtype, shape in entry["results"]]
        zeros = jax.jit(lambda *_: [jnp.zeros(each.shape, each.dtype) for each in gives], keep_unused=True)
        module = without_copies(hlo_to_stablehlo(entry["module"].tobytes()))
        program = replace(export.export(zeros)(*takes), mlir_module_serialized=module)
        donated = tuple(len(batch) + place for place in self._written) if in_place else ()
        self._run = jax.jit(program.call, donate_argnums=donated)

    def __call__(self, state: list[Any], batch: list[Any]) -> tuple[list[Any], list[Any]]:
        """The results, and the state with its new values."""
        found = self._run(*batch, *state)
        first = len(found) - len(self._written)
        state = list(state)
        for place, value in zip(self._written, found[first:], strict=True):
            state[place] = value
        return found[:first], state


def without_copies(module: bytes) -> bytes:
    """The same module: a value never changes, so its copy is itself.

    XLA writes copies into what it returns. StableHLO has no such operation, and JAX refuses it for a GPU, though not
    for a CPU.
    """
    with make_ir_context():
        parsed = ir.Module.parse(module)
        copies: list[Any] = []

        def collect(operation: Any) -> Any:
            if operation.name == "mhlo.copy":
                copies.append(operation)
            return ir.WalkResult.ADVANCE

        parsed.operation.walk(collect)
        for each in copies:
            each.result.replace_all_uses_with(each.operands[0])
            each.erase()
        with io.BytesIO() as file:
            parsed.operation.write_bytecode(file)
            return file.getvalue()
