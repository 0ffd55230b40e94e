"""The running service: throughput, overload, soak."""

# The code whose change makes the results old; the window's page is off while the service is measured.
MEASURES = ("serving", ":!serving/window", "pipelines/service")
