"""Large data: preparing, training, renewing, memory of workers."""

# The code whose change makes the results old.
MEASURES = ("towers", "serving", "pipelines")
