"""Errors of `serving` that a caller or an operator causes; the messages are written for them."""

from collections.abc import Collection


class BundleError(Exception):
    """A bundle is missing, truncated, altered or of another version. The message names the path and the reason."""


class RequestError(Exception):
    """A recall request cannot be answered as sent.

    Args:
        message: what was sent and what is allowed, safe to show to the caller.
        code: the machine-readable error code, for example ``"invalid_request"``.
        field: the request field at fault, or None if it is not a single field.
    """

    def __init__(self, message: str, *, code: str = "invalid_request", field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.field = field

    @classmethod
    def at(cls, field: str, rule: str, *, code: str = "invalid_request") -> "RequestError":
        """The error of a field that breaks a rule."""
        return cls(f"{field}: {rule}", code=code, field=field)

    def inside(self, place: str) -> None:
        """Prefixes the field at fault with its place in the request, such as "queries.3."."""
        self.message = f"{place}{self.message}"
        self.args = (self.message,)
        self.field = None if self.field is None else f"{place}{self.field}"


def refuse_unknown_column(name: str, columns: Collection[str], field: str) -> None:
    """Rejects a column that the bundle does not have.

    Args:
        name: the column's name.
        columns: the existing columns.
        field: the request field that holds the name.

    Raises:
        RequestError: names the column and the existing ones.
    """
    if name not in columns:
        raise RequestError.at(field, f"no such column {name!r}; there are {', '.join(sorted(columns)) or 'none'}")
