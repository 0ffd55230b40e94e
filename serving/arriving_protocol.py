"""How a request comes in: the limits of its time and size, and the end of a connection that goes beyond one.

In: pieces of bytes. Out: requests that are whole, or 400, 408 or 431 and the end of the connection, once what the
caller sent before is answered. Whoever looks at all connections closes those that are late: there is no timer for each.
"""

import math
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from serving import metrics
from serving.http_protocol import BeyondLimitError, JsonErrorsProtocol
from serving.refusals import (
    MOST_HEAD_BYTES,
    MOST_HEADERS,
    MOST_PIPELINED,
    TOO_LONG,
    TOO_MANY_HEADERS,
    TOO_MANY_IN_A_ROW,
    TOO_SLOW,
)
from serving.settings import Settings


class ArrivingProtocol(JsonErrorsProtocol):
    """One connection whose caller is waited for only so long, and who sends only so much.

    Attributes:
        due: when what this connection waits for is late, in the loop's time; infinite while a request that has come
            whole is worked on.
        since: when it began to wait for that.
        running: the request that is worked on.

    Args:
        settings: the limits.
    """

    def __init__(
        self, config: Any, server_state: Any, app_state: dict[str, Any], _loop: Any = None, *, settings: Settings
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._settings = settings
        self.due, self.since = math.inf, 0.0
        self.running: RequestResponseCycle | None = None
        self._arriving = self._in_head = False  # a request has begun to come in; its head has
        self._slow = False  # it has not come in one piece
        self._ended = False  # one has ended in the piece that is parsed now
        self._got_on = False  # a head, a piece of a body or a request has ended in it
        self._loose_bytes = 0  # that came since
        self._ending: tuple[int, bytes] | None = None  # the error to end with once all before it is answered

    @property
    def begun(self) -> bool:
        """Whether half a request has come, and no answer to it was given."""
        return self._arriving and (self._in_head or not self.cycle.response_complete)

    def data_received(self, data: bytes) -> None:
        """Parses what came, and notes since when a request is incomplete."""
        if self._ending is not None:
            return
        self._ended = self._got_on = False
        super().data_received(data)
        # Nobody knows how many of these bytes stand behind what has ended.
        self._loose_bytes = 0 if self._got_on else self._loose_bytes + len(data)
        if not self._arriving:
            if self._slow:
                self._slow = False
                if self.running is None:
                    self.wait()
                else:
                    self.due = math.inf
            return
        if not self._slow or self._ended:
            self._slow = True
            self.wait()
        if self._loose_bytes > MOST_HEAD_BYTES:
            # The parser keeps a line until it is whole, and copies it for each piece: in a head, and behind a body.
            self.refuse_malformed(431, TOO_LONG)

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._arriving = self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes one header; what stands behind the body is none, though it looks like one.

        Raises:
            BeyondLimitError: there are more than `MOST_HEADERS`.
        """
        if not self._in_head:
            return
        if len(self.headers) >= MOST_HEADERS:
            raise BeyondLimitError(431, TOO_MANY_HEADERS)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begins a request, or puts it behind those of its connection that are not answered yet.

        Raises:
            BeyondLimitError: there are more than `MOST_PIPELINED` of them.
        """
        self._got_on = True
        if len(self.pipeline) >= MOST_PIPELINED:
            raise BeyondLimitError(400, TOO_MANY_IN_A_ROW)
        super().on_headers_complete()
        self._in_head = False

    def on_body(self, body: bytes) -> None:
        """Takes a piece of a body."""
        self._got_on = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request has arrived whole."""
        self._arriving, self._ended, self._got_on = False, True, True
        super().on_message_complete()

    def wait(self, seconds: float | None = None) -> None:
        """Waits for the caller from now on.

        Args:
            seconds: how long; if None, as long as the rest of a request, or the next one, may take.
        """
        if seconds is None:
            seconds = self._settings.header_timeout_s if self._arriving else self._settings.keep_alive_s
        self.since = self.loop.time()
        self.due = self.since + seconds

    def give_up(self) -> bool:
        """Ends a connection whose time is over, with 408 where half a request has come.

        Returns:
            Whether it is closed. It is not where what is missing was not asked for yet, or where a request before it
            is still to be answered.
        """
        if self.transport.is_closing() or self.transport.get_write_buffer_size():
            self.transport.abort()  # The caller takes nothing: a close would wait for it.
        elif self.flow.read_paused:
            self.due = self.loop.time() + self._settings.header_timeout_s
        elif self.begun:
            metrics.refused("slow")
            self.close_with(408, TOO_SLOW)
        else:
            self.transport.close()
        return self.transport.is_closing()

    def close_with(self, status: int, body: bytes) -> None:
        """Ends the connection with an error, once the requests that came whole before it are answered."""
        if self._arriving and not self.begun:
            self.transport.close()  # It has its answer: a second one would be taken for that to the next request.
            self.wait(self._settings.keep_alive_s)
            return
        cycle = self.cycle
        broken = cycle if cycle is not None and cycle.more_body and not cycle.response_complete else None
        if broken is not None and self.pipeline and self.pipeline[0][0] is broken:
            self.pipeline.popleft()
        self._arriving = self._in_head = self._slow = False
        if self.pipeline or (self.running is not None and self.running is not broken):
            self._ending = status, body
            self.flow.pause_reading()
            if self.running is not None:
                self.due = math.inf
            return
        super().close_with(status, body)
        self.wait(self._settings.keep_alive_s)
