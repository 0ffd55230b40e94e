"""Reads what `/metrics` answers with."""

from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families


class Exposed:
    """The samples of one answer.

    Args:
        text: in Prometheus's text format.
    """

    def __init__(self, text: str) -> None:
        self.samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def of(self, name: str, **labels: str) -> list[float]:
        """The values of the samples that have these labels, and perhaps others."""
        return [each.value for each in self.samples if each.name == name and labels.items() <= each.labels.items()]

    def sum(self, name: str, **labels: str) -> float:
        """Their sum; 0 where there are none."""
        return sum(self.of(name, **labels))

    def labels(self, name: str, label: str) -> set[str]:
        """What a label of a metric holds."""
        return {each.labels[label] for each in self.samples if each.name == name}

    def counters(self) -> Iterator[tuple[tuple[str, tuple[tuple[str, str], ...]], float]]:
        """Every number that must never fall: counters, and the counts and sums of histograms."""
        for each in self.samples:
            if each.name.endswith(("_total", "_count", "_sum", "_bucket")):
                yield (each.name, tuple(sorted(each.labels.items()))), each.value
