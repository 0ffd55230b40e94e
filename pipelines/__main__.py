"""`python -m pipelines` is `towers`."""

from pipelines.cli.app import main

main()
