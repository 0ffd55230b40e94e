"""The running service: throughput, overload, soak."""

# What each result measures, see benchmarks/harness/measured_code.py. The service has no window here.
MEASURES = {
    "calm": ("benchmarks.serving.overload", "pipelines.service.serve", ":!serving/window"),
    "serving": ("benchmarks.serving.throughput", "pipelines.service.serve", ":!serving/window"),
    "journal_writes": ("benchmarks.serving.journal_writes",),
    "metric_buffers": ("benchmarks.serving.metric_buffers", "pipelines.service.serve", ":!serving/window"),
    "soak": ("benchmarks.serving.soak", "pipelines.service.serve", "pipelines.bundles.activate", ":!serving/window"),
}
