"""Request bodies as strict models, and error messages for invalid ones.

An invalid body is a `RequestError` that names the field. Ids are strings on the wire.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from serving.catalogue.catalogue import Wanted
from serving.errors import RequestError
from serving.http.request_errors import at_most, explained_first
from serving.recall.query import EVERYTHING, Diversity, RecallQuery, string_lists
from serving.search.condition_limits import GREATEST_DEPTH, GREATEST_NODES
from serving.search.conditions import Condition, size
from serving.search.filter_masks import canonical
from serving.settings import DEFAULT_K, Settings

LONGEST_ID = 1_000

# JSON has one number type: 10.0 is an integer, also in JSON Schema.
Whole = Annotated[int, BeforeValidator(lambda n: int(n) if isinstance(n, float) and n.is_integer() else n)]
ONE_LINE = r"^[^\n]+$"  # ids are lines of a vocabulary
NOT_BLANK = r"^[^\r\n]*\S[^\r\n]*$"  # new ids, as `prepare` takes them for the next training
Id = Annotated[str, Field(min_length=1, max_length=LONGEST_ID, pattern=NOT_BLANK)]

Body = TypeVar("Body", bound=BaseModel)
Value = TypeVar("Value")
Listed = Annotated[list[Value], Field(fail_fast=True)]  # one error, not one for each of half a million wrong values


class StrictBody(BaseModel):
    """JSON of exactly the declared types and keys."""

    model_config = ConfigDict(strict=True, extra="forbid")


class DiversityRequest(StrictBody):
    """Limits how many items share one value of an item column; the answer still has k items if that many exist."""

    column: str = Field(description="an item column of the bundle; of a list, each of its values counts")
    most: Whole = Field(ge=1, description="items of one value")


class _Wanted(StrictBody):
    """Which items may come back.

    Attributes:
        limited: the fields whose length is limited.
    """

    limited: ClassVar[tuple[str, ...]] = ("exclude", "allow", "attributes")

    k: Whole = Field(DEFAULT_K, ge=1, description="how many items")
    # A factory: Pydantic copies a plain default for each request.
    exclude: Listed[str] = Field(
        default_factory=list,
        description="item ids that must not come back; unknown ones are ignored",
        json_schema_extra={"default": []},
    )
    allow: Listed[str] | None = Field(None, description="only these item ids may come back; unknown ones are ignored")
    filter: Condition | None = Field(
        None,
        description="only items whose columns fit may come back; "
        f"at most {GREATEST_NODES} conditions, nested at most {GREATEST_DEPTH} deep",
    )
    diversity: DiversityRequest | None = Field(None, description="how many items of one kind may come back")
    attributes: Listed[str] = Field(
        default_factory=list,
        description="item columns to send along with each item, as its `attributes`",
        json_schema_extra={"default": []},
    )

    @property
    def wanted(self) -> Wanted:
        """Which items may come back at all."""
        if self.allow is None and self.filter is None:
            return EVERYTHING
        return Wanted(None if self.allow is None else tuple(self.allow), self.filter)

    @property
    def diverse(self) -> Diversity | None:
        """How many items of one kind may come back."""
        return None if self.diversity is None else Diversity(self.diversity.column, self.diversity.most)


class EmbedQuery(StrictBody):
    """The query. All keys are optional."""

    limited: ClassVar[tuple[str, ...]] = ("history",)

    user_id: str | None = Field(
        None, description="a user; answered from the vector in the bundle, or from live events if the tower takes them"
    )
    features: dict[str, Any] | None = Field(None, description="raw features of the query tower by name")
    history: Listed[str] | None = Field(
        None,
        description="item ids, newest last, for the features of kind history that take events of all types; unknown "
        "ones are ignored",
    )


class RecallRequest(_Wanted, EmbedQuery):
    """The body of `POST /recall`. All keys are optional; with none of them the answer is the popular items."""

    limited = (*_Wanted.limited, *EmbedQuery.limited)

    vector: Listed[float] | None = Field(
        None, description="your own query vector; takes precedence over features and history"
    )
    exclude_seen: bool = Field(True, description="also leave out the user's seen items and the given history")
    segment: str | None = Field(
        None,
        description="if nothing is known about the user: the segment whose popular items come first; an unknown one is "
        "ignored",
    )

    def query(self, path: str) -> RecallQuery:
        """What is asked at a position of the request."""
        # By position, in the order of `RecallQuery`: with keywords it takes twice as long.
        return RecallQuery(
            self.user_id, self.features, self.history, self.vector, None, self.k, self.exclude, self.exclude_seen,
            self.wanted, self.diverse, self.segment, self.attributes, path,
        )  # fmt: skip


class RecallBatchRequest(StrictBody):
    """The body of `POST /recall/batch`."""

    queries: Listed[RecallRequest] = Field(min_length=1, description="each as the body of POST /recall")


class SimilarRequest(_Wanted):
    """The body of `POST /similar`. The given items do not come back."""

    limited = (*_Wanted.limited, "items")

    items: Listed[str] = Field(min_length=1, description="item ids; unknown ones are ignored")

    def query(self, path: str) -> RecallQuery:
        """What is asked at a position of the request."""
        return RecallQuery(
            similar_to=self.items, k=self.k, exclude=self.exclude, wanted=self.wanted, diversity=self.diverse,
            attributes=self.attributes, path=path,
        )  # fmt: skip


class EmbedRequest(StrictBody):
    """The body of `POST /embed`."""

    queries: Listed[EmbedQuery] = Field(min_length=1)


def parse(model: type[Body], body: bytes) -> Body:
    """Reads a request body.

    Raises:
        RequestError: code "invalid_json" if it is not JSON, otherwise "invalid_request" with the field.
    """
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise explained_first(error, model) from None


def query_of(content: Mapping[str, Any], settings: Settings) -> RecallQuery:
    """The query of the window's form, by the models and limits of a body.

    Args:
        content: the keys of a body of `POST /similar` if it holds `items`, else of `POST /recall`.
        settings: the limits.

    Raises:
        RequestError: a key is invalid or exceeds its limit; names the field.
    """
    model = SimilarRequest if "items" in content else RecallRequest
    try:
        return limited(model.model_validate(content), settings)
    except ValidationError as error:
        raise explained_first(error, model) from None


def limited(request: RecallRequest | SimilarRequest, settings: Settings, path: str = "") -> RecallQuery:
    """The query of a request, after checking its k, lists and answer size.

    Raises:
        RequestError: one exceeds its limit.
    """
    if "k" not in request.model_fields_set:
        request.k = settings.default_k(len(request.attributes))
    if request.k > settings.max_k:
        raise RequestError.at(f"{path}k", f"must be at most {settings.max_k}, got {request.k}")
    _refuse_long(request, settings.max_list, path)
    query = request.query(path)
    if query.k * (1 + len(query.attributes)) > settings.max_answer_values:
        refuse_large([query], settings, f"{path}k")
    return query


def refuse_large(queries: Sequence[RecallQuery], settings: Settings, field: str = "queries") -> None:
    """Rejects queries whose answer would be too large: per item, one value for id and score, and one per attribute.

    Args:
        queries: the queries of one request.
        settings: the limit.
        field: the field at fault.

    Raises:
        RequestError: names the field.
    """
    count, most = sum(query.k * (1 + len(query.attributes)) for query in queries), settings.max_answer_values
    if count > most:
        what = "the sum over all queries of k" if field == "queries" else "k"
        raise RequestError.at(field, f"{what} x (1 + attributes) must be at most {most}, got {count}")


def refuse_many_conditions(queries: Sequence[RecallQuery], settings: Settings) -> None:
    """Rejects a batch whose filters would take too long; equal ones are computed once, and count once.

    Raises:
        RequestError: names the field.
    """
    filters, most = [each.wanted.filter for each in queries if each.wanted.filter is not None], settings.max_conditions
    if sum(map(size, filters)) <= most:
        return
    if (count := sum(map(size, {canonical(each): each for each in filters}.values()))) > most:
        rule = f"its different filters must hold at most {most} conditions together, got {count}"
        raise RequestError.at("queries", rule)


def described(request: EmbedQuery, settings: Settings, path: str) -> RecallQuery:
    """The query of an embed request, after checking its lists.

    Raises:
        RequestError: a list is too long.
    """
    _refuse_long(request, settings.max_list, path)
    return RecallQuery(user_id=request.user_id, features=request.features, history=request.history, path=path)


def _refuse_long(request: _Wanted | EmbedQuery, most: int, path: str) -> None:
    for name in request.limited:
        values = getattr(request, name)
        if values and len(values) > most:
            at_most(values, most, f"{path}{name}")
    if isinstance(request, EmbedQuery) and request.features:
        for name, values in string_lists(request.features):
            at_most(values, most, f"{path}features.{name}")
