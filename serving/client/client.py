"""A typed client of the service, blocking (`Client`) or for asyncio (`AsyncClient`).

Calls return plain records or raise a `ServiceError`. Loads neither TensorFlow nor the server. Every call has one
deadline over all its tries. Lost requests are retried: every call of the service is idempotent.
"""

import asyncio
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeVar, Unpack

import httpx
from anyio import CancelScope

from serving.client import calls as calls
from serving.client.calls import Diversity as Diversity
from serving.client.calls import EmbedAnswer as EmbedAnswer
from serving.client.calls import EmbedQuery as EmbedQuery
from serving.client.calls import Event as Event
from serving.client.calls import Impression as Impression
from serving.client.calls import Item as Item
from serving.client.calls import RecallAnswer as RecallAnswer
from serving.client.calls import RecallQuery as RecallQuery
from serving.client.calls import ServiceError as ServiceError
from serving.client.retries import TRY_AGAIN, Answer, Service, Trial, not_ready

DEADLINE_S = 10.0
TRIES = 5
# httpx looks through all connections with each call, so more of them cost more than they save. They are counted here:
# in httpcore's queue a call whose time is up as it gets a connection leaves that there for good, counted and unused.
MOST_CALLS = 100
# An idle connection is closed before the other side does it: load balancers after a minute or so, the service and nginx
# a little later.
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=55)

T = TypeVar("T")


class Client:
    """A blocking client. Threads may share one; close it, or use it in a `with`.

    Args:
        url: the service's address, for example "http://127.0.0.1:8000".
        deadline_s: seconds for one call, over all its tries and the pauses between them; each wait for the other side
            gets what was left as its part (connecting, sending, head, body) began, so slow pieces can exceed it.
        tries: the most times that one call is sent.
        api_key: for a service that requires one.

    Raises:
        ValueError: an argument is invalid.
    """

    def __init__(
        self, url: str, *, deadline_s: float = DEADLINE_S, tries: int = TRIES, api_key: str | None = None
    ) -> None:
        self._service = Service(url, deadline_s, tries, api_key)
        self._connect()

    def recall(self, user_id: str | None = None, **options: Unpack[calls.RecallOptions]) -> RecallAnswer:
        """The k best items for a user, features, a history, a vector, or a combination of them."""
        return self._send(calls.recall(user_id, options))

    def recall_batch(self, queries: Sequence[RecallQuery]) -> list[RecallAnswer]:
        """As `recall` for each query, in order."""
        return self._send(calls.recall_batch(queries))

    def similar(self, items: Sequence[str], **options: Unpack[calls.Wanted]) -> RecallAnswer:
        """The k items most similar to these, which are not returned themselves."""
        return self._send(calls.similar(items, options))

    def embed(self, queries: Sequence[EmbedQuery]) -> EmbedAnswer:
        """The vectors that `recall` would search with."""
        return self._send(calls.embed(queries))

    def put_item(self, item_id: str, features: Mapping[str, Any], attributes: Mapping[str, Any]) -> int:
        """Adds or replaces an item; returns the number of the change, which is on disk."""
        return self._send(calls.put_item(item_id, features, attributes))

    def put_items(self, items: Sequence[Item]) -> int:
        """Adds or replaces items, all or none; returns the number of the last change."""
        return self._send(calls.put_items(items))

    def delete_item(self, item_id: str) -> int:
        """Deletes an item; returns the number of the change."""
        return self._send(calls.delete_item(item_id))

    def add_events(self, events: Sequence[Event]) -> int:
        """Adds events, all or none; returns how many were new in the try that was answered.

        An earlier try may have succeeded unnoticed: a smaller number does not mean that the rest were known before.
        """
        return self._send(calls.add_events(events))

    def add_impressions(self, impressions: Sequence[Impression]) -> int:
        """Adds impressions, all or none; returns how many were new, as `add_events` does."""
        return self._send(calls.add_impressions(impressions))

    def ready(self) -> bool:
        """Whether the service answers queries now; does not retry.

        Raises:
            ServiceError: the service is broken, or the answer is not from this service.
        """
        try:
            return self._send(calls.ready())
        except ServiceError as error:
            return not_ready(error)

    def close(self) -> None:
        """Closes the connections; calls that still wait for one then end with a RuntimeError of httpx."""
        # Those of a parent are not a child's to close; another thread may have held their lock at the fork.
        if self._process == os.getpid():
            self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self) -> None:
        self._http, self._places = httpx.Client(limits=LIMITS), threading.BoundedSemaphore(MOST_CALLS)
        self._process = os.getpid()  # last: by it another thread of a child of fork knows that they are its own

    def _send(self, call: calls.Call[T]) -> T:
        trial = Trial(self._service, call)
        while True:
            came = self._once(trial)
            if isinstance(came, Answer) and came.status not in TRY_AGAIN:
                return trial.read(came)
            time.sleep(trial.pause_s(came))

    def _once(self, trial: Trial[Any]) -> Answer | httpx.RequestError:
        if self._process != os.getpid():
            # On the connections of its parent a child of fork would read the answers to others' requests.
            self._connect()
        places = self._places
        if not places.acquire(timeout=max(0.0, trial.left_s())):
            return httpx.PoolTimeout("as many calls as are sent at once were under way")
        try:
            with self._http.stream(**trial.request()) as response:
                content = bytearray()
                for piece in response.iter_bytes():
                    content += piece
                    trial.check_time()
                return Answer.of(response, bytes(content))
        except httpx.RequestError as error:
            return error
        finally:
            places.release()


class AsyncClient:
    """The calls of `Client` for asyncio, in an `async with`; `deadline_s` ends a call whatever the other side sends."""

    def __init__(
        self, url: str, *, deadline_s: float = DEADLINE_S, tries: int = TRIES, api_key: str | None = None
    ) -> None:
        self._service = Service(url, deadline_s, tries, api_key)
        self._http, self._places = httpx.AsyncClient(limits=LIMITS), asyncio.Semaphore(MOST_CALLS)

    async def recall(self, user_id: str | None = None, **options: Unpack[calls.RecallOptions]) -> RecallAnswer:
        """As `Client.recall`."""
        return await self._send(calls.recall(user_id, options))

    async def recall_batch(self, queries: Sequence[RecallQuery]) -> list[RecallAnswer]:
        """As `Client.recall_batch`."""
        return await self._send(calls.recall_batch(queries))

    async def similar(self, items: Sequence[str], **options: Unpack[calls.Wanted]) -> RecallAnswer:
        """As `Client.similar`."""
        return await self._send(calls.similar(items, options))

    async def embed(self, queries: Sequence[EmbedQuery]) -> EmbedAnswer:
        """As `Client.embed`."""
        return await self._send(calls.embed(queries))

    async def put_item(self, item_id: str, features: Mapping[str, Any], attributes: Mapping[str, Any]) -> int:
        """As `Client.put_item`."""
        return await self._send(calls.put_item(item_id, features, attributes))

    async def put_items(self, items: Sequence[Item]) -> int:
        """As `Client.put_items`."""
        return await self._send(calls.put_items(items))

    async def delete_item(self, item_id: str) -> int:
        """As `Client.delete_item`."""
        return await self._send(calls.delete_item(item_id))

    async def add_events(self, events: Sequence[Event]) -> int:
        """As `Client.add_events`."""
        return await self._send(calls.add_events(events))

    async def add_impressions(self, impressions: Sequence[Impression]) -> int:
        """As `Client.add_impressions`."""
        return await self._send(calls.add_impressions(impressions))

    async def ready(self) -> bool:
        """As `Client.ready`."""
        try:
            return await self._send(calls.ready())
        except ServiceError as error:
            return not_ready(error)

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _send(self, call: calls.Call[T]) -> T:
        trial = Trial(self._service, call)
        while True:
            came = await self._once(trial)
            if isinstance(came, Answer) and came.status not in TRY_AGAIN:
                return trial.read(came)
            await asyncio.sleep(trial.pause_s(came))

    async def _once(self, trial: Trial[Any]) -> Answer | httpx.RequestError:
        # httpcore holds off the end of a scope, not that of a task, until it has cleaned up after a request: one that
        # is cut off there keeps its place among the connections for good.
        scope = CancelScope()
        asking = asyncio.create_task(self._ask(trial, scope))
        # Else an error that nobody waits for any more is logged as a lost one.
        asking.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            await asyncio.wait((asking,), timeout=trial.left_s())
            return asking.result() if asking.done() else httpx.ReadTimeout("the answer was still coming")
        finally:
            if not asking.done():
                scope.cancel()

    async def _ask(self, trial: Trial[Any], scope: CancelScope) -> Answer | httpx.RequestError:
        with scope:
            # Without timers of the waits: those would start anew with each piece of a head.
            request = trial.request() | {"extensions": {"timeout": {}}}
            try:
                async with self._places, self._http.stream(**request) as response:
                    return Answer.of(response, await response.aread())
            except httpx.RequestError as error:
                return error
        return httpx.ReadTimeout("nobody waits for the answer")
