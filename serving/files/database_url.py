"""The address of a PostgreSQL database, which may hold a password: what is shown of it never does."""

import re
from pathlib import Path

# A port is at most five digits: where `@` was left out, another password would pass for one, and be shown.
HOST = r"(?:\[[^\[\]/?#@\s]*\]|[^\[\]:,/?#@\s]*)(?::\d{0,5})?"
FORM = re.compile(
    r"(?P<scheme>postgres(?:ql)?://)"
    r"(?:(?P<user>[^:/?#@\s]*)(?::[^:/?#@\s]*)?@)?"
    rf"(?P<place>{HOST}(?:,{HOST})*(?:/[^?#@\s]*)?)"
    r"(?:\?[^?#@\s]*)?"
)
# Also a mistyped one, and libpq's other form, `host=h password=p`: as a directory it would keep the password in its
# name, and the changes nowhere.
URL = re.compile(
    r"\s*(postgres[\w+]*:|[a-z][\w+.-]+://)|(?:.*\s)?(?:host|hostaddr|port|dbname|user|password|passfile|service)\s*=",
    re.IGNORECASE | re.DOTALL,
)


class DatabaseUrl:
    """A URL as libpq reads it: `postgresql://user:password@host:port/database?option=value`.

    Its text has neither the password nor the options, which may hold another one.

    Attributes:
        secret: the whole URL.
    """

    def __init__(self, secret: str) -> None:
        """Refuses a URL of which a part of the password could pass for something else.

        Raises:
            ValueError: it is none; the message has no part of it.
        """
        parts = FORM.fullmatch(secret)
        if parts is None:
            raise ValueError(
                "the database's URL is not like postgresql://user:password@host:5432/database; "
                "in a password write @ : / ? # and spaces as %40 %3A %2F %3F %23 %20"
            )
        self.secret = secret
        self._shown = f"{parts['scheme']}{parts['user'] + '@' if parts['user'] else ''}{parts['place']}"

    def __str__(self) -> str:
        return self._shown

    def __repr__(self) -> str:
        return f"DatabaseUrl({self._shown!r})"


def is_database_url(text: object) -> bool:
    """Whether a text is a URL, and so no directory; which ones are of a database, `DatabaseUrl` knows."""
    return isinstance(text, str) and URL.match(text) is not None


def state_place(text: object) -> object:
    """What `--state` names: a `DatabaseUrl`, or else a directory; anything but a text stays as it is.

    Raises:
        ValueError: it begins like a URL and is not that of a database.
    """
    if not isinstance(text, str):
        return text
    return DatabaseUrl(text) if is_database_url(text) else Path(text)
