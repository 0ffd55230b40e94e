"""`towers serve`: the HTTP service over a bundle, one process or several, stopped gracefully by SIGTERM or Ctrl-C.

In: BUNDLE, host, port, workers; further settings from TOWERS_ variables. Out: a service, until it is stopped.
"""

import errno
import os
import signal
import socket
from pathlib import Path
from typing import Any

import uvicorn
from pydantic import ValidationError
from uvicorn.supervisors import Multiprocess

from pipelines.errors import DataError
from serving.app import create_app  # First: it sets what NumPy reads when it is loaded.
from serving.bundle import Bundle
from serving.http_protocol import JsonErrorsProtocol
from serving.journal import Journal, JournalError
from serving.settings import Settings
from serving.versions import bundle_root


class Workers(Multiprocess):
    """uvicorn's workers; SIGHUP makes each look for another bundle, where uvicorn would end and start them all."""

    def handle_hup(self) -> None:
        """Passes the signal on."""
        for process in self.processes:
            if process.pid is not None:
                os.kill(process.pid, signal.SIGHUP)


def run(bundle: Path, host: str = "127.0.0.1", port: int = 8000, workers: int = 1, state: Path | None = None) -> None:
    """Serves until stopped.

    Args:
        bundle: a bundle, or a root of bundles of which one is active.
        host: address to listen on.
        port: port to listen on, 0 for a free one.
        workers: processes; each opens the bundle, and all share its vectors through the page cache.
        state: where live changes are kept; None takes none in.

    Raises:
        BundleError: the bundle is not whole.
        DataError: a TOWERS_ variable has a wrong value, or nothing can listen on that host and port.
    """
    kept = {} if state is None else {"state": state.absolute()}
    settings = read_settings(bundle=bundle.absolute(), host=host, port=port, workers=workers, **kept)
    refuse_address(host, port, workers)
    # Here, not in a worker, which would tell its reason in a log only.
    root = bundle_root(settings.bundle)
    active = settings.bundle if root is None else root.path(root.read().active)
    Bundle.open(active, verify=settings.verify)
    if settings.state is not None:
        refuse_state(settings.state)
    server: dict[str, Any] = {
        "host": host,
        "port": port,
        "log_level": settings.log_level,
        "access_log": False,
        "http": JsonErrorsProtocol,
        "ws": "none",  # A wish for a websocket is then plain HTTP, with its errors in the one shape.
        "timeout_graceful_shutdown": settings.graceful_timeout_s,
    }
    if workers == 1:
        uvicorn.run(create_app(settings, verified=active), **server)
        return
    os.environ["TOWERS_BUNDLE"] = str(settings.bundle)
    if settings.state is not None:
        os.environ["TOWERS_STATE"] = str(settings.state)
    config = uvicorn.Config("serving.app:create_app", factory=True, workers=workers, **server)
    Workers(config, sockets=[config.bind_socket()]).run()


def refuse_state(state: Path) -> None:
    """Opens the journal once: a worker would tell its reason in a log only.

    Raises:
        DataError: names path and reason.
    """
    try:
        Journal.open(state).close()
    except JournalError as error:
        raise DataError(f"--state {state}: {error}") from None


def refuse_address(host: str, port: int, workers: int = 1) -> None:
    """Listens on an address for a moment: uvicorn itself would find out after the bundle is loaded, and only log it.

    Raises:
        DataError: names host, port and the system's reason.
    """
    # With workers, uvicorn binds one socket, of the family that the host looks like; alone, one for each address.
    one = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        found = socket.getaddrinfo(
            host or None, port, one if workers > 1 else 0, socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                tried = socket.socket(family, kind, protocol)
            except OSError:
                continue  # A machine without IPv6 still knows such addresses; uvicorn skips them, too.
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
    """The settings from the arguments and, for the others, the environment.

    Raises:
        DataError: names the variable, what came and the rule.
    """
    try:
        return Settings(**given)
    except ValidationError as error:
        detail = error.errors()[0]
        name = str(detail["loc"][0])
        where = name if name in given else f"TOWERS_{name.upper()}"
        raise DataError(f"{where}: {detail['msg']}, got {detail['input']!r}") from None
