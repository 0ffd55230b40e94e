"""Finished parts of bulk work: they wait in a hidden directory beside the output, so a killed run resumes; and shards.

A lock in that directory admits one process at a time per output. A shard is one of N parts of the rows, with a Parquet
file of its own in a folder that all shards share. Rows are cut at whole blocks, counted from the first one, so a row is
in the same block, and gets the same result, for every N. Read in their order the files are what one run writes.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import polars as pl

from pipelines.console import Advance, amount, say
from pipelines.errors import DataError
from serving.bundle.manifest import Manifest
from serving.files.lock import BusyError, empty, exclusive, remove_empty
from serving.files.staging import refuse_existing, remove, staged

LOCK = ".lock"  # of the directory; one of the directory itself is unknown to other machines
PARQUET = b"PAR1"  # starts every such file
TEXT_FILES = (".csv", ".tsv", ".txt", ".json", ".jsonl")
HASHED_IDS = 100_000
DIGITS = 16
MOST = 99_999  # shards
FORM = re.compile(r"([1-9][0-9]{0,4})/([1-9][0-9]{0,4})")
PART = re.compile(r"part-\d{5}-of-(\d{5})\.parquet")
PLAN = re.compile(r"_shards-(\d{5})_(.+)")


def job_of(command: str, manifest: Manifest, **inputs: object) -> str:
    """Returns a name for exactly these inputs, such as ``recall_bundle-0123456789abcdef_k-100``.

    Args:
        command: the name of the command.
        manifest: of the bundle as it was opened: another one may be in its directory by now.
        inputs: what else the result depends on, in letters and digits; of ids their digest.
    """
    bundle = hashlib.sha256(manifest.model_dump_json().encode()).hexdigest()[:DIGITS]
    return "_".join([command, *(f"{name}-{value}" for name, value in {"bundle": bundle, **inputs}.items())])


def digest_of_rows(ids: pl.Series, content: str = "") -> str:
    """Returns 16 hexadecimal digits for the ids of all rows, those of other shards included, and `content`: what else
    the rows hold, or its digest."""
    key = hashlib.sha256(f"{len(ids)} {content}".encode())
    for first in range(0, len(ids), HASHED_IDS):
        key.update("\n".join(ids.slice(first, HASHED_IDS).to_list()).encode("utf-8", "surrogatepass"))
    return key.hexdigest()[:DIGITS]


def hidden_beside(out: Path) -> Path:
    """The directory of the parts of an output."""
    return out.absolute().parent / f".{out.name}.parts"


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
    hidden = hidden_beside(out)
    with exclusive(hidden, f"{out}: another process is working on it; wait for it, or name another --out", LOCK):
        parts = hidden / job
        for other in list(hidden.iterdir()):
            if other not in (parts, hidden / LOCK):
                say(f"{command}: unfinished parts of other inputs removed: {other}")
                remove(other)
        if parts.exists():
            for half in parts.glob(".*.partial"):
                remove(half)
            say(f"{command}: continuing with {amount(len(list(parts.glob('*.arrow'))), 'finished parts')}")
        parts.mkdir(exist_ok=True)
        yield parts
        empty(hidden, LOCK)
    remove_empty(hidden)


def remove_parts(out: Path) -> None:
    """Removes the parts of a complete output, which a killed process may have left; not those of one at work."""
    hidden = hidden_beside(out)
    if hidden.is_dir():
        with suppress(BusyError), exclusive(hidden, "", LOCK):
            empty(hidden, LOCK)
        remove_empty(hidden)


def part_files(
    parts: Path, rows: int, size: int, make: Callable[[slice], pl.DataFrame], advance: Advance
) -> list[Path]:
    """Makes the parts that are missing and returns the files of all, in order.

    A part is written while the next one is made, so memory holds two.

    Args:
        parts: their directory.
        rows: how many rows there are.
        size: rows of a part.
        make: returns the result of some rows, and reports the progress.
        advance: called with the rows of each part that is there.
    """
    done, write = [], None
    with ThreadPoolExecutor(1, "parts") as writer:
        # At least one part, so that a job without rows still has the right columns.
        for number, first in enumerate(range(0, max(1, rows), size)):
            last = min(first + size, rows)
            part = parts / f"{number:06d}.arrow"
            if part.exists():
                advance(last - first)
            else:
                frame = make(slice(first, last))
                if write is not None:
                    write.result()
                write = writer.submit(_write_part, frame, part)
            done.append(part)
        if write is not None:
            write.result()
    return done


def _write_part(frame: pl.DataFrame, part: Path) -> None:
    with staged(part) as staging:
        frame.write_ipc(staging)


def refuse_taken(out: Path, *, overwrite: bool, inputs: Iterable[Path | str | None]) -> None:
    """Refuses a file that is there, an input of the command, and a name of another format than Parquet.

    Raises:
        DataError: the name is that of a text file.
        OutputExistsError: it exists and may not be replaced.
    """
    if out.suffix in TEXT_FILES:
        raise DataError(f"--out {out}: it is written as Parquet; name it {out.with_suffix('.parquet')}")
    refuse_existing(out, overwrite=overwrite, starts=PARQUET, inputs=inputs)


def write_parquet(table: pl.LazyFrame, out: Path) -> None:
    """Writes a table as one Parquet file, in order and in bounded memory."""
    table.sink_parquet(out, compression="lz4", statistics=False, maintain_order=True)


@dataclass(frozen=True)
class Shard:
    """One part of a job.

    Attributes:
        number: which, from 1.
        of: how many there are.
    """

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Reads "I/N".

        Raises:
            DataError: it is not of this form with 1 <= I <= N.
        """
        match = FORM.fullmatch(text)
        if match is None or not int(match[1]) <= int(match[2]):
            raise DataError(f"--shard must be I/N, part I of N with 1 <= I <= N <= {MOST:,}, such as 2/8; got {text!r}")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def rows(self, count: int, block: int) -> range:
        """Which of `count` rows belong to this part: whole blocks of `block` rows, in order; may be none."""
        blocks = -(-count // block)
        first, last = (blocks * before // self.of * block for before in (self.number - 1, self.number))
        return range(min(first, count), min(last, count))

    def file(self, folder: Path) -> Path:
        """The file of this part."""
        return folder / f"part-{self.number:05d}-of-{self.of:05d}.parquet"

    def refuse(self, folder: Path) -> None:
        """Refuses a folder in which this part cannot be written.

        Raises:
            DataError: it is a file.
            OSError: it is a URL, or not writable.
        """
        if folder.exists() and not folder.is_dir():
            raise DataError(f"{folder}: with --shard, --out names a folder for the files of all shards; this is a file")
        refuse_existing(self.file(folder), overwrite=True)

    def join(self, folder: Path, job: str) -> Path:
        """Makes or enters the folder that the parts of one job share, and returns the file of this part.

        An empty file in the folder names N and the job. Its name begins with an underscore, so that readers of folders
        skip it, and has no equals sign, with which Spark would read it.

        Args:
            folder: may exist, and then holds parts of this job or nothing.
            job: a name for exactly the inputs of this job; see `job_of`.

        Raises:
            DataError: `folder` is a file, or holds parts of another N, parts of another job, or other files.
            OSError: see `refuse`.
        """
        self.refuse(folder)
        folder.mkdir(parents=True, exist_ok=True)
        plan = folder / f"_shards-{self.of:05d}_{job}"
        self._refuse_others(folder, plan)
        plan.touch()
        # Once more: two shards of different jobs may have entered at the same time, and now see each other.
        self._refuse_others(folder, plan)
        return self.file(folder)

    def _refuse_others(self, folder: Path, plan: Path) -> None:
        clear = "name another --out, or remove the folder"
        for path in sorted(folder.iterdir()):
            part, other = PART.fullmatch(path.name), PLAN.fullmatch(path.name)
            if (match := other or part) and int(match[1]) != self.of:
                raise DataError(
                    f"{folder}: holds shards of {int(match[1]):,}; --shard {self} asks for {self.of:,}: {clear}"
                )
            if other and path.name != plan.name:
                held, wanted = _difference(path.name, plan.name)
                raise DataError(f"{folder}: holds shards of {held}; --shard {self} asks for {wanted}: {clear}")
            if part and not plan.exists():
                raise DataError(f"{folder}: holds {path.name}, but no file _shards-… that names its inputs: {clear}")
            # Hidden: unfinished work. With an underscore: what schedulers and Spark leave, and readers skip.
            if not (part or path.name.startswith((".", "_"))):
                raise DataError(f"{folder}: holds {path.name}, which is not a shard's file: {clear}")


def _difference(held: str, wanted: str) -> tuple[str, str]:
    """The first input that differs between two jobs, as words: "k 100" and "k 50"."""
    pairs = zip_longest(held.split("_"), wanted.split("_"), fillvalue="another job")
    first = next(pair for pair in pairs if pair[0] != pair[1])
    return first[0].replace("-", " "), first[1].replace("-", " ")
