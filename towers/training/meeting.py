"""Waits until all workers of a training are there, before TensorFlow does: neither Ctrl-C nor SIGTERM ends its wait."""

import errno
import socket
import time
from collections.abc import Callable, Sequence

from towers.errors import ConfigError, LostWorkerError

LOOK_S, PATIENCE_S = 0.5, 10.0
LIMIT_S = 600.0  # a cluster may take minutes to find a machine for a worker


def meet(addresses: Sequence[str], rank: int, tell: Callable[[str], None], limit: float = LIMIT_S) -> None:
    """Listens at this worker's port until each of the others has listened at its own.

    Args:
        addresses: `host:port` of all workers.
        rank: the index of this one.
        tell: shows a line to the user if another worker keeps this one waiting.
        limit: seconds to wait.

    Raises:
        ConfigError: another process has this worker's port.
        LostWorkerError: a worker did not come in time.
    """
    begin, told = time.monotonic(), False
    with _listener(addresses[rank]):
        missing = [address for number, address in enumerate(addresses) if number != rank]
        while missing := [address for address in missing if not _answers(address)]:
            waited = time.monotonic() - begin
            if waited > limit:
                raise LostWorkerError(
                    f"worker {rank} of {len(addresses)}: no answer from {', '.join(missing)} in {limit:.0f} s; start "
                    "that worker, too, or check the addresses of TF_CONFIG and the network between the machines"
                )
            if waited > PATIENCE_S and not told:
                tell(f"worker {rank} of {len(addresses)} waits for {', '.join(missing)}")
                told = True
            time.sleep(LOOK_S)


def _listener(address: str) -> socket.socket:
    port = int(address.rpartition(":")[2])
    both = socket.has_dualstack_ipv6()
    try:
        return socket.create_server(("", port), family=socket.AF_INET6 if both else socket.AF_INET, dualstack_ipv6=both)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise ConfigError(
            f"TF_CONFIG: another process of this machine has port {port}, of {address}; end it, or name another port"
        ) from None


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=2.0):
            return True
    except OSError:
        return False
