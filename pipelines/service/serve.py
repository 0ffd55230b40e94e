"""`towers serve`: runs the HTTP service over a bundle until SIGTERM or Ctrl-C, in one process or several.

Settings come from the options, TOWERS_ variables and a TOML file.
"""

import difflib
import errno
import logging
import logging.config
import os
import resource
import socket
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from pydantic import ValidationError

from pipelines.console import say
from pipelines.errors import DataError
from pipelines.service.server import Server, serve_alone
from pipelines.service.sigterm import sigterm_ends
from pipelines.service.state import telling
from pipelines.service.whole_responses import PROTOCOLS, queue
from pipelines.service.workers import Workers
from serving.bundle.reader import Bundle
from serving.bundle.versions import bundle_root
from serving.catalogue.journal_place import journal_at
from serving.client.address import without_secrets
from serving.errors import BundleError
from serving.files.database_url import is_database_url
from serving.http.api_keys import KeysError, read_keys
from serving.http.app import create_app  # Imported first: it sets what NumPy reads at import.
from serving.service.mirror import Mirror
from serving.settings import ENDED, PREFIX, Settings, file_content, named_file
from serving.telemetry.logs import SERVICE, log_config
from serving.telemetry.metric_files import METRICS, give_back, shared_metrics

log = logging.getLogger(SERVICE)

OPEN_FILES = 16_384  # for connections and the files of bundles
OTHER_VARIABLES = {"TOWERS_DEBUG", "TOWERS_DATA", "TOWERS_API_KEY"}  # not settings of this command
SECURE_HOSTS = ("localhost", "127.", "::1")


def run(**given: Any) -> None:
    """Serves until stopped.

    Args:
        given: settings by name, see `Settings`. Those that are None or missing come from the environment, the settings
            file, or the defaults.

    Raises:
        BundleError: the bundle is damaged.
        DataError: a setting is invalid, the host and port cannot be listened on, or the service cannot start.
    """
    try:
        with sigterm_ends():
            settings, supervised, whole = _ready(given)
    except BaseException:
        give_back()
        raise
    server: dict[str, Any] = {
        "host": settings.host,
        "port": settings.port,
        "log_level": settings.log_level,
        "log_config": log_config(settings),
        "access_log": False,
        "http": PROTOCOLS[settings.http],
        "lifespan": "on",  # "auto" takes an error while the app is built for an app without a start
        "backlog": queue(),
        "ws": "none",  # So a websocket upgrade is a plain request and gets the usual error shape.
        "server_header": False,
        "proxy_headers": False,  # The callers' addresses are not used.
        "timeout_keep_alive": settings.keep_alive_s,
        "timeout_graceful_shutdown": settings.graceful_timeout_s,
        "factory": True,
    }
    if not supervised:
        serving = uvicorn.Config(partial(create_app, settings, verified=whole), **server)
        tell_risks(settings)
        serve_alone(Server(serving))
        return
    # The settings are passed on: a worker that starts later must not read a changed file.
    serving = uvicorn.Config(partial(create_app, settings), workers=settings.workers, **server)
    tell_risks(settings)
    with shared_metrics() as metrics:
        Workers(serving, [serving.bind_socket()], metrics).run()


def _ready(given: Mapping[str, Any]) -> tuple[Settings, bool, Path]:
    """The settings, whether a parent supervises the service, and the bundle that answers first, which is whole."""
    settings = read_settings(**{name: value for name, value in given.items() if value is not None})
    given_paths = {name: getattr(settings, name) for name in ("bundle", "cache", "state", "keys")}
    paths = {name: path.absolute() for name, path in given_paths.items() if isinstance(path, Path)}
    settings = settings.model_copy(update=paths)
    # A metrics directory also holds the files of earlier processes, which only a parent can remove. If the variable is
    # set, this process already has its own file there, so it needs a parent.
    supervised = settings.workers > 1 or METRICS in os.environ
    refuse_address(settings.host, settings.port, one=supervised)
    if settings.store is not None:
        if isinstance(settings.state, Path) and settings.state.resolve().is_relative_to(settings.folder.resolve()):
            raise DataError(f"--state {settings.state}: must be outside the directory of the copies, {settings.folder}")
        say(f"copies of {without_secrets(settings.store)} are in {settings.folder}")
        Mirror(settings.store, settings.folder, verify=settings.verify).follow_first(again=True)
    root = bundle_root(settings.folder)
    refuse_files(settings)
    whole = first_whole((settings.folder,) if root is None else root.plain(), settings)
    allow_open_files()
    return settings, supervised, whole


def first_whole(bundles: Sequence[Path], settings: Settings) -> Path:
    """The first of these bundles that is whole; the service tells why it is not the first of all.

    Raises:
        BundleError, OSError: none is; of the first.
    """
    errors = list[Exception]()
    for path in bundles:
        try:
            Bundle.open(path, verify=settings.verify)
        except (BundleError, OSError) as error:
            errors.append(error)
        else:
            return path
    raise errors[0]


def tell_risks(settings: Settings) -> None:
    """Warns of settings that admit anyone, and of variables that look like settings but are not."""
    if settings.keys is None and not settings.host.startswith(SECURE_HOSTS):
        log.warning(
            "anyone who can reach %s may read and change everything; --keys makes the service ask for API keys",
            settings.host,
        )
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields} | OTHER_VARIABLES
    for name in sorted(set(os.environ) - known):
        if name.startswith(PREFIX):
            ended = ENDED.get(name.removeprefix(PREFIX).lower())
            log.warning("%s is not a setting of this service%s", name, f" any more: {ended}" if ended else "")


def allow_open_files() -> None:
    """Raises the limit of open files to `OPEN_FILES`, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < OPEN_FILES:
        most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def refuse_files(settings: Settings) -> None:
    """Reads the file of keys and opens the journal once, because a worker would report an error only in its log.

    Raises:
        DataError: names the option, the path and the reason.
    """
    try:
        if settings.keys is not None:
            read_keys(settings.keys)
        if settings.state is not None:
            logging.config.dictConfig(log_config(settings))  # a new journal says so
            with telling("--state", settings.state):
                journal_at(settings.state).close()
    except KeysError as error:
        raise DataError(f"--keys {error}") from None


def refuse_address(host: str, port: int, *, one: bool = False) -> None:
    """Listens on an address for a moment: uvicorn would fail only after loading the bundle, and just log it.

    Args:
        host: the address.
        port: the port.
        one: whether the processes share one socket.

    Raises:
        DataError: names host, port and the system's reason.
    """
    # With one socket uvicorn binds the family that the host looks like; otherwise one socket per address.
    family_of_one = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        found = socket.getaddrinfo(
            host or None, port, family_of_one if one else 0, socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                tried = socket.socket(family, kind, protocol)
            except OSError:
                continue  # A machine without IPv6 still resolves such addresses; uvicorn skips them, too.
            with tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    tried.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                tried.bind(address)
    except (OSError, ValueError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else "not the name of a host"
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        advice = "; take another --port, or 0 for a free one" if taken else ""
        raise DataError(f"--host {host} --port {port}: cannot listen there: {reason}{advice}") from None


def read_settings(**given: Any) -> Settings:
    """Reads the settings from the arguments, then the environment and the settings file.

    Raises:
        DataError: names the option, variable or key, its value and the rule.
    """
    config = named_file(given)
    try:
        in_file = file_content(Path(config)) if config else {}
    except OSError as error:
        raise DataError(f"--config {config}: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"--config {config}: {error}") from None
    try:
        return Settings(**given)
    except ValidationError as error:
        # What is missing comes last: it may be below an unknown key, as after the header of a table.
        detail = min(error.errors(), key=lambda each: each["type"] == "missing")
        name = str(detail["loc"][0])
        variable = f"{PREFIX}{name.upper()}"
        if detail["type"] == "missing":
            raise DataError(f"{name}: give --{name}, {variable}, or {name} in the file of --config") from None
        where = variable
        if name in given:
            where = f"--{name}"
        elif variable not in os.environ and name in in_file:
            where = f"{config}: {name}"
        if detail["type"] == "extra_forbidden":
            if name in ENDED:
                raise DataError(f"{where}: no such setting any more: {ENDED[name]}") from None
            near = difflib.get_close_matches(name, Settings.model_fields, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            if isinstance(detail["input"], dict):
                hint = f"; a settings file has no tables such as [{name}]"
            raise DataError(f"{where}: no such setting{hint}") from None
        # The URL of a database may hold a password.
        got = "" if is_database_url(detail["input"]) else f", got {detail['input']!r}"
        raise DataError(f"{where}: {detail['msg'].removeprefix('Value error, ')}{got}") from None
