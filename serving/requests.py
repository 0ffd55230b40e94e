"""What callers send: every request body as a strict model, and how a wrong one is told.

In: a request body. Out: the model, or a `RequestError` that names the field. Ids are strings on the wire.
"""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from serving.catalogue import Wanted
from serving.conditions import Condition
from serving.errors import RequestError
from serving.features import shown
from serving.query import EVERYTHING, Diversity, RecallQuery
from serving.settings import Settings

DEFAULT_K = 100
LONGEST_ID = 1_000
SECONDS = 2**40  # the latest time of an event, some 35,000 years from 1970: what is beyond are milliseconds

# JSON has one kind of number: 10.0 is a whole one, and JSON Schema says so too.
Whole = Annotated[int, BeforeValidator(lambda n: int(n) if isinstance(n, float) and n.is_integer() else n)]
ONE_LINE = r"^[^\n]+$"  # ids are lines of a vocabulary, and no path of a URL holds a line break
Id = Annotated[str, Field(min_length=1, max_length=LONGEST_ID, pattern=ONE_LINE)]

Body = TypeVar("Body", bound=BaseModel)


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class DiversityRequest(_Body):
    """At most so many items of one value of an item column; still k items where they exist."""

    column: str = Field(description="an item column of the bundle; of a list, each of its values counts")
    most: Whole = Field(ge=1, description="items of one value")


class _Wanted(_Body):
    """Which items may come back.

    Attributes:
        limited: the fields whose length is limited.
    """

    limited: ClassVar[tuple[str, ...]] = ("exclude", "allow", "attributes")

    k: Whole = Field(DEFAULT_K, ge=1, description="how many items")
    # A factory: a default in place is copied for each request.
    exclude: list[str] = Field(
        default_factory=list,
        description="item ids that must not come back; unknown ones are ignored",
        json_schema_extra={"default": []},
    )
    allow: list[str] | None = Field(None, description="only these item ids may come back; unknown ones are ignored")
    filter: Condition | None = Field(None, description="only items whose columns fit may come back")
    diversity: DiversityRequest | None = Field(None, description="how many items of one kind may come back")
    attributes: list[str] = Field(
        default_factory=list,
        description="item columns to send along with each item, as its `attributes`",
        json_schema_extra={"default": []},
    )

    def query(self, **more: Any) -> RecallQuery:
        """What is asked, with what a subclass knows beside it."""
        everything = self.allow is None and self.filter is None
        wanted = EVERYTHING if everything else Wanted(None if self.allow is None else tuple(self.allow), self.filter)
        diversity = None if self.diversity is None else Diversity(self.diversity.column, self.diversity.most)
        return RecallQuery(
            k=self.k, exclude=self.exclude, wanted=wanted, diversity=diversity, attributes=self.attributes, **more
        )


class EmbedQuery(_Body):
    """Who asks. All keys are optional."""

    limited: ClassVar[tuple[str, ...]] = ("history",)

    user_id: str | None = Field(None, description="a user; one known to the bundle is answered from the stored vector")
    features: dict[str, Any] | None = Field(None, description="raw features of the query tower by name")
    history: list[str] | None = Field(None, description="item ids, newest last; unknown ones are ignored")


class RecallRequest(_Wanted, EmbedQuery):
    """The body of `POST /recall`. All keys are optional; with none of them the answer is the popular items."""

    limited = (*_Wanted.limited, *EmbedQuery.limited)

    vector: list[float] | None = Field(None, description="a query vector of your own; goes before features and history")
    exclude_seen: bool = Field(True, description="also leave out the user's seen items and the given history")
    segment: str | None = Field(
        None,
        description="where nothing is known of the user: whose popular items come first; an unknown one is ignored",
    )

    def query(self, **more: Any) -> RecallQuery:
        """What is asked."""
        return super().query(
            user_id=self.user_id,
            features=self.features,
            history=self.history,
            vector=self.vector,
            exclude_seen=self.exclude_seen,
            segment=self.segment,
            **more,
        )


class RecallBatchRequest(_Body):
    """The body of `POST /recall/batch`."""

    queries: list[RecallRequest] = Field(min_length=1, description="each as the body of POST /recall")


class SimilarRequest(_Wanted):
    """The body of `POST /similar`: items like these, which do not come back themselves."""

    limited = (*_Wanted.limited, "items")

    items: list[str] = Field(min_length=1, description="item ids; unknown ones are ignored")

    def query(self, **more: Any) -> RecallQuery:
        """What is asked."""
        return super().query(similar_to=self.items, **more)


class EmbedRequest(_Body):
    """The body of `POST /embed`."""

    queries: list[EmbedQuery] = Field(min_length=1)


class ItemRequest(_Body):
    """The body of `PUT /items/{id}`: the whole item, as it is from now on."""

    features: dict[str, Any] = Field(
        {}, description="raw features of the candidate tower by name; its id goes by itself"
    )
    attributes: dict[str, Any] = Field({}, description="item columns by name, for filters; those left out are missing")


class NamedItem(ItemRequest):
    """One item of `PUT /items`."""

    id: Id


class ItemsRequest(_Body):
    """The body of `PUT /items`: all of them, or none."""

    items: list[NamedItem] = Field(min_length=1)


class Event(_Body):
    """One user took one item."""

    id: Id = Field(description="of the event itself; what comes again under the same id counts once")
    user_id: Id
    item_id: Id
    time: Whole = Field(ge=0, le=SECONDS, description="seconds since 1970, UTC")


class EventsRequest(_Body):
    """The body of `POST /events`: all of them, or none."""

    events: list[Event] = Field(min_length=1)


def parse(model: type[Body], body: bytes) -> Body:
    """Reads a request body.

    Raises:
        RequestError: code "invalid_json" where it is not JSON, otherwise "invalid_request" with the field.
    """
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise explained(dict(error.errors(include_url=False)[0]), model) from None


def limited(request: _Wanted, settings: Settings, path: str = "") -> RecallQuery:
    """The query of a request whose k, lists and answer are within the limits.

    Raises:
        RequestError: one is not.
    """
    if "k" not in request.model_fields_set:
        request.k = min(DEFAULT_K, settings.max_k)
    if request.k > settings.max_k:
        raise RequestError.at(f"{path}k", f"must be at most {settings.max_k}, got {request.k}")
    _refuse_long(request, settings.max_list, path)
    query: RecallQuery = request.query(path=path)
    refuse_large([query], settings, f"{path}k")
    return query


def refuse_large(queries: Sequence[RecallQuery], settings: Settings, field: str = "queries") -> None:
    """Refuses what would make too large an answer: of each item its id with its score, and its attributes.

    Args:
        queries: those of one request.
        settings: the limit.
        field: what is at fault.

    Raises:
        RequestError: names the field.
    """
    count, most = sum(query.k * (1 + len(query.attributes)) for query in queries), settings.max_answer_values
    if count > most:
        what = "the sum over all queries of k" if field == "queries" else "k"
        raise RequestError.at(field, f"{what} x (1 + attributes) must be at most {most}, got {count}")


def described(request: EmbedQuery, settings: Settings, path: str) -> RecallQuery:
    """The query of a request that says who asks, its lists within the limits.

    Raises:
        RequestError: one is not.
    """
    _refuse_long(request, settings.max_list, path)
    return RecallQuery(user_id=request.user_id, features=request.features, history=request.history, path=path)


def _refuse_long(request: _Wanted | EmbedQuery, most: int, path: str) -> None:
    for name in request.limited:
        values = getattr(request, name)
        if values and len(values) > most:
            raise RequestError.at(f"{path}{name}", f"must hold at most {most}, got {len(values)}")


# What is expected by Pydantic's type of the error; what is in braces stands in its context.
_RULES = {
    "string_type": "must be a string",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "missing": "is missing",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "string_too_short": "must not be empty",
    "string_pattern_mismatch": "must hold no line break",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must hold at least {min_length}",
}


def explained(detail: dict[str, Any], model: type[BaseModel] | None = None) -> RequestError:
    """What Pydantic says of a value, in this service's words; `model` is the body's, to name its keys."""
    if detail["type"] == "json_invalid":
        return RequestError(f"the body is not valid JSON: {detail['ctx']['error']}", code="invalid_json")
    field = ".".join(str(part) for part in detail["loc"]) or None
    where = field or "the body"
    if detail["type"] == "extra_forbidden":
        keys = model.model_fields if model is not None and len(detail["loc"]) == 1 else ()
        allowed = f"; allowed are {', '.join(keys)}" if keys else ""
        return RequestError(f"{where}: no such key{allowed}", field=field)
    if detail["type"] == "list_type":
        rule = f"must be a list of {_lists_of(model, field)}"
    else:
        rule = _RULES[detail["type"]].format(**detail.get("ctx", {})) if detail["type"] in _RULES else detail["msg"]
    if detail["type"] == "missing":
        return RequestError(f"{where}: {rule}", field=field)
    hint = "; ids are strings, whatever they look like" if rule == "must be a string" else ""
    return RequestError(f"{where}: {rule}, got {_shown(detail['input'])}{hint}", field=field)


def _lists_of(model: type[BaseModel] | None, field: str | None) -> str:
    if field == "vector":
        return "numbers"
    objects = field in ("queries", "events") or (field == "items" and model is ItemsRequest)
    return "objects" if objects else "strings"


def _shown(came: Any) -> str:
    """What came, in short; bytes are a whole body."""
    if isinstance(came, list):
        return f"a list of {len(came)}"
    return "no object" if isinstance(came, bytes) else shown(came)
