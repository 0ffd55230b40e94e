"""What the client sends and reads: its records, one function per call of the service, and the one error."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NotRequired, Required, TypedDict, TypeVar
from urllib.parse import quote

T = TypeVar("T")


class Diversity(TypedDict):
    """At most `most` items per value of the item column `column`."""

    column: str
    most: int


class Wanted(TypedDict, total=False):
    """Which items may be returned. Here and below, None is the same as leaving the key out."""

    k: int | None
    exclude: Sequence[str] | None
    allow: Sequence[str] | None
    filter: Mapping[str, Any] | None
    diversity: Diversity | None
    attributes: Sequence[str] | None


class RecallOptions(Wanted, total=False):
    """What a recall may ask besides a user; `vector` is [D]."""

    features: Mapping[str, Any] | None
    history: Sequence[str] | None
    vector: Sequence[float] | None
    exclude_seen: bool | None
    segment: str | None


class RecallQuery(RecallOptions, total=False):
    """One query of a batch."""

    user_id: str | None


class EmbedQuery(TypedDict, total=False):
    """Whose vector to compute."""

    user_id: str | None
    features: Mapping[str, Any] | None
    history: Sequence[str] | None


class Item(TypedDict, total=False):
    """The complete new state of an item."""

    id: Required[str]
    features: Mapping[str, Any] | None
    attributes: Mapping[str, Any] | None


class Event(TypedDict):
    """One user's interaction with one item; `time` in whole seconds since 1970, UTC; each event `id` counts once.

    `type` is one of the training data's, such as "click"; an event without it is of the type "event".
    """

    id: str
    user_id: str
    item_id: str
    time: int
    type: NotRequired[str]


class Impression(TypedDict):
    """What one user was shown: items in order, and the `X-Request-Id` of the recall; each `id` counts once."""

    id: str
    request_id: str
    user_id: str
    item_ids: Sequence[str]
    time: int


@dataclass(frozen=True)
class RecallAnswer:
    """Items as (id, score), best first; `source` says how they were found.

    `attributes` holds the requested item columns, one dictionary per item, in order; empty if none were requested.
    `request_id` is what an impression of these items names.
    """

    items: list[tuple[str, float]]
    model_version: str
    source: str
    attributes: list[dict[str, Any]] = field(default_factory=list)
    request_id: str = ""


@dataclass(frozen=True)
class EmbedAnswer:
    """Vectors, each [D], in the order of the queries; zeros where `sources` says "popular"."""

    vectors: list[list[float]]
    sources: list[str]
    model_version: str


class ServiceError(Exception):
    """The service rejected a call, or did not answer in time.

    Attributes:
        status: the HTTP status; None without an answer.
        code: the service's error code. The client's own are "deadline", "no_connection", "http_error" (an error that is
            not from this service) and "bad_answer" (a success that cannot be read).
        message: a description for people.
        field: the request field at fault, or None if it is not a single field.
    """

    def __init__(self, status: int | None, code: str, message: str, field: str | None = None) -> None:
        super().__init__(f"{message} ({code}{'' if status is None else f', status {status}'})")
        self.status, self.code, self.message, self.field = status, code, message, field

    def __reduce__(self) -> tuple[type["ServiceError"], tuple[int | None, str, str, str | None]]:
        # An exception is copied, and sent to another process, by its `args`, which are the text alone.
        return type(self), (self.status, self.code, self.message, self.field)


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request, and how to read its answer; `read` raises KeyError, TypeError or ValueError on another shape.

    `once`: no retries, because the call asks for the current state.
    """

    method: str
    path: str
    body: Mapping[str, Any] | None
    read: Callable[[Any], T]
    once: bool = False


def recall(user_id: str | None, options: Mapping[str, Any]) -> Call[RecallAnswer]:
    """`POST /recall`."""
    return Call("POST", "/recall", _body({"user_id": user_id, **options}), _recalled)


def recall_batch(queries: Sequence[RecallQuery]) -> Call[list[RecallAnswer]]:
    """`POST /recall/batch`."""

    def read(answer: Any) -> list[RecallAnswer]:
        return [_recalled({**each, "request_id": answer["request_id"]}) for each in answer["answers"]]

    return Call("POST", "/recall/batch", _bodies("queries", queries), read)


def similar(items: Sequence[str], options: Mapping[str, Any]) -> Call[RecallAnswer]:
    """`POST /similar`."""
    return Call("POST", "/similar", _body({"items": items, **options}), _recalled)


def embed(queries: Sequence[EmbedQuery]) -> Call[EmbedAnswer]:
    """`POST /embed`."""

    def read(answer: Any) -> EmbedAnswer:
        return EmbedAnswer(answer["vectors"], answer["sources"], answer["model_version"])

    return Call("POST", "/embed", _bodies("queries", queries), read)


def put_item(item_id: str, features: Mapping[str, Any], attributes: Mapping[str, Any]) -> Call[int]:
    """`PUT /items/{id}`."""
    return Call("PUT", _item_path(item_id), {"features": features, "attributes": attributes}, _number("seq"))


def put_items(items: Sequence[Item]) -> Call[int]:
    """`PUT /items`."""
    return Call("PUT", "/items", _bodies("items", items), _number("seq"))


def delete_item(item_id: str) -> Call[int]:
    """`DELETE /items/{id}`."""
    return Call("DELETE", _item_path(item_id), None, _number("seq"))


def add_events(events: Sequence[Event]) -> Call[int]:
    """`POST /events`."""
    return Call("POST", "/events", _bodies("events", events), _number("added"))


def add_impressions(impressions: Sequence[Impression]) -> Call[int]:
    """`POST /impressions`."""
    return Call("POST", "/impressions", _bodies("impressions", impressions), _number("added"))


def ready() -> Call[bool]:
    """`GET /readyz`."""
    return Call("GET", "/readyz", None, lambda answer: bool(answer["status"] == "ready"), once=True)


def _item_path(item_id: str) -> str:
    if not isinstance(item_id, str):
        raise TypeError(f"item_id: a string is wanted, got {item_id!r:.100}; ids are strings, also those like numbers")
    # An id of dots must not climb out of /items, and a slash in an id must not split the path.
    return "/items/" + quote(item_id, safe="").replace(".", "%2E")


def _bodies(name: str, arguments: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    bodies = []
    for each in arguments:  # once: an iterator has them only once
        if not isinstance(each, Mapping):  # the keys of one dictionary, perhaps
            raise TypeError(f"{name}: a list of dictionaries is wanted, got {each!r:.100} in it")
        bodies.append(_body(each))
    return {name: bodies}


def _body(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _plain(name, value) for name, value in arguments.items() if value is not None}


def _plain(name: str, value: Any) -> Any:
    if name in _LISTS and not isinstance(value, Mapping):  # the attributes of an item are values by column
        if isinstance(value, str):  # also a sequence of strings, to Python and to a type checker
            raise TypeError(f"{name}: a list is wanted, got the string {value[:100]!r}")
        return list(map(float, value)) if name == "vector" else list(value)
    return value


_LISTS = ("items", "item_ids", "exclude", "allow", "history", "vector", "attributes")


def _recalled(answer: Any) -> RecallAnswer:
    items = [(item["id"], item["score"]) for item in answer["items"]]
    attributes = [item["attributes"] for item in answer["items"] if "attributes" in item]
    return RecallAnswer(items, answer["model_version"], answer["source"], attributes, answer["request_id"])


def _number(key: str) -> Callable[[Any], int]:
    return lambda answer: int(answer[key])
