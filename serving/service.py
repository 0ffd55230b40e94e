"""One process's service: the bundles that answer, the live changes in them, and the look at both every moment.

In: the settings. Out: a `Service`, from whose `pick` every request gets the bundle that answers it; its metrics.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from anyio import CapacityLimiter

from serving import metrics
from serving.batching import Batcher
from serving.gathered import unmeasured
from serving.generations import Generations
from serving.index import ExactIndex
from serving.index_watch import Watched, found
from serving.journal import Journal, JournalError
from serving.live import Live
from serving.logs import SERVER
from serving.opening import load_libraries, missing_index, open_recaller
from serving.pace import at_once, beside_answers
from serving.probe import open_item_encoder, probe
from serving.recall import Recaller
from serving.settings import Settings

log = logging.getLogger(f"{SERVER}.serving")

LOOK_S = 0.2  # changes by other workers and operators are visible within a second
TELL_S = 1  # who was turned away is told in one line for so long, however many they were
WRITERS = 4  # writes at a time; the journal takes them one by one in any case


class Service:
    """What the routes ask.

    Attributes:
        batcher: answers recalls together.
        writers: what writes wait for, so that they cannot use up the threads that recalls need.

    Args:
        settings: where the bundles and the journal are.
        verified: a bundle whose checksums this process has just compared; it is not read twice.

    Raises:
        JournalError: the journal cannot be opened.
    """

    def __init__(self, settings: Settings, *, verified: Path | None = None) -> None:
        self.settings, self._verified = settings, verified
        self.journal = None if settings.state is None else Journal.open(settings.state)
        self.live = Live(self.journal, open_item_encoder)
        self.generations: Generations[Recaller] = Generations(settings.bundle, self._open)
        self.batcher = Batcher(settings.max_microbatch)
        self.writers = CapacityLimiter(WRITERS)
        self._started = False
        # One thread of its own: while a bundle opens, whoever asks for another look waits in no other's place.
        self._reloads = ThreadPoolExecutor(1, "reload")
        self._samples = ThreadPoolExecutor(1, "index-recall")

    def start(self) -> None:
        """Opens what answers.

        Raises:
            BundleError: the active bundle is refused.
        """
        load_libraries()
        self.generations.open_first()
        self._verified, self._started = None, True
        bundle = self.generations.active.opened.bundle
        told = bundle.manifest
        log.info("%s: model %s, %d items, %d users", bundle.path, told.model_version, told.items, told.queries)
        metrics.started()
        self._measure()

    def stop(self) -> None:
        """Waits for the last look, and closes the journal."""
        self.batcher.close()
        self._reloads.shutdown(cancel_futures=True)
        self._samples.shutdown(cancel_futures=True)
        metrics.stopped()
        if self.journal is not None:
            self.journal.close()

    def pick(self, user_id: str | None) -> Recaller:
        """What answers a user: the active bundle, or for the canary's share the canary."""
        return self.generations.pick(user_id).opened

    def reload(self) -> Future[Mapping[str, str]]:
        """Looks for another active bundle or canary, and exchanges them; after the looks that were asked for before.

        Returns:
            Why each bundle that should answer does not, for callers: without the place of the bundles on this machine,
            and of an exception that nobody foresaw only the type. The log has it all.
        """
        return self._reloads.submit(self._reload)

    async def watch(self) -> None:
        """Takes in what other workers and operators change, until it is cancelled."""
        # Apart: to open a bundle takes seconds, and changes by other workers are promised within one.
        async with asyncio.TaskGroup() as looks:
            looks.create_task(_repeat(lambda: asyncio.to_thread(self.live.refresh)))
            looks.create_task(_repeat(lambda: asyncio.wrap_future(self.reload())))
            # These two are short, and in the event loop itself: a thread would be waited for longer.
            looks.create_task(_repeat(self._measure))
            looks.create_task(_repeat(_tell_refusals, TELL_S))
            if every := self.settings.index_sample_s:
                sampling = asyncio.get_running_loop().run_in_executor
                looks.create_task(_repeat(lambda: sampling(self._samples, self._sample_index), every))

    def _measure(self) -> None:
        """Writes what was measured, and what answers now."""
        metrics.answering(
            [
                metrics.Answering(role, each.name, each.opened.bundle.manifest.model_version)
                for role, each in self.generations.answering.items()
            ]
        )
        metrics.bundles_refused(len(self.generations.refused))
        view = self.generations.active.opened.catalogue.live.view
        metrics.live(len(view.living), len(view.buried), self.live.users.count)
        metrics.flush()

    def _sample_index(self) -> None:
        for generation in self.generations.answering.values():
            recaller = generation.opened
            if isinstance(recaller.index, Watched) and (sample := recaller.index.take()) is not None:
                wanted, right = found(sample, recaller.exact)
                metrics.index_sampled(recaller.bundle.manifest.model_version, wanted, right)

    def _reload(self) -> Mapping[str, str]:
        if told := self.generations.check():
            log.info("%s", told)
        refused = self.generations.refused_in_short
        return {name: _without_place(reason, self.settings.bundle) for name, reason in refused.items()}

    def _open(self, path: Path) -> Recaller:
        # At the start nobody waits for answers yet.
        rest = beside_answers() if self._started else at_once
        verify = self.settings.verify and path != self._verified
        recaller = open_recaller(path, verify=verify, users=self.live.users, rest=rest)
        if self.journal is not None:
            self.live.encoder(recaller.bundle)
            rest()
        with unmeasured():
            probe(recaller, rest)
        if warning := missing_index(recaller.bundle):
            log.warning("%s", warning)
        if self.settings.index_sample_s and not isinstance(recaller.index, ExactIndex):
            recaller.catalogue.index = Watched(recaller.index)
        try:
            self.live.attach(recaller)
        except JournalError as error:
            # No fault of the bundle, which answers without them until the next look succeeds.
            log.error("live changes cannot be read: %s", error)
        return recaller


async def _repeat(look: Callable[[], Awaitable[object] | None], every_s: float = LOOK_S) -> None:
    """Looks every moment, and waits for the look where it takes time, whatever it raises, until it is cancelled."""
    while True:
        await asyncio.sleep(every_s)
        try:
            if (looking := look()) is not None:
                await looking
        except JournalError as error:
            log.error("live changes cannot be read: %s", error)
        except Exception:
            log.exception("a look at the bundles or the journal failed")


def _tell_refusals() -> None:
    for reason, count in metrics.refusals().items():
        log.warning("turned away %d: %s", count, reason, extra={"fields": {"reason": reason, "count": count}})


def _without_place(reason: str, bundle: Path) -> str:
    """A reason without the directories in which the bundles lie: they are the operator's."""
    for path in dict.fromkeys((bundle.absolute(), bundle.resolve())):
        reason = reason.replace(f"{path}/", "").replace(str(path), path.name)
    for parent in (bundle.absolute().parent, bundle.resolve().parent):
        if parent.name:  # "/" would fit everywhere
            reason = reason.replace(f"{parent}/", "")
    return reason
