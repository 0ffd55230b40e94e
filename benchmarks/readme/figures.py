"""Figures as the measured table shows them."""

from typing import Any

Result = dict[str, Any]
Rows = list[tuple[str, str, str]]  # what was measured, the figure, the command that measures it again


def repeated(command: str, seeds: int) -> str:
    """The command, with its seeds where there are several."""
    return command if seeds == 1 else f"{command} --seeds {seeds}"


def several(values: list[float], form: str) -> str:
    """Values side by side."""
    return " / ".join(format(value, form) for value in values)


def estimate(figure: dict[str, float]) -> str:
    """A value with its interval."""
    return f"{figure['value']:.4f} ({figure['low']:.4f} to {figure['high']:.4f})"
