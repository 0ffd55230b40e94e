"""The form of the window: reads the address of the page, and writes the request of `POST /recall` that it stands for.

Every field is text as typed. A field that cannot be read gets its error here; what the request itself forbids is found
where every request is checked.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlencode

import orjson

from serving.bundle.manifest import FeatureSpec
from serving.bundle.request_features import GREATEST
from serving.catalogue.times import EXAMPLE, LEAST_S, TimeColumn
from serving.errors import RequestError
from serving.search.conditions import Kind

DEFAULT_K, MOST_K = 20, 100
MOST_CHARACTERS = 16_384  # of an address; proxies take little more
FEATURE = "feature."
# Fields of their own or of other routes: the user and the history.
NOT_IN_FORM = ("id", "history", "history_times")
# The field of the form that a key of the request comes from.
FIELD_OF = {"user_id": "user", "items": "similar"}


class Form:
    """The fields of one page.

    Args:
        values: the parameters of the address, by name.
        most_k: the most items that may be asked for.

    Attributes:
        most_k: the most items that may be asked for.
        errors: what is wrong, by field; "" holds what is wrong with the whole request.
    """

    def __init__(self, values: Mapping[str, str], most_k: int = MOST_K) -> None:
        self._values, self.most_k = dict(values), most_k
        self.errors: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        return self._values.get(name, "")

    def lines(self, name: str) -> list[str]:
        """The lines of a field that hold something."""
        return [line for line in self[name].replace("\r\n", "\n").split("\n") if line]

    def replace(self, **texts: str) -> None:
        """Replaces the texts of fields."""
        self._values |= texts

    @property
    def without_history(self) -> bool:
        """Whether nothing that the user took counts: `POST /recall` can only leave out the user, too."""
        return self["stored"] == "leave" and not self.lines("history")

    @property
    def asks(self) -> bool:
        """Whether anything but a search by a few letters is asked; the page as it is first opened asks nothing."""
        return any(text for name, text in self._values.items() if name not in ("find_user", "find_item"))

    @property
    def is_empty(self) -> bool:
        """Whether the address holds nothing."""
        return not any(self._values.values())

    @property
    def has_features(self) -> bool:
        """Whether a feature is filled in."""
        return any(text for name, text in self._values.items() if name.startswith(FEATURE))

    def address(self, **changes: str) -> str:
        """The relative address of this request with some fields changed; empty ones are left out."""
        return _address({name: text for name, text in (self._values | changes).items() if text})

    def similar_to(self, item_id: str) -> str:
        """The relative address of the items similar to one."""
        kept = ("k", "bundle", "alone")
        return _address({name: self[name] for name in kept if self[name]} | {"similar": item_id})

    def request(
        self, specs: Sequence[FeatureSpec], columns: Mapping[str, Kind], times: Mapping[str, TimeColumn]
    ) -> dict[str, Any]:
        """The keys of a request as its JSON would hold them; `errors` names the fields that could not be read.

        Args:
            specs: the request features of the bundle.
            columns: kind of each item column.
            times: the item columns that hold times.

        Returns:
            A body of `POST /similar` if the form names items to be similar to, else of `POST /recall`.
        """
        content: dict[str, Any] = {"k": self._whole("k", min(DEFAULT_K, self.most_k), self.most_k)}
        if exclude := self.lines("exclude"):
            content["exclude"] = exclude
        if conditions := self._conditions(columns, times):
            content["filter"] = conditions[0] if len(conditions) == 1 else {"and": conditions}
        # Without its column a value would be left out silently.
        for column, value in (("column", "value"), ("diversity", "most")):
            if self[value] and not self[column]:
                self.errors[column] = f"choose a column for {_short(self[value])}"
        if self["diversity"]:
            content["diversity"] = {"column": self["diversity"], "most": self._whole("most", 1)}
        if self["similar"]:
            return content | {"items": [self["similar"]]}
        if self["user"] and not self.without_history:
            content["user_id"] = self["user"]
        if history := self.lines("history"):
            content["history"] = history
        if features := self._features(specs):
            content["features"] = features
        return content | {"exclude_seen": self["seen"] != "keep"}

    def refuse(self, error: RequestError) -> None:
        """Puts an error of the request beside the field that it comes from."""
        key, _, rest = (error.field or "").partition(".")
        name = FIELD_OF.get(key, key)
        # The condition of one column comes first, before a filter as JSON.
        place = "and.0." if self["filter"].strip() else ""
        if key == "filter" and self["column"] and f"{rest}.".startswith(place):
            part = rest.removeprefix(place).partition(".")[0]
            name = part if part in ("op", "value") else "column"
        elif key == "features":
            names = [each for each in self._values if each.startswith(FEATURE)]
            fitting = [each for each in names if f"{rest}.".startswith(f"{each.removeprefix(FEATURE)}.")]
            name = max(fitting, key=len, default="")
        self.errors.setdefault(name, error.message)

    def _whole(self, name: str, default: int, most: int | None = None) -> int:
        text = self[name].strip()
        if not text:
            return default
        if text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= (most or int(text)):
            return int(text)
        allowed = "of at least 1" if most is None else f"from 1 to {most}"
        self.errors[name] = f"must be a whole number {allowed}, got {_short(text)}"
        return default

    def _conditions(self, columns: Mapping[str, Kind], times: Mapping[str, TimeColumn]) -> list[Any]:
        found: list[Any] = []
        if self["column"]:
            found.append({"column": self["column"], "op": self["op"] or "eq", "value": self._value(columns, times)})
        if text := self["filter"].strip():
            try:
                found.append(orjson.loads(text))
            except orjson.JSONDecodeError as error:
                self.errors["filter"] = f"not valid JSON: {error}"
        return found

    def _value(self, columns: Mapping[str, Kind], times: Mapping[str, TimeColumn]) -> Any:
        text, several = self["value"], self["op"] in ("in", "not_in")
        values: list[Any] = [each.strip() for each in text.split(",")] if several else [text]
        if columns.get(self["column"]) == "number":
            values = [self._number("value", each, times.get(self["column"])) for each in values]
        return values if several else values[0]

    def _features(self, specs: Sequence[FeatureSpec]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        known = {f"{FEATURE}{spec.name}" for spec in in_form(specs)}
        strange = [name for name, text in self._values.items() if name.startswith(FEATURE) and text]
        for name in sorted({*strange} - known):
            self.errors[""] = f"{name.removeprefix(FEATURE)}: this bundle's form has no such feature"
        for spec in in_form(specs):
            name = f"{FEATURE}{spec.name}"
            texts = self.lines(name) if spec.length is not None else [self[name]] if self[name] else []
            values = [self._feature(spec, name, text) for text in texts]
            if values:
                found[spec.name] = values if spec.length is not None else values[0]
        return found

    def _feature(self, spec: FeatureSpec, name: str, text: str) -> Any:
        # An hour may also be a time, which is no number.
        if spec.dtype == "string" or (spec.kind in GREATEST and not text.strip().isdecimal()):
            return text
        number = self._number(name, text)
        # The request takes no seconds for a time.
        return TimeColumn().text(number) or number if spec.kind in GREATEST and number >= LEAST_S else number

    def _number(self, name: str, text: str, time: TimeColumn | None = None) -> float:
        with suppress(ValueError, OverflowError):
            # Whole numbers beyond 2^53 keep their digits.
            number = int(text) if text.strip().isdecimal() else float(text)
            if math.isfinite(number):
                return number
        moment = None if time is None else time.number(text)
        if moment is not None:
            return moment
        allowed = "a number" if time is None else f"a time such as {EXAMPLE}, or {time.unit} since 1970"
        self.errors.setdefault(name, f"must be {allowed}, got {_short(text)}")
        return 0


def in_form(specs: Sequence[FeatureSpec]) -> list[FeatureSpec]:
    """The request features that have a field: all but the user's id and history, which have their own."""
    return [spec for spec in specs if spec.kind not in NOT_IN_FORM]


def _address(fields: Mapping[str, str]) -> str:
    # On a phone the answer lies below the form: its place is in the address, so that each question ends there.
    return f"window?{urlencode(fields)}#answer"


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}…")
