"""What one change of a recipe or of its data brings, beside the same training without it."""

# What each result measures, see benchmarks/harness/measured_code.py.
_PATH = (
    "pipelines.ingest.prepare",
    "pipelines.training.train",
    "pipelines.bundles.export",
    "pipelines.evaluation.report",
)
MEASURES = {
    "dimensions": ("benchmarks.levers.dimensions", *_PATH, "towers/recipes/ml-100k.toml"),
    "impressions": ("benchmarks.levers.impressions",),
    "lost_order": ("benchmarks.levers.lost_order", *_PATH, "towers/recipes/gowalla-ordered.toml"),
}
