"""The compiled train step on a GPU without TensorFlow there: `export` writes it, `run` compares and times it by JAX."""

# What each result measures, see benchmarks/harness/measured_code.py; that of another device measures the same.
MEASURES = {"jax_cpu": ("benchmarks.gpu.export",)}
