"""How messages show an address: without what may be secret in it."""

import re

QUERY = "?***"  # in place of an http address's query, which may hold a signature
# An "@" of its query is none before a host.
NO_USER = re.compile(r"(https?://[^/?#:@]+(?::\d+)?/[^?]*)\?.*", re.DOTALL)


def without_secrets(address: str) -> str:
    """Returns an address with ``***`` for user and password, ``https://***@host``, and `QUERY` for the query of an http
    one; also one that cannot be parsed."""
    if plain := NO_USER.fullmatch(address):
        return plain[1] + QUERY
    shown = re.sub(r"^(\w[\w+.-]*://)?.*@", r"\1***@", address, flags=re.DOTALL)
    return re.sub(r"^(https?://[^?]*)\?.+", rf"\1{QUERY}", shown, flags=re.DOTALL)
