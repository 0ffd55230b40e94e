"""The strongest cheap baselines on the data of `benchmarks.quality`, each with settings chosen on validation."""

from benchmarks.harness import PATH

# What each result measures, see benchmarks/harness/measured_code.py.
_RUN = ("benchmarks.baselines.run", PATH[0])
MEASURES = {
    "baselines_beauty": (*_RUN, "towers/recipes/beauty.toml"),
    "baselines_beauty_s3rec": (*_RUN, "towers/recipes/beauty.toml"),
    "baselines_gowalla": (*_RUN, "towers/recipes/gowalla.toml"),
    "baselines_ml_1m_split": (*_RUN, "towers/recipes/ml-1m.toml"),
}
