"""The retry rules of both clients: what to send, how long to pause, when to give up. Sends nothing itself."""

import json
import math
import random
import re
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Generic, NamedTuple, TypeVar

import httpx
import orjson

from serving.client.address import without_secrets
from serving.client.calls import Call, ServiceError

# The pause before try n + 1 is random, up to FIRST_PAUSE_S * 2^(n - 1) ("full jitter"): callers that failed together
# spread out. Brooker, "Exponential backoff and jitter", AWS Architecture Blog 2015.
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0
MOST_DOUBLINGS = 16  # the longest pause comes earlier; after a thousand tries 2^n would be no float
# Busy, starting, stopping, or a proxy could not reach it. Any other error would only repeat.
TRY_AGAIN = frozenset({429, 502, 503, 504})
LOST = (httpx.NetworkError, httpx.RemoteProtocolError, httpx.ProxyError)
KEY = re.compile(r"[!-~]+")
BAD_ANSWER = "bad_answer"  # a success that cannot be read
MOST_PORT = 65_535
LONGEST_CALL_S = 2e6  # 23 days: a socket's wait is at most 2^31 ms, and wraps
LEAST_WAIT_S = 0.001  # a socket takes 0 as "do not wait", and fails with an error other than a timeout

T = TypeVar("T")


class Answer(NamedTuple):
    """A complete HTTP answer."""

    status: int
    retry_after: str | None
    content: bytes
    request_id: str = ""

    @classmethod
    def of(cls, response: httpx.Response, content: bytes) -> "Answer":
        """Puts it together from a response and all of its body."""
        headers = response.headers
        return cls(response.status_code, headers.get("retry-after"), content, headers.get("x-request-id", ""))


@dataclass(frozen=True)
class Service:
    """Where the service is, and how long a call may take.

    Args:
        url: its address, for example "http://127.0.0.1:8000".
        deadline_s: seconds for one call, over all its tries and the pauses between them.
        tries: the most times that one call is sent.
        api_key: the caller's key; None sends none.

    Raises:
        ValueError: the address or the key is invalid, or a limit allows no try.
    """

    url: str = field(repr=False)  # it may hold a password
    deadline_s: float
    tries: int
    api_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if fault := fault_of(self.url):
            raise ValueError(f"url: {self.address!r}: {fault}")
        try:
            parsed = httpx.URL(self.url)
        except httpx.InvalidURL as error:
            # The reason may quote a part of the password.
            reason = error if self.address == self.url else "not a valid address"
            raise ValueError(f"url: {self.address!r}: {reason}") from None
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ValueError(f"url: must be like http://127.0.0.1:8000, got {self.address!r}")
        if not 0 < self.deadline_s < math.inf:
            raise ValueError(f"deadline_s: must be above 0 and finite, got {self.deadline_s}")
        if self.tries < 1:
            raise ValueError(f"tries: must be at least 1, got {self.tries}")
        if self.api_key is not None and not KEY.fullmatch(self.api_key):
            raise ValueError("api_key: must be printable ASCII without spaces")
        if self.api_key is not None and parsed.userinfo:
            raise ValueError(
                "api_key: the address has a user or a password, which is sent in its place; give one of them"
            )

    @property
    def address(self) -> str:
        """The address for people, without a password."""
        return without_secrets(self.url)


def fault_of(url: str) -> str | None:
    """Returns what is wrong with an address that httpx takes, but fails at later or sends elsewhere; else None."""
    try:
        parsed = httpx.URL(url)
        parsed.raw_host.decode("ascii").encode("idna")  # as the look-up of the host does
    except httpx.InvalidURL:
        return None
    except UnicodeError:
        return "not a valid address"
    if not set(url).isdisjoint("?#"):
        return "must hold no ? and no #: the path of each call comes at its end"
    if parsed.port is not None and not 0 <= parsed.port <= MOST_PORT:
        return f"the port must be from 0 to {MOST_PORT}"  # a socket would take the port modulo 65,536
    return None


class Trial(Generic[T]):
    """One call, from the first try to the result; its deadline starts here.

    Raises:
        ValueError: the path is too long, as with an id of tens of thousands of characters, or the body is not JSON.
    """

    def __init__(self, service: Service, call: Call[T]) -> None:
        self._service, self._call = service, call
        self._until = time.monotonic() + min(service.deadline_s, LONGEST_CALL_S)
        self._sent, self._tries = 0, 1 if call.once else service.tries
        # No NaN, which is not JSON.
        body = None if call.body is None else json.dumps(call.body, ensure_ascii=False, allow_nan=False).encode()
        try:
            url = httpx.URL(service.url.rstrip("/") + call.path)
        except httpx.InvalidURL as error:
            raise ValueError(f"{call.method} {service.address}: {error}") from None
        self._request = {
            "method": call.method,
            "url": url,
            "content": body,
            "headers": ({} if body is None else {"content-type": "application/json"})
            | ({} if service.api_key is None else {"authorization": f"Bearer {service.api_key}"}),
            "extensions": {"timeout": _Left(self)},
        }

    def left_s(self) -> float:
        """Seconds until the deadline."""
        return self._until - time.monotonic()

    def request(self) -> dict[str, Any]:
        """The arguments of httpx's `stream` for the next try."""
        self._sent += 1
        return self._request

    def check_time(self) -> None:
        """Stops an answer that arrives in slow pieces, each within its own timeout.

        Raises:
            httpx.ReadTimeout: the deadline has passed.
        """
        if self.left_s() <= 0:
            raise httpx.ReadTimeout("the answer was still coming")

    def pause_s(self, came: Answer | httpx.RequestError) -> float:
        """Seconds until the next try, after a status in `TRY_AGAIN` or no answer.

        Raises:
            ServiceError: there is no next try.
        """
        if isinstance(came, Answer):
            error, asked_s = _refused(came), _seconds(came.retry_after)
        else:
            error, asked_s = self._no_answer(came), 0.0
            if not isinstance(came, LOST):
                raise error from came
        doublings = min(self._sent - 1, MOST_DOUBLINGS)
        jitter_s = random.uniform(0, min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**doublings))
        if self._sent >= self._tries or asked_s + jitter_s >= self.left_s():
            raise error from (None if isinstance(came, Answer) else came)
        return asked_s + jitter_s

    def read(self, answer: Answer) -> T:
        """The result.

        Raises:
            ServiceError: the service rejected the call, or the answer is not from this service.
        """
        if not 200 <= answer.status < 300:
            raise _refused(answer)
        try:
            return self._call.read(orjson.loads(answer.content) | {"request_id": answer.request_id})
        except (KeyError, TypeError, ValueError) as error:
            where = f"{self._call.method} {self._service.address}"
            raise ServiceError(answer.status, BAD_ANSWER, f"{where}: not an answer of this service") from error

    def _no_answer(self, error: httpx.RequestError) -> ServiceError:
        where = f"{self._call.method} {self._service.address}"
        if isinstance(error, httpx.TimeoutException) or self.left_s() <= 0:
            return ServiceError(None, "deadline", f"{where}: no answer within {self._service.deadline_s:g} s")
        if isinstance(error, httpx.DecodingError):
            return ServiceError(None, BAD_ANSWER, f"{where}: its answer cannot be unpacked: {error}")
        tried = f" (try {self._sent} of {self._tries})"
        return ServiceError(None, "no_connection", f"{where}: {error or type(error).__name__}{tried}")


class _Left(dict[str, float]):
    """The timeouts of a request: connecting, sending and reading each get the time left at that moment.

    With fixed timeouts each would get the time left at the start, so that together they could take several times that.
    """

    def __init__(self, trial: Trial[Any]) -> None:
        super().__init__()
        self._trial = trial

    def get(self, key: str, default: Any = None) -> Any:
        return max(LEAST_WAIT_S, self._trial.left_s())


def not_ready(error: ServiceError) -> bool:
    """Returns False if an error only means that nothing answers queries now; raises any other."""
    if (error.status is None and error.code != BAD_ANSWER) or error.status in TRY_AGAIN:
        return False
    raise error


def _refused(answer: Answer) -> ServiceError:
    try:
        told = orjson.loads(answer.content)["error"]
        return ServiceError(answer.status, str(told["code"]), str(told["message"]), told["field"])
    except (KeyError, TypeError, ValueError):
        return ServiceError(answer.status, "http_error", "the answer is not an error of this service")


def _seconds(retry_after: str | None) -> float:
    """The seconds of a Retry-After header, a number or a date (RFC 9110, 10.2.3); 0 if it is neither."""
    if retry_after is None:
        return 0.0
    if retry_after.strip().isdecimal():
        return float(retry_after)
    try:
        return max(0.0, (parsedate_to_datetime(retry_after) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError, OverflowError):
        return 0.0
