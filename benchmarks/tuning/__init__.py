"""What `towers tune` finds on public data."""

from benchmarks.harness import PATH

# What each result measures, see benchmarks/harness/measured_code.py.
_TUNE = ("benchmarks.tuning.tune", *PATH, "pipelines.tuning.tune", "towers/recipes")
MEASURES = {
    "tune_beauty_s3rec": _TUNE,
    "tune_beauty_with_starts": _TUNE,
    "tune_gowalla": _TUNE,
    "tune_gowalla_with_starts": _TUNE,
    "tune_ml_100k": _TUNE,
    "tune_ml_1m_split": _TUNE,
}
