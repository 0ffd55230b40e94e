"""One worker of a training on several workers: TensorFlow's collectives (gRPC between CPUs, NCCL between GPUs).

Every worker holds the whole model and trains a part of each batch. A worker uses one device: a machine with several
GPUs runs several workers, or one process with several devices (`towers.training.devices`). `TF_CONFIG`, as TensorFlow
defines it, names the addresses of all workers and the index of this one.
"""

import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from towers.errors import ConfigError, LostWorkerError
from towers.ops.replicas import ALONE, Replicas, Step, slices
from towers.training.collectives import Collectives
from towers.training.meeting import meet

VARIABLE = "TF_CONFIG"
BLOCK = 1 << 24  # numbers that are copied at once: 64 MB of float32


# What TensorFlow raises when the connection to another worker breaks.
BROKEN = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError, tf.errors.DeadlineExceededError)


class Place(NamedTuple):
    """A worker among the others.

    Attributes:
        rank: its number, from 0.
        addresses: `host:port` of all workers.
    """

    rank: int
    addresses: list[str]

    def on_this_machine(self) -> tuple[int, int]:
        """The number of workers before this one with the same host name, and of all with that name."""
        hosts = [address.rpartition(":")[0] for address in self.addresses]
        return hosts[: self.rank].count(hosts[self.rank]), hosts.count(hosts[self.rank])


class Workers(Collectives):
    """One of several workers.

    Args:
        strategy: what gives this process its collectives; it has one device.
        rank: number of this worker.
        count: number of workers.
    """

    def __init__(self, strategy: tf.distribute.Strategy, rank: int, count: int) -> None:
        super().__init__(strategy, count)
        self.rank, self.workers = rank, count
        self._gathered = tf.function(self.step(self.gather_uneven), autograph=False, reduce_retracing=True)
        self._summed = tf.function(self.step(self._sum_of_one), autograph=False, reduce_retracing=True)

    @property
    def number(self) -> int:
        """See `Collectives`."""
        return self.rank

    def step(self, function: Step) -> Step:
        """See `Replicas`."""
        return lambda value: self.strategy.run(function, (value,))

    def part(self, size: int) -> slice:
        """See `Replicas`."""
        return slices(size, self.count)[self.rank]

    def gather_array(self, rows: NDArray[Any]) -> NDArray[Any]:
        """See `Replicas`."""
        gathered: NDArray[Any] = self._gathered(tf.constant(rows)).numpy()
        return gathered

    def from_first(self, text: str) -> str:
        """See `Replicas`."""
        # With a first byte of its own: TensorFlow crashes if every worker's part is empty.
        given = np.frombuffer(b"0" + text.encode() if not self.rank else b"", np.uint8).astype(np.int32)
        return self.gather_array(given).astype(np.uint8).tobytes()[1:].decode()

    def published(self) -> None:
        """See `Replicas`."""
        with suppress(*BROKEN):  # the run is complete: a worker that is lost now takes nothing from it
            self.from_first("")

    def copy_first(self, variables: Sequence[tf.Variable]) -> None:
        """See `Replicas`."""
        for variable in variables:
            # The types that collectives add; each holds the values of the smaller ones exactly.
            kind = tf.float32 if variable.dtype.is_floating else tf.int64
            if not variable.shape.rank:
                variable.assign(tf.cast(self._of_first(tf.cast(variable, kind)), variable.dtype))
                continue
            rows = max(1, BLOCK // max(1, int(np.prod(variable.shape[1:]))))
            for low in range(0, variable.shape[0], rows):
                part = variable[low : low + rows]
                variable[low : low + rows].assign(tf.cast(self._of_first(tf.cast(part, kind)), variable.dtype))

    def _sum_of_one(self, value: tf.Tensor) -> tf.Tensor:
        return self.sum([value])[0]

    def _of_first(self, value: tf.Tensor) -> tf.Tensor:
        return self._summed(tf.zeros_like(value) if self.rank else value)


@contextmanager
def lost_workers_told(replicas: Replicas) -> Iterator[None]:
    """Says plainly that another worker ended.

    Raises:
        LostWorkerError: the connection to another worker broke.
    """
    try:
        yield
    except BROKEN as error:
        if replicas.count == 1:
            raise
        raise LostWorkerError(
            f"worker {replicas.rank} of {replicas.count}: another worker ended; the last checkpoint is kept, and the "
            f"same commands resume from there ({str(error).splitlines()[0][:200]})"
        ) from error


def connect(tell: Callable[[str], None] = print) -> Replicas:
    """Joins the workers that `TF_CONFIG` names; waits for all of them. Must come before any other use of TensorFlow.

    Args:
        tell: shows a line to the user if another worker keeps this one waiting.

    Raises:
        ConfigError: `TF_CONFIG` is not what TensorFlow defines, this machine has more workers than GPUs, or another
            process has this worker's port.
        LostWorkerError: a worker did not come.
    """
    place = place_of(os.environ.get(VARIABLE, ""))
    if place is None or len(place.addresses) == 1:
        return ALONE
    number, beside = place.on_this_machine()
    gpus = tf.config.list_physical_devices("GPU")
    if gpus and beside > len(gpus):
        raise ConfigError(f"{VARIABLE}: {beside} workers on a machine with {len(gpus)} GPUs; each worker takes one")
    if gpus:
        tf.config.set_visible_devices(gpus[number], "GPU")
    elif beside > 1:
        # Each would start as many threads as there are processors.
        tf.config.threading.set_intra_op_parallelism_threads(max(1, (os.cpu_count() or 1) // beside))
    meet(place.addresses, place.rank, tell)
    on_sigterm = signal.getsignal(signal.SIGTERM)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    # TensorFlow put its own handler there, which ends nothing.
    signal.signal(signal.SIGTERM, on_sigterm)
    return Workers(strategy, place.rank, len(place.addresses))


def place_of(text: str) -> Place | None:
    """Reads `TF_CONFIG`; None if it is empty or names no cluster.

    A `chief`, if there is one, comes before the workers.
    """
    try:
        config = json.loads(text or "{}")
        cluster, task = config.get("cluster") or {}, config.get("task") or {}
        if not cluster:
            return None
        chiefs, workers = cluster.get("chief", []), cluster.get("worker", [])
        kind, index = task["type"], int(task["index"])
        own = {"chief": chiefs, "worker": workers}[kind]
        addresses = [*chiefs, *workers]
        ports = [address.rpartition(":")[2] for address in addresses]
        fits = 0 <= index < len(own) and all(port.isdecimal() and 0 < int(port) < 2**16 for port in ports)
    except (ValueError, KeyError, TypeError, AttributeError):
        fits = False
    if not fits:
        raise ConfigError(
            f'{VARIABLE}: must be {{"cluster": {{"worker": ["host:port", …]}}, "task": {{"type": "worker", "index": '
            f"0}}}}, with the index of this worker; got {text[:200]}"
        )
    return Place(index + (len(chiefs) if kind == "worker" else 0), addresses)
