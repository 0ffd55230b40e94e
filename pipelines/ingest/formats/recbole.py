"""Reads RecBole's atomic files (`.inter`, `.item`, `.user`): tab-separated, with `name:type` headers.

Source: https://recbole.io/docs/user_guide/data/atomic_files.html
"""

from pathlib import Path

from pipelines.dataset.manifest import Kind
from pipelines.errors import DataError
from pipelines.ingest.formats.delimited import csv_table
from pipelines.ingest.formats.table import Table

KINDS: dict[str, Kind] = {"token": "string", "float": "number", "token_seq": "list", "float_seq": "vector"}


def recbole_table(path: Path, *, skip: bool = False) -> Table:
    """Opens an atomic file; sequences, split at spaces, become lists and vectors.

    Raises:
        DataError: the file is empty or not UTF-8, or a header cell is not `name:type`.
    """
    kinds: dict[str, Kind] = {}

    def rename(cell: str) -> str:
        name, colon, kind = cell.rpartition(":")
        if not colon or kind not in KINDS or not name:
            allowed = ", ".join(KINDS)
            raise DataError(f"{path}, row 1: expected name:type with a type of {allowed}, got {cell!r}")
        kinds[name] = KINDS[kind]
        return name

    return csv_table(path, separator="\t", quote=None, rename=rename, kinds=kinds, skip=skip)
