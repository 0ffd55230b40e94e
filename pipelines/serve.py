"""`towers serve`: the HTTP service over a bundle, one process or several, stopped gracefully by SIGTERM or Ctrl-C.

In: BUNDLE, host, port, workers; further settings from TOWERS_ variables. Out: a service, until it is stopped.
"""

import os
from pathlib import Path
from typing import Any

import uvicorn
from pydantic import ValidationError

from pipelines.errors import DataError
from serving.app import create_app  # First: it sets what NumPy reads when it is loaded.
from serving.bundle import Bundle
from serving.settings import Settings


def run(bundle: Path, host: str = "127.0.0.1", port: int = 8000, workers: int = 1) -> None:
    """Serves until stopped.

    Args:
        bundle: the bundle directory.
        host: address to listen on.
        port: port to listen on, 0 for a free one.
        workers: processes; each opens the bundle, and all share its vectors through the page cache.

    Raises:
        BundleError: the bundle is not whole.
        DataError: a TOWERS_ variable has a wrong value.
    """
    settings = read_settings(bundle=bundle.absolute(), host=host, port=port, workers=workers)
    # Here, not in a worker: a worker that fails at its start would be started again and again.
    Bundle.open(settings.bundle, verify=settings.verify)
    server: dict[str, Any] = {
        "host": host,
        "port": port,
        "log_level": settings.log_level,
        "access_log": False,
        "timeout_graceful_shutdown": settings.graceful_timeout_s,
    }
    if workers == 1:
        # This process has just verified the bundle.
        uvicorn.run(create_app(settings.model_copy(update={"verify": False})), **server)
        return
    os.environ["TOWERS_BUNDLE"] = str(settings.bundle)
    uvicorn.run("serving.app:create_app", factory=True, workers=workers, **server)


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
