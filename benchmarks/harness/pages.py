"""Blocks of a page that a program writes, between two marks."""


def with_block(text: str, begin: str, block: str, end: str) -> str:
    """The text of a page with `block` between its only mark `begin` and the first `end` after that."""
    before, rest = text.split(begin)
    return f"{before}{begin}{block}{end}{rest.split(end, 1)[1]}"
