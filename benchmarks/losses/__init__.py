"""The losses measured against one another: where the optimum is known, on data, in time."""

# What each result measures, see benchmarks/harness/measured_code.py.
MEASURES = {
    "losses_known": ("benchmarks.losses.known_world",),
    "losses_nce": ("benchmarks.losses.nce_samples",),
    "losses_nce_speed": ("benchmarks.losses.nce_speed",),
    "losses_q": ("benchmarks.losses.choice_of_q",),
    "losses_ml_100k": ("benchmarks.losses.on_data",),
    "losses_gowalla": ("benchmarks.losses.on_data",),
    "losses_logq": ("benchmarks.losses.on_data",),
}
