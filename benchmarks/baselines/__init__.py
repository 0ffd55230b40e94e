"""The strongest cheap baselines on the data of `benchmarks.quality`, each with settings chosen on validation."""

from benchmarks.harness import PATH

# What each result measures, see benchmarks/harness/measured_code.py.
MEASURES = {"baselines_ml_1m_split": ("benchmarks.baselines.run", PATH[0], "towers/recipes/ml-1m.toml")}
