"""The losses measured against one another: where the optimum is known, on data, in time."""

# The code whose change makes the results old.
MEASURES = ("towers", "pipelines")
