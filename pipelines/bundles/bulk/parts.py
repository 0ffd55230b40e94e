"""Finished parts of bulk work: they wait in a hidden directory beside the output, so a killed run resumes.

A lock on that directory admits one process at a time per output.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from pipelines.console import Advance, amount, say
from serving.bundle.manifest import MANIFEST
from serving.files.lock import exclusive
from serving.files.staging import remove, staged

HASHED_IDS = 100_000
DIGITS = 16


def job_of(command: str, bundle: Path, **inputs: object) -> str:
    """Returns a name for exactly these inputs, such as ``recall_bundle-0123456789abcdef_k-100``.

    Args:
        command: the name of the command.
        bundle: the bundle directory.
        inputs: what else the result depends on, in letters and digits; of ids their digest.
    """
    manifest = hashlib.sha256((bundle / MANIFEST).read_bytes()).hexdigest()[:DIGITS]
    return "_".join([command, *(f"{name}-{value}" for name, value in {"bundle": manifest, **inputs}.items())])


def digest_of(ids: pl.Series, content: str = "") -> str:
    """Returns 16 hexadecimal digits for some rows.

    Args:
        ids: the ids of all rows, those of other shards included.
        content: what else the rows hold, or its digest.
    """
    key = hashlib.sha256(f"{len(ids)} {content}".encode())
    for first in range(0, len(ids), HASHED_IDS):
        key.update("\n".join(ids.slice(first, HASHED_IDS).to_list()).encode("utf-8", "surrogatepass"))
    return key.hexdigest()[:DIGITS]


@contextmanager
def parts_beside(out: Path, job: str, command: str) -> Iterator[Path]:
    """Yields the directory of a job's finished parts, which is removed once the work is complete.

    Args:
        out: the output.
        job: see `job_of`; parts of other inputs for the same output are removed.
        command: for messages.

    Raises:
        BusyError: another process works on `out`.
    """
    hidden = out.absolute().parent / f".{out.name}.parts"
    with exclusive(hidden, f"{out}: another process is working on it; wait for it, or name another --out"):
        parts = hidden / job
        for other in list(hidden.iterdir()):
            if other != parts:
                say(f"{command}: unfinished parts of other inputs removed: {other}")
                remove(other)
        if parts.exists():
            for half in parts.glob(".*.partial"):
                remove(half)
            say(f"{command}: continuing with {amount(len(list(parts.glob('*.arrow'))), 'finished parts')}")
        parts.mkdir(exist_ok=True)
        yield parts
        remove(hidden)


def part_files(
    parts: Path, rows: int, size: int, make: Callable[[slice], pl.DataFrame], advance: Advance
) -> list[Path]:
    """Makes the parts that are missing and returns the files of all, in order.

    Args:
        parts: their directory.
        rows: how many rows there are.
        size: rows of a part.
        make: returns the result of some rows, and reports the progress.
        advance: called with the rows of each part that is there.
    """
    done = []
    # At least one part, so that a job without rows still has the right columns.
    for number, first in enumerate(range(0, max(1, rows), size)):
        last = min(first + size, rows)
        part = parts / f"{number:06d}.arrow"
        if part.exists():
            advance(last - first)
        else:
            with staged(part) as staging:
                make(slice(first, last)).write_ipc(staging)
        done.append(part)
    return done


def write_parquet(table: pl.LazyFrame, out: Path) -> None:
    """Writes a table as one Parquet file, in order and in bounded memory."""
    table.sink_parquet(out, compression="lz4", statistics=False, maintain_order=True)
