"""Reports: what one costs beside the exact search that it needs."""

# What each result measures, see benchmarks/harness/measured_code.py.
MEASURES = {
    "report": ("benchmarks.evaluation.report_time",),
    "report_million": ("benchmarks.evaluation.report_million", "pipelines.evaluation.report"),
}
