"""How messages show an address: without what may be secret in it."""

import re
from pathlib import Path

QUERY = "?***"  # in place of an http address's query, which may hold a signature
SCHEME = re.compile(r"(?:^|(?<=::))https?://", re.IGNORECASE)
# What follows the scheme: a host and a path, whose "@" is none before a host if a query follows; or, after a user, the
# first that can be a host and a path. Each with a query or without.
PLACE = r"([^/?#@:]+(?::\d+)?(?:/[^?]*)?)"
NO_USER = re.compile(rf"{PLACE}\?.+", re.DOTALL)
USER = re.compile(rf".*?@{PLACE}(\?(?P<query>.*))?", re.DOTALL)


def shown_place(place: Path | str) -> str:
    """A path as it is, or a URL `without_secrets`."""
    text = str(place)
    return without_secrets(text) if "://" in text else text


def without_secrets(address: str) -> str:
    """Returns an address with ``***`` for user and password, ``https://***@host``, and `QUERY` for the query of an http
    one, also in a chain of fsspec's (``simplecache::https://…``); also one that cannot be parsed."""
    schemes = [each for each in SCHEME.finditer(address) if "?" not in address[: each.start()]]  # none of a query
    if schemes:
        begin = schemes[-1].end()
        if plain := NO_USER.fullmatch(address, begin):
            return address[:begin] + plain[1] + QUERY
        if named := USER.fullmatch(address, begin):
            return f"{address[:begin]}***@{named[1]}{QUERY if named['query'] else named[2] or ''}"
    shown = re.sub(r"^(\w[\w+.-]*://)?.*@", r"\1***@", address, flags=re.DOTALL)
    place, _, query = shown.partition("?")
    return place + QUERY if schemes and query else shown
