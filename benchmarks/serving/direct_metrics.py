"""`towers` with each value written to its Prometheus metric at once, as prometheus-client's own API does it.

In: the arguments of `towers`. Out: its service, without the buffers of `serving.telemetry`; `metric_buffers` asks it.
"""

from typing import Any

from pipelines.cli.app import main
from serving.telemetry.metric_buffers import ManyHistogram, MetricBuffer


def add(buffer: MetricBuffer[Any], *values: Any) -> None:
    """Writes each value by itself: `observe` of a histogram, `inc` of a counter."""
    histogram = getattr(buffer._write_many, "__self__", None)  # None: a partial of `count_many`
    for value in values:
        if isinstance(histogram, ManyHistogram):
            histogram.observe(value)
        else:
            buffer._write_many([value])


MetricBuffer.add = add  # type: ignore[method-assign] # here, because workers import this module, too

if __name__ == "__main__":
    main()
