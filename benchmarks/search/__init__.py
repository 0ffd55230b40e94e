"""Indexes, filters and bulk recall, beside faiss and hnswlib."""

# What each result measures, see benchmarks/harness/measured_code.py.
MEASURES = {
    "bulk_recall": ("benchmarks.search.bulk_recall",),
    "engines": ("benchmarks.search.engines", "serving.search.scann"),
    "engines_million": ("benchmarks.search.engines", "serving.search.scann"),
    "filters": ("benchmarks.search.filters",),
    "index": ("benchmarks.search.approximate", "pipelines.bundles.build_index"),
    "vectors": ("benchmarks.search.vectors", "pipelines.bundles.export"),
}
