"""`towers look`: shows bundles in the browser, from a service of its own that only this machine reaches.

It is the service of `towers serve --window` without keys and live changes, on a free port; Ctrl-C ends it.
"""

import socket
import threading
import webbrowser
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from starlette.middleware.trustedhost import TrustedHostMiddleware

from pipelines.console import phases, say
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import heldout, refuse_no_targets
from pipelines.errors import DataError
from pipelines.rankers.ranker import refuse_other_data
from pipelines.service.server import Server, serve_alone
from pipelines.service.verify import VERIFY, verify
from serving.bundle.reader import Bundle
from serving.bundle.versions import bundle_root
from serving.http.app import create_app  # Imported first: it sets what NumPy reads at import.
from serving.recall.loading import load_libraries, open_recaller
from serving.settings import Settings
from serving.telemetry.logs import log_config
from serving.window.page import Beside
from serving.window.routes import PATH

HOST = "127.0.0.1"


def run(bundles: Sequence[Path], dataset: Path | None = None, *, browse: bool = True) -> None:
    """Shows one bundle or two, until stopped.

    Args:
        bundles: one or two bundles, or directories of bundles of which one is active.
        dataset: the data set they were trained on: its test events are marked in the answers.
        browse: open the page in the browser; its address is printed in any case.

    Raises:
        BundleError: a bundle is damaged, or was trained on another data set.
        DataError: more than two bundles, or the data set is damaged or has no test events.
    """
    if not 1 <= len(bundles) <= 2:
        raise DataError(f"--bundle: give one bundle, or two to compare them; got {len(bundles)}")
    paths = [_active(path).absolute() for path in bundles]
    phases("look", VERIFY)
    opened = verify(*paths)  # The service would only log what is wrong with the first.
    held_out = None if dataset is None else _held_out(dataset, opened)
    load_libraries()
    beside = Beside(open_recaller(paths[1], verify=False) if len(paths) > 1 else None, held_out)
    # Nothing from variables or a file, which are for the services of this machine; no log line for a slow page.
    settings = Settings.model_construct(
        bundle=paths[0], host=HOST, port=0, window=True, log_level="warning", slow_ms=60_000
    )
    config = uvicorn.Config(
        partial(_app, settings, beside),
        host=HOST,
        port=0,
        log_level=settings.log_level,
        log_config=log_config(settings),
        access_log=False,
        ws="none",
        lifespan="on",
        server_header=False,
        proxy_headers=False,
        factory=True,
    )
    with socket.create_server((HOST, 0)) as listener:
        address = f"http://{HOST}:{listener.getsockname()[1]}{PATH}"
        serve_alone(_Announced(config, address, browse=browse), [listener])


def _app(settings: Settings, beside: Beside) -> FastAPI:
    app = create_app(settings, verified=settings.folder, beside=beside)
    # A page elsewhere may name its own host, then let that name lead here.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])
    return app


class _Announced(Server):
    """Says where the page is once it can be asked, and opens it in the browser."""

    def __init__(self, config: uvicorn.Config, address: str, *, browse: bool) -> None:
        super().__init__(config)
        self._address, self._browse = address, browse

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See `uvicorn.Server`."""
        await super().startup(sockets)
        if self.started:
            say(f"{self._address} shows the bundle; Ctrl-C ends it")
        if self.started and self._browse:
            # Beside the server: a browser of the terminal would wait here for the page, and the page for the server.
            threading.Thread(target=webbrowser.open, args=(self._address,), daemon=True).start()


def _active(path: Path) -> Path:
    root = bundle_root(path)
    return path if root is None else root.path(root.read().active)


def _held_out(dataset: Path, bundles: Sequence[Bundle]) -> Callable[[str], Collection[str]]:
    """Returns what gives the items that a user took in the test."""
    data = Dataset.open(dataset)
    for bundle in bundles:
        refuse_other_data(bundle, data)
    refuse_no_targets(data)
    held = heldout(data, "test")
    places = dict(zip(data.users["user_id"].gather(held.users).to_list(), range(len(held.users)), strict=True))
    names = data.items["item_id"]

    def of_user(user_id: str) -> list[str]:
        if (place := places.get(user_id)) is None:
            return []
        taken = held.target_items[held.target_offsets[place] : held.target_offsets[place + 1]]
        return names.gather(taken).to_list()

    return of_user
