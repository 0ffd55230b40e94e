"""Reports: what one costs beside the exact search that it needs."""

# The code whose change makes the results old.
MEASURES = ("pipelines/evaluation", "pipelines/rankers", "serving/search", "towers/evaluation")
