"""What benchmarks share: the machine, measured processes, stages, plots."""

# The modules of the commands from the events to the report, for what a result measures (measured_code.py).
PATH = (
    "pipelines.ingest.prepare",
    "pipelines.training.train",
    "pipelines.bundles.export",
    "pipelines.evaluation.report",
)
