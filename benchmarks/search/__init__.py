"""Indexes, filters and bulk recall, beside faiss and hnswlib."""

# The code whose change makes the results old.
MEASURES = ("serving/search", "serving/recall", "pipelines/bundles")
