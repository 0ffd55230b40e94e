"""When a call is tried again and when it is given up: the rules that both clients follow, without sending anything.

In: a `Call`, and what came of each try. Out: what to send next, how long to pause before it, at the end the result.
"""

import json
import random
import re
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Generic, NamedTuple, TypeVar

import httpx
import orjson

from serving.client_calls import Call, ServiceError

# Before try n + 1 passes any time up to FIRST_PAUSE_S * 2^(n - 1) ("full jitter"): callers that failed together come
# apart. Brooker, "Exponential backoff and jitter", AWS Architecture Blog 2015.
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0
# Busy, starting, stopping, or a proxy could not reach it. Any other answer would only come again.
TRY_AGAIN = frozenset({429, 502, 503, 504})
LOST = (httpx.NetworkError, httpx.RemoteProtocolError, httpx.ProxyError)
KEY = re.compile(r"[!-~]+")
LEAST_WAIT_S = 0.001  # a socket would take 0 for "do not wait at all", and fail otherwise than by a timeout

T = TypeVar("T")


class Answer(NamedTuple):
    """An HTTP answer, whole."""

    status: int
    retry_after: str | None
    content: bytes


@dataclass(frozen=True)
class Service:
    """Where the service is, and how long a call may take.

    Args:
        url: its address, for example "http://127.0.0.1:8000".
        deadline_s: seconds for one call, over all its tries and the pauses between them.
        tries: how often one call is sent at most.
        api_key: what the service knows this caller by; None sends none.

    Raises:
        ValueError: the address is none, the key cannot stand in a header, or nothing could ever be sent.
    """

    url: str
    deadline_s: float
    tries: int
    api_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        try:
            parsed = httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise ValueError(f"url: {self.url!r}: {error}") from None
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ValueError(f"url: must be like http://127.0.0.1:8000, got {self.url!r}")
        if not self.deadline_s > 0:
            raise ValueError(f"deadline_s: must be above 0, got {self.deadline_s}")
        if self.tries < 1:
            raise ValueError(f"tries: must be at least 1, got {self.tries}")
        if self.api_key is not None and not KEY.fullmatch(self.api_key):
            raise ValueError("api_key: must be printable ASCII without spaces")


class Trial(Generic[T]):
    """One call, from the first try to the result; its time runs from here."""

    def __init__(self, service: Service, call: Call[T]) -> None:
        self._service, self._call = service, call
        self._until = time.monotonic() + service.deadline_s
        self._sent, self._tries = 0, 1 if call.once else service.tries
        # Not NaN, which JSON does not know.
        body = None if call.body is None else json.dumps(call.body, ensure_ascii=False, allow_nan=False).encode()
        self._request = {
            "method": call.method,
            "url": service.url.rstrip("/") + call.path,
            "content": body,
            "headers": ({} if body is None else {"content-type": "application/json"})
            | ({} if service.api_key is None else {"authorization": f"Bearer {service.api_key}"}),
            "extensions": {"timeout": _Left(self)},
        }

    def left_s(self) -> float:
        """Seconds until the deadline."""
        return self._until - time.monotonic()

    def request(self) -> dict[str, Any]:
        """What to send now: the arguments of httpx's `stream`."""
        self._sent += 1
        return self._request

    def check_time(self) -> None:
        """Stops an answer that comes in slow pieces, each of them in time.

        Raises:
            httpx.ReadTimeout: the deadline is over.
        """
        if self.left_s() <= 0:
            raise httpx.ReadTimeout("the answer was still coming")

    def pause_s(self, came: Answer | httpx.RequestError) -> float:
        """Seconds until the next try, after an answer of `TRY_AGAIN`, or after none.

        Raises:
            ServiceError: there is no next try.
        """
        if isinstance(came, Answer):
            error, asked_s = _refused(came), _seconds(came.retry_after)
        else:
            error, asked_s = self._no_answer(came), 0.0
            if not isinstance(came, LOST):
                raise error from came
        jitter_s = random.uniform(0, min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (self._sent - 1)))
        if self._sent >= self._tries or asked_s + jitter_s >= self.left_s():
            raise error from (None if isinstance(came, Answer) else came)
        return asked_s + jitter_s

    def read(self, answer: Answer) -> T:
        """The result.

        Raises:
            ServiceError: the service refused, or this is no answer of the service.
        """
        if not 200 <= answer.status < 300:
            raise _refused(answer)
        try:
            return self._call.read(orjson.loads(answer.content))
        except (KeyError, TypeError, ValueError) as error:
            where = f"{self._call.method} {self._service.url}"
            raise ServiceError(answer.status, "bad_answer", f"{where}: not an answer of this service") from error

    def _no_answer(self, error: httpx.RequestError) -> ServiceError:
        where = f"{self._call.method} {self._service.url}"
        if isinstance(error, httpx.TimeoutException):
            return ServiceError(None, "deadline", f"{where}: no answer within {self._service.deadline_s:g} s")
        tried = f" (try {self._sent} of {self._tries})"
        return ServiceError(None, "no_connection", f"{where}: {error or type(error).__name__}{tried}")


class _Left(dict[str, float]):
    """The timeouts of a request: for connecting, sending and reading alike what is left of the call at that moment.

    httpx would give each of them the time that was left at first, so that together they could take several times it.
    """

    def __init__(self, trial: Trial[Any]) -> None:
        super().__init__()
        self._trial = trial

    def get(self, key: str, default: Any = None) -> Any:
        return max(LEAST_WAIT_S, self._trial.left_s())


def not_ready(error: ServiceError) -> bool:
    """False, where an error says no more than that nobody answers queries there now; any other one is raised."""
    if error.status is None or error.status in TRY_AGAIN:
        return False
    raise error


def _refused(answer: Answer) -> ServiceError:
    try:
        told = orjson.loads(answer.content)["error"]
        return ServiceError(answer.status, str(told["code"]), str(told["message"]), told["field"])
    except (KeyError, TypeError, ValueError):
        return ServiceError(answer.status, "http_error", "the answer is not an error of this service")


def _seconds(retry_after: str | None) -> float:
    """Of a Retry-After header: seconds, or a date (RFC 9110, 10.2.3); 0 where it is neither."""
    if retry_after is None:
        return 0.0
    if retry_after.strip().isdecimal():
        return float(retry_after)
    try:
        return max(0.0, (parsedate_to_datetime(retry_after) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):
        return 0.0
