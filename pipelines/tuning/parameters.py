"""What one setting may be: a range of numbers, or a list of choices, and its next value up or down.

In: an Optuna trial. Out: a value of the setting. A number is rounded before it is used, so that the recipe can say it.
"""

from dataclasses import dataclass
from typing import cast

from optuna.trial import Trial

Value = float | int | str | bool

DIGITS = 3  # of a number in a recipe


@dataclass(frozen=True)
class Number:
    """A number between `low` and `high`, both allowed.

    Attributes:
        step: a neighbour is so many times larger or smaller where `log`, else so much more or less.
        log: search its logarithm.
    """

    low: float
    high: float
    step: float
    log: bool = False

    def suggest(self, trial: Trial, name: str) -> Value:
        """What the sampler chooses."""
        return rounded(trial.suggest_float(name, self.low, self.high, log=self.log))

    def neighbours(self, value: Value) -> list[Value]:
        """The next value up and the next one down, where there are any."""
        number = float(value)
        both = (number * self.step, number / self.step) if self.log else (number + self.step, number - self.step)
        inside = (min(self.high, max(self.low, rounded(each))) for each in both)
        return [each for each in inside if each != number]

    def holds(self, value: Value) -> bool:
        """Whether it may be this value."""
        return self.low <= float(value) <= self.high


@dataclass(frozen=True)
class Choice:
    """One of a list in which neighbours stand side by side."""

    choices: tuple[Value, ...]

    def suggest(self, trial: Trial, name: str) -> Value:
        """What the sampler chooses."""
        return self.choices[self.choices.index(cast(Value, trial.suggest_categorical(name, self.choices)))]

    def neighbours(self, value: Value) -> list[Value]:
        """The choice after and the one before, where there are any."""
        place = self.choices.index(value)
        return [self.choices[each] for each in (place + 1, place - 1) if 0 <= each < len(self.choices)]

    def holds(self, value: Value) -> bool:
        """Whether it may be this value."""
        return value in self.choices


Parameter = Number | Choice


def rounded(value: float) -> float:
    """A number as a recipe says it."""
    return float(f"{value:.{DIGITS}g}")
