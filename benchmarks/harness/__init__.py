"""What benchmarks share: the machine, measured processes, stages, plots."""
