"""What one change of a recipe or of its data brings, beside the same training without it."""

from benchmarks.harness import PATH

# What each result measures, see benchmarks/harness/measured_code.py.
MEASURES = {
    "dimensions": ("benchmarks.levers.dimensions", *PATH, "towers/recipes/ml-100k.toml"),
    "gowalla": ("benchmarks.levers.gowalla", *PATH, "towers/recipes/gowalla.toml"),
    "impressions": ("benchmarks.levers.impressions",),
    "ml_1m": ("benchmarks.levers.ml_1m", *PATH, "towers/recipes/ml-1m.toml"),
    "sequences": ("benchmarks.levers.sequences", *PATH, "towers/recipes/beauty.toml"),
    "ease": ("benchmarks.levers.ease", *PATH, "towers/recipes/ml-1m.toml"),
    "item_start": ("benchmarks.levers.item_start", *PATH, "towers/recipes/beauty.toml"),
    "lost_order": ("benchmarks.levers.lost_order", *PATH, "towers/recipes/gowalla-ordered.toml"),
}
