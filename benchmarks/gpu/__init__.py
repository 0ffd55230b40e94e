"""The compiled train step on a GPU without TensorFlow there: `export` writes it, `run` compares and times it by JAX."""

# What each result measures, see benchmarks/harness/measured_code.py.
MEASURES = {
    "jax_cpu": ("benchmarks.gpu.export",),
    "jax_nvidia_h200": ("benchmarks.gpu.export",),
    "loop_nvidia_h200": ("benchmarks.gpu.loop",),
}
