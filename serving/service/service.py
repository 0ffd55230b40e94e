"""The service of one process: its bundles, their live changes, and the periodic checks for both.

Every request gets its bundle from `Service.pick`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from anyio import CapacityLimiter
from starlette.requests import Request

from serving.background import OPENING, no_pause, yielding_to_requests
from serving.catalogue.journal import JournalError
from serving.catalogue.journal_place import journal_at
from serving.catalogue.updates import CatalogueUpdates
from serving.errors import RequestError
from serving.recall.loading import load_libraries, missing_index, open_recaller
from serving.recall.microbatching import Batcher
from serving.recall.recaller import Recaller
from serving.recall.self_test import open_item_encoder, probe
from serving.search.exact import ExactIndex
from serving.search.scann_parameters import TUNED_K
from serving.service.active_bundles import ActiveBundles
from serving.service.look import Refusal, new_refusals
from serving.service.mirror import Mirror
from serving.service.recall_monitor import SampledIndex, found
from serving.settings import Settings
from serving.telemetry import metrics
from serving.telemetry.logs import SERVICE
from serving.telemetry.metric_buffers import unmeasured

log = logging.getLogger(SERVICE)

LOOK_S = 0.2  # changes by other workers and operators are visible within a second
TELL_S = 1  # one log line per second and reason for all rejected requests
WRITERS = 4  # concurrent writes; the journal serialises them anyway
FRESH_S = 60.0  # a worker that starts relies on its parent's look into the store if it is not older


class Service:
    """What the routes call.

    Attributes:
        batcher: answers recalls in micro-batches.
        writers: limits concurrent writes, so that they cannot use up the threads that recalls need.

    Args:
        settings: paths of the bundles and the journal, and all limits.
        verified: a bundle whose checksums this process has just compared; they are not compared again.

    Raises:
        JournalError: the journal cannot be opened.
    """

    def __init__(self, settings: Settings, *, verified: Path | None = None) -> None:
        self.settings, self._verified = settings, verified
        self.journal = None if settings.state is None else journal_at(settings.state)
        self.live = CatalogueUpdates(self.journal, open_item_encoder, settings.max_user_events)
        self.active_bundles: ActiveBundles[Recaller] = ActiveBundles(settings.folder, self._open)
        store = settings.store
        self._mirror = None if store is None else Mirror(store, settings.folder, verify=settings.verify)
        self._not_copied: dict[str, Refusal] = {}
        self.batcher = Batcher(settings.max_microbatch)
        self.writers = CapacityLimiter(WRITERS)
        self._started = False
        # A thread of its own: reloads that wait for an opening bundle must not occupy shared threads.
        self._reloads = ThreadPoolExecutor(1, OPENING)
        self._samples = ThreadPoolExecutor(1, "index-recall")

    @property
    def refused(self) -> Mapping[str, Refusal]:
        """Why each refused bundle does not serve, by name."""
        return {**self.active_bundles.refused, **self._not_copied}

    @property
    def refused_for_callers(self) -> dict[str, str]:
        """`refused` without local paths, and with only the type of an unexpected exception: the log has it whole."""
        return {name: _without_place(each.short, self.settings.folder) for name, each in self.refused.items()}

    def start(self) -> None:
        """Opens the bundles; those of a store are copied first.

        Raises:
            BundleError: the active bundle is refused, and so is every one before it.
            JournalError: the live changes cannot be read.
        """
        load_libraries()
        if self._mirror is not None:
            self._mirror.follow_first(again=False, fresh_s=FRESH_S)
            self._see_copies()
        if refused := self.active_bundles.open_first():
            log.error("%s", refused)
        self.live.refresh()  # what could not be read as a bundle opened: without it deleted items would be recalled
        self._verified, self._started = None, True
        told = (bundle := self.active_bundles.active.opened.bundle).manifest
        log.info("%s: model %s, %d items, %d users", bundle.path, told.model_version, told.items, told.queries)
        metrics.started()
        self._measure()

    def stop(self) -> None:
        """Waits for running work, but not for a bundle that opens, then closes the journal."""
        self.batcher.close()
        self._reloads.shutdown(wait=False, cancel_futures=True)
        self._samples.shutdown(cancel_futures=True)
        metrics.stopped()
        if self.journal is not None:
            self.journal.close()

    def pick(self, user_id: str | None) -> Recaller:
        """Picks the recaller for a user: the active bundle's, or the canary's for its share."""
        return self.active_bundles.pick(user_id).opened

    def reload(self) -> Future[Mapping[str, str]]:
        """Checks for another active bundle or canary, in the store first, tries refused ones again, and swaps them in;
        queued after earlier calls. Its result is `refused_for_callers`."""
        return self._reloads.submit(self._reload)

    async def watch(self) -> None:
        """Picks up the changes of other workers and operators until cancelled."""
        # Separate: opening a bundle takes seconds, and other workers' changes must be visible within one.
        async with asyncio.TaskGroup() as looks:
            looks.create_task(_repeat(lambda: asyncio.to_thread(self.live.refresh)))
            looks.create_task(_repeat(lambda: asyncio.wrap_future(self._reloads.submit(self._check))))
            if self._mirror is not None and (poll_s := self.settings.poll_s):
                looks.create_task(_repeat(lambda: asyncio.wrap_future(self._reloads.submit(self._poll)), poll_s))
            # These two are short and run in the event loop: waiting for a thread would take longer.
            looks.create_task(_repeat(self._measure))
            looks.create_task(_repeat(_tell_refusals, TELL_S))
            if every := self.settings.index_sample_s:
                sampling = asyncio.get_running_loop().run_in_executor
                looks.create_task(_repeat(lambda: sampling(self._samples, self._sample_index), every))

    def _measure(self) -> None:
        """Writes the buffered metrics, and which bundles serve now."""
        metrics.answering(
            [
                metrics.Answering(role, each.name, each.opened.bundle.manifest.model_version)
                for role, each in self.active_bundles.answering.items()
            ]
        )
        metrics.bundles_refused(len(self.refused))
        view = self.active_bundles.active.opened.catalogue.live.view
        metrics.live(len(view.living), len(view.buried), self.live.users.count)
        metrics.flush()

    def _sample_index(self) -> None:
        for active in self.active_bundles.answering.values():
            recaller = active.opened
            if isinstance(recaller.index, SampledIndex) and (sample := recaller.index.take()) is not None:
                wanted, right = found(sample, recaller.exact)
                metrics.index_sampled(recaller.bundle.manifest.model_version, wanted, right)

    def _reload(self) -> Mapping[str, str]:
        self._follow(again=True)
        self._check(again=True)
        return self.refused_for_callers

    def _poll(self) -> None:
        # Of several workers the first to come looks; it makes the copies for all.
        self._follow(again=False, fresh_s=self.settings.poll_s / 2)

    def _follow(self, *, again: bool, fresh_s: float = 0.0) -> None:
        if self._mirror is not None:
            answering = [each.name for each in self.active_bundles.answering.values()]
            self._mirror.follow(again=again, answering=answering, rest=yielding_to_requests(), fresh_s=fresh_s)

    def _check(self, again: bool = False) -> None:
        self._see_copies()
        before, told = self.active_bundles.refused, self.active_bundles.check(again=again)
        if told is not None:
            newly = new_refusals({} if again else before, self.active_bundles.refused)
            log.log(logging.ERROR if newly else logging.INFO, "%s", told)

    def _see_copies(self) -> None:
        if self._mirror is not None:
            before, self._not_copied = self._not_copied, self._mirror.refused
            for each in new_refusals(before, self._not_copied):
                log.error("refused: %s", each.reason)

    def _open(self, path: Path) -> Recaller:
        # At the start there are no requests to delay.
        rest = yielding_to_requests() if self._started else no_pause
        verify = self.settings.verify and path != self._verified
        recaller = open_recaller(path, verify=verify, users=self.live.users, rest=rest)
        if self.journal is not None:
            self.live.encoder(recaller.bundle)
            rest()
        with unmeasured():
            probe(recaller, rest)
        if warning := missing_index(recaller.bundle, copy=self._mirror is not None):
            log.warning("%s", warning)
        if self.settings.index_sample_s and not isinstance(recaller.index, ExactIndex):
            info = recaller.bundle.manifest.index
            recaller.catalogue.index = SampledIndex(recaller.index, TUNED_K if info is None else info.target_k)
        try:
            self.live.attach(recaller.catalogue)
        except JournalError as error:
            # Not the bundle's fault: it serves without them until the next check succeeds.
            log.error("live changes cannot be read: %s", error)
        return recaller


def service_of(request: Request) -> Service:
    """The service behind a request.

    Raises:
        RequestError: no bundle is loaded.
    """
    service: Service | None = request.app.state.service
    if service is None:
        raise RequestError("no bundle is loaded yet", code="not_ready")
    return service


async def _repeat(look: Callable[[], Awaitable[object] | None], every_s: float = LOOK_S) -> None:
    """Calls `look` at intervals and awaits its result, if awaitable; logs errors and goes on until cancelled."""
    away = False
    while True:
        await asyncio.sleep(every_s)
        try:
            if (looking := look()) is not None:
                await looking
            if away:
                log.info("live changes are read again")
            away = False
        except JournalError as error:
            # Once, not several times a second for as long as a database is away.
            if not away:
                log.error("live changes cannot be read: %s", error)
            away = True
        except Exception:
            log.exception("a look at the bundles or the journal failed")


def _tell_refusals() -> None:
    for reason, count in metrics.refusals().items():
        log.warning("turned away %d: %s", count, reason, extra={"fields": {"reason": reason, "count": count}})


def _without_place(reason: str, bundle: Path) -> str:
    """A reason without the directories of the bundles, which callers must not see."""
    for path in dict.fromkeys((bundle.absolute(), bundle.resolve())):
        reason = reason.replace(f"{path}/", "").replace(str(path), path.name)
    for parent in (bundle.absolute().parent, bundle.resolve().parent):
        if parent.name:  # "/" would match everywhere
            reason = reason.replace(f"{parent}/", "")
    return reason
