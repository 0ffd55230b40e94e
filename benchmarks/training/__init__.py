"""Training and evaluation: speed, memory, beside TFRS and Keras."""

# The code whose change makes the results old.
MEASURES = ("towers", "serving/search", "pipelines/ingest", "pipelines/training")
