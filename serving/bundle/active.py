"""`active.json` of a root of bundles: the active bundle, the previous ones, the canary."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from serving.errors import BundleError

ACTIVE = "active.json"
REMEMBERED = 20
# In bytes: with what copies on their way add, below the 255 that file systems allow.
LONGEST_NAME = 200
State = Literal["active", "previous", "canary", ""]


def checked_name(name: str) -> str:
    """Returns the name of a bundle if it is valid.

    Raises:
        ValueError: it is not the plain name of a directory, or starts with a dot, like unfinished output.
    """
    plain = name.isprintable() and not set(name) & {"/", "\\"} and len(name.encode(errors="replace")) <= LONGEST_NAME
    if not name or name.startswith(".") or not plain:
        raise ValueError(
            f"{name[:LONGEST_NAME]!r} cannot name a bundle: that is the plain name of a directory in the root, of at "
            f"most {LONGEST_NAME} bytes, no path, without a dot in front"
        )
    return name


def is_name(name: str) -> bool:
    """Whether a bundle can have this name."""
    try:
        return bool(checked_name(name))
    except ValueError:
        return False


Name = Annotated[str, AfterValidator(checked_name)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Canary(_Record):
    """A second bundle beside the active one, for a share of the users in (0, 1]."""

    bundle: Name
    share: float = Field(gt=0, le=1)


class Active(_Record):
    """Content of `active.json`: the active bundle, the ones before it (newest first), and the canary."""

    active: Name
    previous: tuple[Name, ...] = Field((), max_length=REMEMBERED)
    canary: Canary | None = None

    @model_validator(mode="after")
    def _canary_is_another(self) -> "Active":
        if self.canary is not None and self.canary.bundle == self.active:
            raise ValueError(f"{self.active} is the active bundle; a canary is another one")
        return self

    def canary_beside(self, name: str) -> Canary | None:
        """The canary, unless it is this bundle, which becomes the active one."""
        return None if self.canary is not None and self.canary.bundle == name else self.canary


def parsed_active(content: bytes, place: str) -> Active:
    """Parses `active.json`.

    Args:
        content: of the file.
        place: its path or URL, for the error.

    Raises:
        BundleError: it is not JSON, or a key is missing, unknown or invalid.
    """
    try:
        return Active.model_validate_json(content)
    except ValidationError as error:
        detail = error.errors(include_input=False)[0]
        where = ".".join(str(part) for part in detail["loc"])
        raise BundleError(
            f"{place}: damaged: {f'{where}: ' if where else ''}{detail['msg']}; remove it and activate a bundle"
        ) from None


@dataclass(frozen=True)
class VersionInfo:
    """One bundle of a root.

    Attributes:
        name: name of its directory.
        model_version: from its manifest; None if that cannot be read, like the next two.
        created_at: when it was exported.
        items: number of items in its catalogue.
        state: its state in `active.json`.
        problem: why its manifest cannot be read, or None.
    """

    name: str
    model_version: str | None
    created_at: datetime | None
    items: int | None
    state: State
    problem: str | None
