"""Large data: preparing, training, renewing, memory of workers."""

# What each result measures, see benchmarks/harness/measured_code.py. The service has no window here.
MEASURES = {
    "prepare": ("benchmarks.scale.prepare_20m", "pipelines.ingest.prepare"),
    "prepare_100m": ("benchmarks.scale.prepare_100m", "pipelines.ingest.prepare"),
    "renew": ("benchmarks.scale.renew",),
    "scale": (
        "benchmarks.scale.ten_million",
        "pipelines.ingest.synthetic.synth",
        "pipelines.ingest.prepare",
        "pipelines.training.train",
        "pipelines.bundles.export",
        "pipelines.bundles.build_index",
        "pipelines.service.serve",
        ":!serving/window",
    ),
    "worker_memory": ("benchmarks.scale.worker_memory", "pipelines.service.serve", ":!serving/window"),
}
