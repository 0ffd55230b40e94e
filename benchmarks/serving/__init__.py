"""The running service: throughput, overload, soak."""

# The code whose change makes the results old.
MEASURES = ("serving", "pipelines/service")
