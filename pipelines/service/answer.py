"""Asks a running service for `towers query`; a failure becomes one line that says why and what to do.

The key, if any, comes from TOWERS_API_KEY.
"""

import os
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.request import getproxies

import httpx

from pipelines.console import is_text
from pipelines.errors import DataError
from serving.catalogue.item_columns import title_name
from serving.client.address import without_secrets
from serving.client.retries import KEY as FITS_HEADER
from serving.client.retries import fault_of

TIMEOUT_S = 30.0
KEY = "TOWERS_API_KEY"


@dataclass(frozen=True)
class Answer:
    """A user's items.

    Attributes:
        items: (id, score), best first.
        source: how they were found.
        titles: each item's title, None for items without one; None as a whole if the bundle has no titles.
    """

    items: list[tuple[str, float]]
    source: str
    titles: list[Any] | None = None


def ask(url: str, user: str, k: int, *, titled: bool = True) -> Answer:
    """Asks a service for a user's items.

    Args:
        url: the service's address, with or without `/recall`.
        user: the user's id.
        k: number of items.
        titled: also request the items' titles, if the service's bundle has a column of them.

    Raises:
        DataError: the address or the user is invalid, the key fits no header or stands beside a password, a proxy
            cannot be used, or there is no valid answer; names the address or the argument and the reason.
    """
    if fault := fault_of(url):
        raise DataError(f"--url {without_secrets(url)}: {fault}")
    if not is_text(user):
        raise DataError(f"--user {user!r}: not UTF-8, which a request is written in")
    refuse_unusable_proxies()
    key = os.environ.get(KEY)
    if key and not FITS_HEADER.fullmatch(key):  # httpx would tell it in its own error
        raise DataError(f"{KEY}: must be printable ASCII without spaces")
    base = url.rstrip("/").removesuffix("/recall")
    address = f"{base}/recall"
    shown = without_secrets(address)
    if key and shown != address:
        raise DataError(f"{KEY}: {shown} has a user or a password, which is sent in its place; give one of them")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    body = {"user_id": user, "k": k}
    try:
        with httpx.Client(headers=headers, timeout=TIMEOUT_S) as client:
            column = _title_column(client, base) if titled else None
            response = client.post(address, json=body if column is None else {**body, "attributes": [column]})
            if column is not None and _error(response).get("field") == "attributes":
                # A canary bundle may answer this user and lack the column that the OpenAPI document names.
                column, response = None, client.post(address, json=body)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise DataError(f"{shown}: {reason(error, shown)}") from None
    if not response.is_success:
        raise DataError(_refusal(shown, response))
    try:
        found = response.json()
        items = [(str(item["id"]), float(item["score"])) for item in found["items"]]
        titles = None if column is None else [item["attributes"][column] for item in found["items"]]
        return Answer(items, found["source"], titles)
    except (ValueError, KeyError, TypeError):
        raise DataError(_stranger(shown, response)) from None


def _title_column(client: httpx.Client, base: str) -> str | None:
    """Returns the title column that the service's OpenAPI document names; None without a column or a document."""
    response = client.get(f"{base}/openapi.json")
    try:
        body = response.json()["components"]["schemas"]["RecallRequest"]["properties"]
        return title_name(body["attributes"]["items"]["enum"])
    except (ValueError, KeyError, TypeError):
        return None


def _error(response: httpx.Response) -> dict[str, Any]:
    """Returns the error in this service's response; empty for a success and for other programs' responses."""
    try:
        error = response.json()["error"]
        return error if isinstance(error["message"], str) else {}
    except (ValueError, KeyError, TypeError):
        return {}


def _refusal(address: str, response: httpx.Response) -> str:
    error = _error(response)
    if not error:
        return _stranger(address, response)
    message = str(error["message"])
    if error.get("field") == "k":
        return f"--k {message.removeprefix('k: ')}: the limit of the service at {address}"
    if response.status_code == 401:
        return f"{address}: {message}; the variable {KEY} gives the key to `towers query`"
    return f"{address}: {message}"


def _stranger(address: str, response: httpx.Response) -> str:
    told = f"the server there (status {response.status_code}) is not `towers serve`"
    return f"{address}: {told}; give --url the address that it listens on{_past_proxy(address)}"


def refuse_unusable_proxies() -> None:
    """Raises DataError if the environment names a proxy that no client can be made for."""
    try:
        httpx.Client().close()
    except (ValueError, ImportError, httpx.InvalidURL) as error:
        told = "ALL_PROXY, HTTP_PROXY, HTTPS_PROXY or an entry of no_proxy cannot be used"
        # Of an invalid address the reason may quote a part of the password.
        why = "no valid address" if isinstance(error, httpx.InvalidURL) else str(error).rstrip(".")
        raise DataError(f"{told}: {why}; unset the variable for this command") from None


def _past_proxy(address: str) -> str:
    """What to do if a proxy of the environment stands between: the failure may then be the proxy's; else nothing."""
    url, proxies = httpx.URL(address), getproxies()
    direct = [each for each in map(str.strip, proxies.get("no", "").split(",")) if each]
    if not {url.scheme, "all"} & proxies.keys() or {url.host, "*"} & {*direct}:
        return ""
    past = f"no_proxy={','.join([*direct, url.host])}"  # in small letters, which win over NO_PROXY
    return f"; the environment names a proxy: if the request goes through it, the failure is its own; {past} avoids it"


def reason(error: httpx.HTTPError | httpx.InvalidURL, address: str) -> str:
    """Explains why `address` gives no answer, and what to do about it."""
    if isinstance(error, httpx.UnsupportedProtocol | httpx.InvalidURL):
        return "not the address of a service; --url takes one like http://127.0.0.1:8000"
    return _cause(error, address) + _past_proxy(address)


def _cause(error: httpx.HTTPError, address: str) -> str:
    causes = list(_causes(error))
    if isinstance(error, httpx.TimeoutException):
        return f"no answer within {TIMEOUT_S:g} s; is the host right, and the service not overloaded?"
    if any(isinstance(cause, ConnectionRefusedError) for cause in causes):
        url, nobody = httpx.URL(address), "nothing answers there (connection refused)"
        if url.scheme == "https":
            return f"{nobody}; is the proxy that speaks HTTPS up?"
        start = f"start the service with `towers serve --bundle BUNDLE --port {url.port or 80}`"
        return f"{nobody}; {start}, or give --url its address"
    if any(isinstance(cause, socket.gaierror) for cause in causes):
        return f"no host of the name {httpx.URL(address).host!r} is known; check --url"
    if any(isinstance(cause, ssl.SSLError) for cause in causes):
        return f"no HTTPS there ({error}); `towers serve` itself speaks plain HTTP: give --url an address with http://"
    if isinstance(error, httpx.RemoteProtocolError):
        return f"the server there does not speak HTTP, or closed the connection ({error}); check the port in --url"
    system = next((cause for cause in causes if isinstance(cause, OSError) and cause.strerror), None)
    return f"no answer: {error if system is None else system.strerror}"


def _causes(error: BaseException) -> Iterator[BaseException]:
    at: BaseException | None = error
    while at is not None:
        yield at
        at = at.__cause__ or at.__context__
