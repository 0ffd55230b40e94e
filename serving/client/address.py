"""How messages show an address: without the password that may be in it."""

import re


def without_password(address: str) -> str:
    """Returns an address with ``***`` for user and password, ``https://***@host``; also one that cannot be parsed."""
    return re.sub(r"^(\w[\w+.-]*://)?.*@", r"\1***@", address, flags=re.DOTALL)
