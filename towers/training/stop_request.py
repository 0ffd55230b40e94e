"""On several workers, SIGTERM or Ctrl-C to any of them ends all after the same step, whose state can be saved.

A worker that stopped by itself would leave the others in a step that it did not share.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import numpy as np

from towers.ops.replicas import Replicas

ASK_STEPS = 10  # steps between two questions: each waits for its step, and a cloud gives 30 s


@contextmanager
def stop_of_any(replicas: Replicas) -> Iterator[Callable[[], None]]:
    """Inside, the signals that a worker gets only leave a note. One process alone stops as it did before.

    Yields:
        A question that all workers must ask together, every `ASK_STEPS` steps; the last one is asked at the end.

    Raises:
        KeyboardInterrupt: by the question, if any worker has such a note.
    """
    if replicas.workers == 1:
        yield lambda: None
        return
    note = np.zeros(1, np.int32)

    def leave_note(number: int, frame: FrameType | None) -> None:
        note[0] = 1

    def ask() -> None:
        if replicas.gather_array(note).any():
            raise KeyboardInterrupt

    # Other threads get no signals and may not say what happens on one.
    signals = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, leave_note) for number in signals}
    try:
        yield ask
        ask()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
