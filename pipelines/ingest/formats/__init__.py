"""Reads files of every format as tables."""

from typing import Literal

# Here, because the command line names them, and the modules below load Polars.
Format = Literal["auto", "csv", "parquet", "jsonl", "movielens", "recbole", "lightgcn", "sequences", "pairs"]
BESIDE = ("movielens", "recbole")  # a file of events names those of its items and users
