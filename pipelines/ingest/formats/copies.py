"""Local copies of input that cannot be read where it is: gzip files, and the files behind URLs.

A copy keeps the name of its original, so that messages and `rejects.csv` are about the file that the user named.
"""

import gzip
import re
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PosixPath, PurePath, PurePosixPath
from tempfile import TemporaryDirectory, mkdtemp
from urllib.parse import parse_qsl, urlsplit

from pipelines.console import progress
from pipelines.errors import DataError
from pipelines.ingest.formats.partitions import TRUTH, in_reach, warn_of_table_log
from serving.client.address import QUERY, without_secrets
from serving.files.disk_full import no_room

BLOCK_BYTES = 1 << 20
PACKINGS = (".7z", ".br", ".bz2", ".deflate", ".lz4", ".lzma", ".lzo", ".snappy", ".xz", ".z", ".zip", ".zst", ".zstd")
ENDINGS = (
    ".csv", ".dat", ".data", ".inter", ".item", ".json", ".jsonl", ".ndjson", ".parquet", ".tsv", ".txt", ".user",
)  # fmt: skip
GZIP = b"\x1f\x8b"  # how every gzip file begins, and no text in UTF-8 nor Parquet


class Copy(PosixPath):
    """A path that shows its original and opens the copy; make it with `copied`."""

    original: str
    local: Path

    def __str__(self) -> str:
        return self.original

    def __fspath__(self) -> str:
        return str(self.local)


def copied(original: str, local: Path) -> Copy:
    """The path of a copy.

    Args:
        original: the path or URL that it shows.
        local: the file or folder that it opens.
    """
    path = Copy(original)
    path.original, path.local = original, local
    return path


def bare_name(path: Path) -> PurePath:
    """The name of a file in lower case, without the ending `.gz` or that of another packing."""
    name = PurePath(path.name.lower())
    return name.with_suffix("") if name.suffix == ".gz" or packed_otherwise(name) else name


def packed_otherwise(path: PurePath) -> bool:
    """Whether a file's name ends like one that is packed in another way than by gzip, which is not read."""
    return path.suffix.lower() in PACKINGS


@contextmanager
def local_copies() -> Iterator["Copies"]:
    """Yields a maker of copies, which are deleted at the end."""
    with TemporaryDirectory(prefix="towers-") as folder:
        yield Copies(Path(folder))


class Copies:
    """Makes copies.

    Args:
        folder: an existing folder for them.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def local(self, place: Path | str) -> Path:
        """Returns a local path: the given one, or for a URL, a string with ``://``, that of a downloaded copy.

        Of a folder the files directly in it, in its partitions and in `truth` are copied.

        Raises:
            DataError: nothing is there, it cannot be read, the package for such URLs is missing, or the disk is full.
        """
        if isinstance(place, Path) or "://" not in place:
            return Path(place)
        url = place.rstrip("/")
        shown = without_secrets(url).removesuffix(QUERY)  # its end tells the format
        root = Path(mkdtemp(dir=self._folder))
        try:
            from fsspec.core import url_to_fs

            system, inside = url_to_fs(url)
            if system.isfile(inside):
                root /= _name_of(inside)
                shown = shown if shown.endswith(root.name) else f"{shown}{QUERY}/{root.name}"
                files = {inside: root}
            else:
                # Consoles of stores mark a folder by an empty object whose name ends with a slash.
                names = [name for name in system.find(inside) if not name.endswith("/")]
                found = {name: PurePosixPath(name).relative_to(inside) for name in names}
                if not found:
                    raise FileNotFoundError
                warn_of_table_log(shown, (each.parts[0] for each in found.values()))
                files = {name: root / each for name, each in found.items() if in_reach(each, TRUTH)}
            with progress(f"copy {shown}", total=len(files), unit="files") as advance:
                for name, file in files.items():
                    file.parent.mkdir(parents=True, exist_ok=True)
                    system.get_file(name, str(file))
                    advance(1)
        except FileNotFoundError:
            raise DataError(f"{shown}: no such file or folder") from None
        except ImportError as error:
            reason = f"URLs need the extra 'cloud': pip install 'towers-recall[cloud]' ({error})"
            raise DataError(f"{shown}: {reason}") from None
        except Exception as error:  # noqa: BLE001 - every file system raises errors of its own
            reason = str(error).replace(url, shown)
            if re.search("https?://", url, re.IGNORECASE):  # in a form of its package's own
                reason = re.sub(r"\?[^\s'\"]+", QUERY, reason)
            raise self._no_copy(shown, error) or DataError(f"{shown}: cannot be read: {reason}") from None
        return copied(shown, root)

    def unpacked(self, path: Path) -> Path:
        """Returns the path by which to read a file: a gzip file, one that ends with `.gz`, is unpacked block by block.

        Raises:
            DataError: it is not a whole gzip file, one without that ending or packed otherwise, or the disk is full.
        """
        if packed_otherwise(path):
            raise DataError(f"{path}: packed as {path.suffix}, and only gzip is read; unpack it, or pack it as .gz")
        if path.suffix.lower() != ".gz":
            if _is_gzip(path):
                raise DataError(f"{path}: a gzip file; rename it to {path.name}.gz")
            return path
        file = Path(mkdtemp(dir=self._folder)) / bare_name(path)
        try:
            with gzip.open(path) as packed, file.open("wb") as copy:
                shutil.copyfileobj(packed, copy, BLOCK_BYTES)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(f"{path}: not a whole gzip file (cut short, altered or not packed): {error}") from None
        except OSError as error:
            raise self._no_copy(str(path), error) or error from None
        if _is_gzip(file):
            raise DataError(f"{path}: packed twice; unpack it once")
        return copied(str(path), file)

    def _no_copy(self, name: str, error: Exception) -> DataError | None:
        # Without the system's words for a full disk, which would be taken for one that has no room for the data set.
        wanted = f"{name}: no room for its copy in {self._folder.parent}; the variable TMPDIR names another folder"
        return DataError(wanted) if no_room(error) else None


def _name_of(inside: str) -> str:
    """The name of a remote file: of http that in the path, or a value of the query if that alone tells the format."""
    if "://" not in inside:
        return PurePosixPath(inside).name
    parts = urlsplit(inside)
    names = [PurePosixPath(each).name for each in (parts.path, *(value for _, value in parse_qsl(parts.query)))]
    return next((name for name in names if bare_name(Path(name)).suffix in ENDINGS), names[0] or "download")


def _is_gzip(path: Path) -> bool:
    with path.open("rb") as handle:
        return handle.read(len(GZIP)) == GZIP
