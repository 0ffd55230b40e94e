"""Recall on public data, beside published figures and baselines."""

# The code whose change makes the results old.
MEASURES = ("towers", "pipelines")
