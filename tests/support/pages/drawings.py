"""Plots of the pages, compared as a reader sees them."""

import re
from pathlib import Path

import pytest

CLIP = re.compile(r"\bp[0-9a-f]{10}\b")
NUMBER = re.compile(r"-?\d+\.\d+")


def assert_same_drawing(drawn: Path, expected: Path) -> None:
    """The SVGs differ in the last digits of coordinates, which depend on the processor, and in their hashes alone."""
    texts, numbers = zip(*(_parts(path.read_text(encoding="utf-8")) for path in (drawn, expected)), strict=True)
    assert texts[0] == texts[1], expected.name
    assert numbers[0] == pytest.approx(numbers[1], abs=1e-4), expected.name


def _parts(svg: str) -> tuple[list[str], list[float]]:
    svg = CLIP.sub("clip", svg)
    return NUMBER.split(svg), [float(number) for number in NUMBER.findall(svg)]
