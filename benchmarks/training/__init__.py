"""Training and evaluation: speed, memory, beside TFRS and Keras."""

# What each result measures, see benchmarks/harness/measured_code.py.
MEASURES = {
    "evaluation": ("benchmarks.training.full_evaluation",),
    "full_softmax": ("benchmarks.training.full_softmax",),
    "input": ("benchmarks.training.input_pipeline",),
    "optimizers": ("benchmarks.training.optimizers",),
    "samplers": ("benchmarks.training.samplers",),
    "table_rows": ("benchmarks.training.table_rows",),
    "train_step": ("benchmarks.training.train_step",),
    "warm_start": ("benchmarks.training.warm_start", "towers/recipes/default.toml", "towers/recipes/ml-100k.toml"),
    "workers": ("benchmarks.training.workers",),
}
