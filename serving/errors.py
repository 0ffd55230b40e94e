"""Errors of the serving side that a caller or an operator causes; their texts are written for them."""


class BundleError(Exception):
    """A bundle is missing, truncated, altered or of another version. The message names the path and the reason."""


class RequestError(Exception):
    """A recall request cannot be answered as it came.

    Args:
        message: what came and what is allowed, safe to show to the caller.
        code: the machine-readable name of the mistake, for example ``"invalid_request"``.
        field: the request field at fault, None where no single field is.
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
        """Puts a place in the request, such as "queries.3.", before the field at fault."""
        self.message = f"{place}{self.message}"
        self.args = (self.message,)
        self.field = None if self.field is None else f"{place}{self.field}"
