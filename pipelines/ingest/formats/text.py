"""Checks before parsing that a text file is not empty and is UTF-8, and counts its lines."""

import codecs
from dataclasses import dataclass
from pathlib import Path

from pipelines.errors import DataError

BLOCK_BYTES = 8 << 20


@dataclass(frozen=True)
class TextFile:
    """The result of one pass over the bytes.

    Attributes:
        lines: number of lines.
        valid: whether the whole file is UTF-8.
        quotes: whether it contains a double quote.
        blanks: whether it may contain a blank line (two line ends in a row, even inside quotes).
    """

    lines: int
    valid: bool
    quotes: bool
    blanks: bool


def text_file(path: Path, *, skip: bool = False) -> TextFile:
    """Scans a text file once.

    Args:
        path: the file.
        skip: report bytes that are not UTF-8 instead of raising.

    Raises:
        DataError: the file is empty or, unless `skip`, is not UTF-8.
    """
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty")
    decoder = codecs.getincrementaldecoder("utf-8")()
    newlines, valid, quotes, blanks, tail = 0, True, False, False, b"\n"
    with path.open("rb") as handle:
        while block := handle.read(BLOCK_BYTES):
            if valid:
                valid = _decodes(decoder, block, path, newlines, skip=skip)
            newlines += block.count(b"\n")
            quotes = quotes or b'"' in block
            blanks = blanks or b"\n\n" in tail + block or b"\n\r\n" in tail + block
            tail = block[-2:]
    if valid and decoder.getstate()[0]:
        valid = False
        if not skip:
            raise DataError(f"{path}, row {newlines + 1}: not UTF-8: the file ends inside a character")
    return TextFile(newlines + (tail[-1:] != b"\n"), valid, quotes, blanks)


def _decodes(decoder: codecs.IncrementalDecoder, block: bytes, path: Path, newlines: int, *, skip: bool) -> bool:
    try:
        decoder.decode(block)
    except UnicodeDecodeError as error:
        if skip:
            return False
        row = newlines + error.object[: error.start].count(b"\n") + 1
        byte = error.object[error.start]
        raise DataError(
            f"{path}, row {row}: not UTF-8 (byte 0x{byte:02x}); convert the file, for example with iconv -t UTF-8"
        ) from None
    return True
