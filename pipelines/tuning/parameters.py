"""Defines the range of a setting: numbers or choices, with the next value up and down.

Numbers are rounded before use, so that the recipe states them exactly.
"""

from dataclasses import dataclass
from typing import cast

from optuna.trial import Trial

Value = float | int | str | bool

DIGITS = 3  # significant digits of a number in a recipe


@dataclass(frozen=True)
class Number:
    """A number from `low` to `high`, inclusive.

    Attributes:
        step: distance to a neighbour: a factor if `log`, else a difference.
        log: search on a logarithmic scale.
    """

    low: float
    high: float
    step: float
    log: bool = False

    def suggest(self, trial: Trial, name: str) -> Value:
        """Returns the sampler's choice."""
        return rounded(trial.suggest_float(name, self.low, self.high, log=self.log))

    def neighbours(self, value: Value) -> list[Value]:
        """Returns the next value up and the next one down, if within the range."""
        number = float(value)
        both = (number * self.step, number / self.step) if self.log else (number + self.step, number - self.step)
        inside = (min(self.high, max(self.low, rounded(each))) for each in both)
        return [each for each in inside if each != number]

    def holds(self, value: Value) -> bool:
        """Whether the value is in the range."""
        return self.low <= float(value) <= self.high


@dataclass(frozen=True)
class Choice:
    """A list of choices, ordered so that neighbours are adjacent."""

    choices: tuple[Value, ...]

    def suggest(self, trial: Trial, name: str) -> Value:
        """Returns the sampler's choice."""
        return self.choices[self.choices.index(cast(Value, trial.suggest_categorical(name, self.choices)))]

    def neighbours(self, value: Value) -> list[Value]:
        """Returns the next choice and the previous one, if any."""
        place = self.choices.index(value)
        return [self.choices[each] for each in (place + 1, place - 1) if 0 <= each < len(self.choices)]

    def holds(self, value: Value) -> bool:
        """Whether the value is one of the choices."""
        return value in self.choices


Parameter = Number | Choice


def rounded(value: float) -> float:
    """Rounds a number to the digits of a recipe."""
    return float(f"{value:.{DIGITS}g}")
