"""The compiled train step on a GPU without TensorFlow there: `export` writes it, `run` compares and times it by JAX."""

# The code whose change makes the results old.
MEASURES = ("towers",)
