"""One process's service: the bundles that answer, the live changes in them, and the look at both every moment.

In: the settings. Out: a `Service`, from whose `pick` every request gets the bundle that answers it.
"""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

from serving.bundle import Bundle
from serving.generations import Generation, Generations
from serving.journal import Journal, JournalError
from serving.live import ItemEncoder, Live
from serving.opening import open_recaller
from serving.probe import probe
from serving.query import RecallQuery
from serving.recall import Recaller
from serving.settings import Settings

# A child of the server's own logger: its handlers, format and level, in every worker.
log = logging.getLogger("uvicorn.error.serving")

LOOK_S = 0.2  # changes by other workers and operators are visible within a second


class Service:
    """What the routes ask.

    Args:
        settings: where the bundles and the journal are.
        verified: a bundle whose checksums this process has just compared; it is not read twice.

    Raises:
        JournalError: the journal cannot be opened.
    """

    def __init__(self, settings: Settings, *, verified: Path | None = None) -> None:
        self.settings, self._verified = settings, verified
        self.journal = None if settings.state is None else Journal.open(settings.state)
        self.live = Live(self.journal, _item_encoder)
        self.generations: Generations[Recaller] = Generations(settings.bundle, self._open)

    def start(self) -> None:
        """Opens what answers.

        Raises:
            BundleError: the active bundle is refused.
        """
        self.generations.open_first()
        self._verified = None
        self._tell(self.generations.active)

    def stop(self) -> None:
        """Closes the journal."""
        if self.journal is not None:
            self.journal.close()

    def pick(self, user_id: str | None) -> Recaller:
        """What answers a user: the active bundle, or for the canary's share the canary."""
        return self.generations.pick(user_id).opened

    def reload(self) -> Mapping[str, str]:
        """Looks for another active bundle or canary, and exchanges them; why each bundle that was refused was."""
        if told := self.generations.check():
            log.info("%s", told)
        return self.generations.refused

    async def watch(self) -> None:
        """Takes in what other workers and operators change, until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await asyncio.to_thread(self.live.refresh)
                await asyncio.to_thread(self.reload)
            except JournalError as error:
                log.error("live changes cannot be read: %s", error)
            except Exception:
                log.exception("a look at the bundles or the journal failed")

    def _open(self, path: Path) -> Recaller:
        recaller = open_recaller(path, verify=self.settings.verify and path != self._verified, users=self.live.users)
        probe(recaller)
        for query in _warm_up_queries(recaller.bundle):
            recaller.recall(query)
        try:
            self.live.attach(recaller)
        except JournalError as error:
            # No fault of the bundle, which answers without them until the next look succeeds.
            log.error("live changes cannot be read: %s", error)
        return recaller

    def _tell(self, generation: Generation[Recaller]) -> None:
        manifest = generation.opened.bundle.manifest
        log.info(
            "%s: model %s, %d items, %d users",
            generation.opened.bundle.path,
            manifest.model_version,
            manifest.items,
            manifest.queries,
        )


def _item_encoder(bundle: Bundle) -> ItemEncoder:
    from serving.encoder import Encoder

    return Encoder.of_items(bundle)


def _warm_up_queries(bundle: Bundle) -> list[RecallQuery]:
    queries = [RecallQuery(), RecallQuery(history=[bundle.item_ids[0]])]
    if len(bundle.query_ids):
        queries.append(RecallQuery(user_id=bundle.query_ids[0]))
    return queries
