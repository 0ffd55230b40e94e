"""What the routes that change something have in common: their bodies (items, events, impressions), and the write."""

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import anyio.to_thread
from fastapi import Request
from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from serving.catalogue import journal
from serving.catalogue.journal import JournalError
from serving.catalogue.journal_rows import UNTYPED
from serving.errors import RequestError
from serving.http.request_errors import at_most
from serving.http.requests import Id, Listed, StrictBody, Whole
from serving.protocol.exchange import EXCHANGE
from serving.service.service import service_of
from serving.settings import Settings

T = TypeVar("T")

SECONDS = 10**11 - 1  # the latest time of an event, in the year 5138: `prepare` reads larger numbers as milliseconds
DATES = 19_000_000, 21_999_999  # which it reads as days, and refuses beside seconds


def _no_date(seconds: int) -> int:
    """Refuses dates of 8 digits, which as seconds are of August and September 1970."""
    if DATES[0] <= seconds <= DATES[1]:
        raise PydanticCustomError("date", "must be in seconds since 1970, not a date of 8 digits")
    return seconds


Seconds = Annotated[
    Whole,
    AfterValidator(_no_date),
    Field(
        description="seconds since 1970, UTC; no date of 8 digits",
        json_schema_extra={"format": "int64", "not": {"minimum": DATES[0], "maximum": DATES[1]}},
    ),
]


class ItemRequest(StrictBody):
    """The body of `PUT /items/{id}`: the complete item."""

    features: dict[str, Any] = Field({}, description="raw features of the candidate tower by name; the id is added")
    attributes: dict[str, Any] = Field({}, description="item columns by name, for filters; those left out are missing")


class NamedItem(ItemRequest):
    """One item of `PUT /items`."""

    id: Id


class ItemsRequest(StrictBody):
    """The body of `PUT /items`: all of them, or none."""

    items: Listed[NamedItem] = Field(min_length=1)


class Event(StrictBody):
    """One user took one item."""

    id: Id = Field(description="the event's own id; an event sent again with the same id counts once")
    user_id: Id
    item_id: Id
    time: Seconds = Field(ge=0, le=SECONDS)
    type: Id = Field(UNTYPED, description="as in the training data, such as 'click'; histories of types read it")


class EventsRequest(StrictBody):
    """The body of `POST /events`: all of them, or none."""

    events: Listed[Event] = Field(min_length=1)


class Impression(StrictBody):
    """What one user was shown at one time."""

    id: Id = Field(description="the impression's own id; an impression sent again with the same id counts once")
    request_id: Id = Field(description="X-Request-Id of the answer that these items came from")
    user_id: Id
    item_ids: Listed[Id] = Field(min_length=1, description="in the order shown")
    time: Seconds = Field(ge=0, le=SECONDS)


class ImpressionsRequest(StrictBody):
    """The body of `POST /impressions`: all of them, or none."""

    impressions: Listed[Impression] = Field(min_length=1)


def user_events(body: EventsRequest, settings: Settings) -> list[journal.UserEvent]:
    """The events of a request.

    Raises:
        RequestError: there are too many.
    """
    at_most(body.events, settings.max_events, "events")
    return [journal.UserEvent(each.id, each.user_id, each.item_id, each.time, each.type) for each in body.events]


def impressions(body: ImpressionsRequest, settings: Settings) -> list[journal.Impression]:
    """The impressions of a request.

    Raises:
        RequestError: there are too many, or one holds too many items.
    """
    at_most(body.impressions, settings.max_events, "impressions")
    for place, each in enumerate(body.impressions):
        at_most(each.item_ids, settings.max_list, f"impressions.{place}.item_ids")
    return [
        journal.Impression(each.id, each.request_id, each.user_id, tuple(each.item_ids), each.time)
        for each in body.impressions
    ]


async def write(request: Request, change: Callable[[], T]) -> T:
    """Makes a change in a thread, among few at a time; one that waits for its turn when its caller gets 503 is dropped.

    The caller sends it again, perhaps to another worker, and then the next one, which an old one must not undo. One
    that has begun goes on, and may still wait for the journal.

    Raises:
        RequestError: the change could not be kept, or came too late.
    """
    exchange = request.scope.get("state", {}).get(EXCHANGE)

    def in_time() -> T:
        if exchange is not None and exchange.given_up:
            raise RequestError("it came too late; send it again", code="timeout")
        return change()

    try:
        return await anyio.to_thread.run_sync(in_time, limiter=service_of(request).writers)
    except JournalError as error:
        # Callers must not see the path. Of a database whose answer was lost nobody knows what it did.
        raise RequestError("the change could not be kept; send it again", code="not_written") from error
