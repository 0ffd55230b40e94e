"""Recall on public data, beside published figures and baselines."""

from benchmarks.harness import PATH

# What each result measures, see benchmarks/harness/measured_code.py. The service has no window here.
_SPLITS = (
    "benchmarks.quality.public_splits",
    *PATH,
    "pipelines.bundles.build_index",
    "pipelines.service.serve",
    ":!serving/window",
)
MEASURES = {
    "beauty": ("benchmarks.quality.beauty", *PATH, "towers/recipes/beauty.toml"),
    "beauty_s3rec": ("benchmarks.quality.beauty", *PATH, "towers/recipes/beauty.toml"),
    "beauty_s3rec_categories_taught": ("benchmarks.quality.beauty", *PATH, "towers/recipes/beauty.toml"),
    "beauty_s3rec_taught": ("benchmarks.quality.beauty", *PATH, "towers/recipes/beauty.toml"),
    "beauty_taught": ("benchmarks.quality.beauty", *PATH, "towers/recipes/beauty.toml"),
    "cold_start": ("benchmarks.quality.cold_start",),
    "demo": ("benchmarks.quality.demo", "pipelines.cli.demo", "towers/recipes/default.toml"),
    "knobs": ("benchmarks.quality.knobs", "towers/recipes/default.toml"),
    "ml_100k": ("benchmarks.quality.ml_100k", *PATH, "pipelines.bundles.build_index", "towers/recipes/ml-100k.toml"),
    "ml_100k_rolling": ("benchmarks.quality.rolling", "towers/recipes/ml-100k.toml"),
    "quality_gowalla": (*_SPLITS, "towers/recipes/gowalla.toml"),
    "quality_gowalla_ordered": (*_SPLITS, "towers/recipes/gowalla-ordered.toml"),
    "quality_gowalla_taught": (*_SPLITS, "towers/recipes/gowalla.toml"),
    "quality_ml_1m_split": (*_SPLITS, "towers/recipes/ml-1m.toml"),
    "similarity": ("benchmarks.quality.item_to_item", *PATH, "towers/recipes/ml-100k-similarity.toml"),
    "timed": ("benchmarks.quality.timed", "towers/recipes/default.toml"),
}
