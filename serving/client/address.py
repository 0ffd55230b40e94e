"""How messages show an address: without what may be secret in it."""

import re

QUERY = "?***"  # in place of an http address's query, which may hold a signature
# An "@" of its query is none before a host.
CHAIN = r"(?:[\w.+-]+(?:://[^:]*)?::)*https?://"  # as fsspec's: `simplecache::https://…`, `zip://a.csv::https://…`
NO_USER = re.compile(rf"({CHAIN}[^/?#:@]+(?::\d+)?/[^?]*)\?.*", re.DOTALL | re.IGNORECASE)
HTTP = re.compile(rf"^({CHAIN}[^?]*)\?.+", re.DOTALL | re.IGNORECASE)


def without_secrets(address: str) -> str:
    """Returns an address with ``***`` for user and password, ``https://***@host``, and `QUERY` for the query of an http
    one; also one that cannot be parsed."""
    if plain := NO_USER.fullmatch(address):
        return plain[1] + QUERY
    shown = re.sub(r"^(\w[\w+.-]*://)?.*@", r"\1***@", address, flags=re.DOTALL)
    return HTTP.sub(rf"\1{QUERY}", shown)
