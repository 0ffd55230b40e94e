"""`python -m pipelines` is `towers`."""

from pipelines.cli import main

main()
