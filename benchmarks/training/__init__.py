"""Training and evaluation: speed, memory, beside TFRS and Keras."""

# The code whose change makes the results old.
MEASURES = ("towers", "pipelines/ingest", "pipelines/training")
