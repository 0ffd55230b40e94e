"""The limits that lie below the app: requests in flight, connections, time to arrive, what one connection may hold.

In: connections and bytes. Out: requests that were let in; 429 with Retry-After, 408 or 431 for the others, written here
without a task, since under overload a refusal must cost little. Idle and slow connections are closed by one look at all
of them, not by a timer for each.
"""

import math
import weakref
from typing import Any

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle
from uvicorn.server import ServerState

from serving import metrics
from serving.connections import Connections
from serving.drain import STATE, Drain
from serving.http_protocol import App, JsonErrorsProtocol
from serving.refusals import MOST_HEAD_BYTES, REFUSALS, TOO_LONG, TOO_SLOW
from serving.settings import Settings

ON_ITS_WAY_S = 0.2  # after the listening socket is closed
MOST_HEADERS = 100
MOST_PIPELINED = 64

# Probes and metrics are answered always: a full service is not a dead one.
ALWAYS = frozenset({"/healthz", "/readyz", "/metrics"})
LIGHT = "/recall"

_SHARED: weakref.WeakKeyDictionary[ServerState, Connections] = weakref.WeakKeyDictionary()


class LimitedProtocol(JsonErrorsProtocol):
    """One connection within the limits.

    Attributes:
        due: when what this connection waits for is late, in the loop's time; infinite while a request is worked on.

    Args:
        settings: the limits.
    """

    def __init__(
        self, config: Any, server_state: Any, app_state: dict[str, Any], _loop: Any = None, *, settings: Settings
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        if server_state not in _SHARED:
            _SHARED[server_state] = Connections(settings, server_state.connections, self.loop)
        self._shared, self._settings = _SHARED[server_state], settings
        self._drain: Drain | None = app_state.get(STATE)
        self.due = math.inf
        self._arriving = self._in_head = False  # a request has begun to come in; its head has
        self._slow = False  # it has not come in one piece
        self._ended = False  # one has ended in the piece that is parsed now
        self._running = self._held = self._surplus = self._stopping = False
        self._head_bytes = 0
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
        self.due = self.loop.time() + self._settings.header_timeout_s

    def data_received(self, data: bytes) -> None:
        """Parses what came, and notes since when a request is incomplete."""
        self._ended = False
        super().data_received(data)
        if not self._arriving:
            if self._slow:
                self._slow = False
                self.due = math.inf if self._running else self.loop.time() + self._settings.keep_alive_s
            return
        if not self._slow:
            self._slow = True
            self.due = self.loop.time() + self._settings.header_timeout_s
            # Behind the end of another request nobody knows how many of these bytes are of this one.
            self._head_bytes = 0 if self._ended else len(data)
        elif self._in_head:
            self._head_bytes += len(data)
        if self._incomplete is not None:
            self._refuse_early(self._incomplete[0])
        if self._in_head and self._head_bytes > MOST_HEAD_BYTES:
            self.close_with(431, TOO_LONG)

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._arriving = self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes one header, of at most `MOST_HEADERS`."""
        if len(self.headers) >= MOST_HEADERS:
            raise ValueError("too many headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begins a request, or puts it behind those of its connection that are not answered yet."""
        self._in_head = False
        if len(self.pipeline) >= MOST_PIPELINED:
            raise ValueError("too many requests in a row")
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """A request has arrived whole."""
        self._arriving, self._ended = False, True
        super().on_message_complete()
        self._begin_whole()

    def on_body(self, body: bytes) -> None:
        """Takes a piece of a body; a large one is read by the app, piece by piece."""
        super().on_body(body)
        if self.flow.read_paused:
            self._begin_whole()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: App) -> None:
        if cycle.more_body and not cycle.waiting_for_100_continue and len(cycle.body) <= HIGH_WATER_LIMIT:
            # Whoever sends a body slowly waits here, outside: inside they would hold a place that others need.
            self._incomplete = cycle, app
            self.flow.resume_reading()
        else:
            self._begin(cycle, app)

    def _begin_whole(self) -> None:
        if self._incomplete is not None:
            (cycle, app), self._incomplete = self._incomplete, None
            self._begin(cycle, app)

    def _refuse_early(self, cycle: RequestResponseCycle) -> None:
        """Refuses a request that would not be let in now, before its caller sends all of the body."""
        path = cycle.scope["path"]
        reason = None if path in ALWAYS else self._shared.admission.refusal(path != LIGHT)
        if reason is not None:
            self._incomplete = None
            self._refuse(cycle, reason)

    def _begin(self, cycle: RequestResponseCycle, app: App) -> None:
        path = cycle.scope["path"]
        if self.flow.write_paused:
            # The caller does not read its answers: another one would wait here, in a place that others need.
            self.pipeline.append((cycle, app))
            self.flow.pause_reading()
            self.due = self.loop.time() + self._settings.request_timeout_s
            return
        stopping = self._stopping or (self._drain is not None and self._drain.begun)
        if self._surplus or (stopping and not self.pipeline):
            cycle.keep_alive = False
        self.due = math.inf
        self._running = True
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
                REFUSALS[reason],
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
        if not (at_once or closing or self._held):
            self._held = True
            self._shared.hold(self)

    def on_response_complete(self) -> None:
        """Goes on with the next request of this connection, or waits for one."""
        self.server_state.total_requests += 1
        self._running = False
        if self.transport.is_closing():
            self.due = self.loop.time() + self._settings.request_timeout_s  # for a caller who takes no answer
            return
        if self.pipeline:
            # Not here: the request before is still counted.
            self.loop.call_soon(self._next)
            return
        self.flow.resume_reading()
        self.due = self.loop.time() + self._settings.keep_alive_s
        if self._stopping:
            self.transport.close()

    def _next(self) -> None:
        if self.pipeline and not self._running and not self.transport.is_closing() and not self.flow.write_paused:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)

    def resume_writing(self) -> None:
        """The caller reads its answers again: what waited for that goes on."""
        super().resume_writing()
        if self.pipeline:
            self.loop.call_soon(self._next)

    def shutdown(self) -> None:
        """The server stops: the requests that are here are answered, and one that is on its way."""
        self._stopping = True
        if self._running:
            self.cycle.keep_alive = False
        else:
            self.due = min(self.due, self.loop.time() + ON_ITS_WAY_S)

    def read_again(self) -> None:
        """Ends a hold."""
        self._held = False
        if not self.transport.is_closing():
            self.due = self.loop.time() + self._settings.keep_alive_s
            self.transport.resume_reading()

    def give_up(self) -> None:
        """Closes a connection whose time is over, with 408 where half a request has come."""
        if self.transport.is_closing() or self.transport.get_write_buffer_size():
            self.transport.abort()  # The caller takes nothing: a close would wait for it.
        elif self.flow.read_paused or (self._running and self._in_head):
            # What is missing was not asked for yet, or an answer to the request before is still to come.
            self.due = self.loop.time() + self._settings.header_timeout_s
        elif self._arriving:
            metrics.refused("slow")
            self.close_with(408, TOO_SLOW)
        else:
            self.transport.close()

    def close_with(self, status: int, body: bytes) -> None:
        """Ends the connection with an error."""
        super().close_with(status, body)
        self.due = self.loop.time() + self._settings.header_timeout_s
