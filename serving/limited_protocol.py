"""The limits that lie below the app: requests in flight, connections, and what one connection may ask for at a time.

In: connections and requests. Out: requests that were let in; 429 with Retry-After for the others, written here without
a task, since under overload a refusal must cost little.
"""

import math
import weakref
from typing import Any

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle
from uvicorn.server import ServerState

from serving import metrics
from serving.arriving_protocol import ArrivingProtocol
from serving.connections import Connections
from serving.drain import STATE, Drain
from serving.http_protocol import App
from serving.refusals import REFUSALS, REFUSALS_OF_HEAD
from serving.settings import Settings

ON_ITS_WAY_S = 0.2  # after the listening socket is closed
CONTINUE = STATUS_LINE[100] + b"\r\n"

# Probes and metrics are answered always: a full service is not a dead one.
ALWAYS = frozenset({"/healthz", "/readyz", "/metrics"})
LIGHT = "/recall"

_SHARED: weakref.WeakKeyDictionary[ServerState, Connections] = weakref.WeakKeyDictionary()


class LimitedProtocol(ArrivingProtocol):
    """One connection within the limits.

    Args:
        settings: the limits.
    """

    def __init__(
        self, config: Any, server_state: Any, app_state: dict[str, Any], _loop: Any = None, *, settings: Settings
    ) -> None:
        super().__init__(config, server_state, app_state, _loop, settings=settings)
        if server_state not in _SHARED:
            _SHARED[server_state] = Connections(settings, server_state.connections, self.loop)
        self._shared = _SHARED[server_state]
        self._drain: Drain | None = app_state.get(STATE)
        self._held = self._surplus = self._stopping = False
        self.late = False
        self._incomplete: tuple[RequestResponseCycle, App] | None = None  # the rest of its body is to come

    def connection_made(self, transport: Any) -> None:
        """Takes a connection; above the limit in place of an idle one, or to refuse its first request."""
        super().connection_made(transport)
        self._shared.look_soon()
        most = self._settings.max_connections
        if len(self.connections) > most and not self._shared.make_room():
            self._surplus = True
            if len(self.connections) > 2 * most:
                metrics.refused("connections")
                transport.abort()
        self.wait(self._settings.header_timeout_s)

    def data_received(self, data: bytes) -> None:
        """Parses what came; where it is half a request, asks for the rest or refuses it."""
        super().data_received(data)
        self._ask_for_the_rest()

    def on_body(self, body: bytes) -> None:
        """Takes a piece of a body; a large one is read by the app, piece by piece."""
        super().on_body(body)
        if self.flow.read_paused:
            self._begin_whole()

    def on_message_complete(self) -> None:
        """A request has arrived whole, and is let in now, or is not."""
        super().on_message_complete()
        self._begin_whole()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: App) -> None:
        if cycle.more_body and len(cycle.body) <= HIGH_WATER_LIMIT:
            # Whoever sends a body slowly waits here, outside: inside they would hold a place that others need.
            self._incomplete = cycle, app
            self.flow.resume_reading()
        else:
            self._begin(cycle, app)

    def _begin_whole(self) -> None:
        if self._incomplete is not None:
            (cycle, app), self._incomplete = self._incomplete, None
            self._begin(cycle, app)

    def _ask_for_the_rest(self) -> None:
        """Refuses a request that would not be let in now before its caller sends all of the body, or asks for it."""
        if self._incomplete is None:
            return
        cycle, path = self._incomplete[0], self._incomplete[0].scope["path"]
        reason = None if path in ALWAYS else self._shared.admission.refusal(path != LIGHT)
        if reason is not None:
            self._incomplete = None
            self._refuse(cycle, reason)
        elif cycle.waiting_for_100_continue:
            cycle.waiting_for_100_continue = False
            if not cycle.body:
                self.transport.write(CONTINUE)

    def _begin(self, cycle: RequestResponseCycle, app: App) -> None:
        path = cycle.scope["path"]
        if self.flow.write_paused:
            # The caller does not read its answers: another one would wait here, in a place that others need.
            self.pipeline.append((cycle, app))
            self.flow.pause_reading()
            self.wait(self._settings.keep_alive_s)
            return
        stopping = self._stopping or (self._drain is not None and self._drain.begun)
        if self._surplus or (stopping and not self.pipeline):
            cycle.keep_alive = False
        if not cycle.more_body:
            self.due = math.inf
        self.running = cycle
        if path in ALWAYS:
            running = cycle.run_asgi(app)
        else:
            # What is still to come may come slowly: its place is not one of those that single recalls need.
            heavy, admission = path != LIGHT or cycle.more_body, self._shared.admission
            reason = "connections" if self._surplus else admission.enter(heavy, self.late)
            if reason is not None:
                self._refuse(cycle, reason)
                return
            running = self._counted(cycle, app, heavy, admission.clock(), admission.in_flight)
        if not cycle.more_body:
            cycle.waiting_for_100_continue = False  # There is nothing left to ask for.
        task = self.loop.create_task(running)
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    async def _counted(self, cycle: RequestResponseCycle, app: App, heavy: bool, since: float, others: int) -> None:
        admission = self._shared.admission
        try:
            await cycle.run_asgi(app)
        finally:
            admission.leave(heavy, since, others, cycle.scope["state"].get("kind", ""))

    def _refuse(self, cycle: RequestResponseCycle, reason: str) -> None:
        metrics.refused(reason)
        cycle.response_started = cycle.response_complete = True
        # A caller who waits for "100 Continue" may send the body yet, or not.
        closing = self._surplus or not cycle.keep_alive or cycle.waiting_for_100_continue
        head = b"".join(name + b": " + value + b"\r\n" for name, value in self.server_state.default_headers)
        self.transport.write(
            b"%s%sx-request-id: %s\r\n%s%s"
            % (
                STATUS_LINE[429],
                head,
                self._shared.request_id(cycle.scope["headers"]),
                b"connection: close\r\n" if closing else b"",
                (REFUSALS_OF_HEAD if cycle.scope["method"] == "HEAD" else REFUSALS)[reason],
            )
        )
        if closing:
            self.transport.close()
        admission = self._shared.admission
        at_once = admission.may_refuse_at_once()
        if self.late:
            # What was held is refused; what comes next on this connection is fresh, if there is a place for it.
            self.late, at_once = False, admission.room
        self.on_response_complete()
        if not (at_once or self._held or self.transport.is_closing()):
            self._held = True
            self._shared.hold(self)

    def on_response_complete(self) -> None:
        """Goes on with the next request of this connection, or waits for one."""
        self.server_state.total_requests += 1
        self.running = None
        if self.transport.is_closing():
            self.wait(self._settings.keep_alive_s)  # for a caller who takes no answer
        elif self.pipeline:
            if self.flow.write_paused:
                self.wait(self._settings.keep_alive_s)
            else:
                self._go_on()
        elif self._ending is not None:
            self.close_with(*self._ending)
        else:
            self.flow.resume_reading()
            self.wait()
            if self._stopping:
                self.transport.close()

    def _go_on(self) -> None:
        self.due = math.inf
        self.loop.call_soon(self._next)  # Not here: the request before is still counted.

    def _next(self) -> None:
        if self.pipeline and self.running is None and not self.transport.is_closing() and not self.flow.write_paused:
            cycle, app = self.pipeline.pop()
            if cycle.more_body:
                self.wait()  # Nothing of it was read for as long as the one before was worked on.
            self._start_asgi_task(cycle, app)
            self._ask_for_the_rest()

    def resume_writing(self) -> None:
        """The caller reads its answers again: what waited for that goes on."""
        super().resume_writing()
        if self.pipeline:
            self._go_on()

    def shutdown(self) -> None:
        """The server stops: the requests that are here are answered, and one that is on its way."""
        self._stopping = True
        if self.running is not None:
            self.cycle.keep_alive = False
        elif not self.begun:
            self.due = min(self.due, self.loop.time() + ON_ITS_WAY_S)

    def read_again(self) -> None:
        """Ends a hold."""
        self._held = False
        if not self.transport.is_closing():
            self.wait()
            self.transport.resume_reading()

    def close_with(self, status: int, body: bytes) -> None:
        """Ends the connection with an error, once the requests that came whole before it are answered."""
        self._incomplete = None
        super().close_with(status, body)
