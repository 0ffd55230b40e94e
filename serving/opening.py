"""From a bundle directory to what answers queries: the index it carries, and the whole `Recaller`.

In: a bundle, opened or as a path. Out: an `Index`, a `Recaller`. Only asking for the tower loads TensorFlow.
"""

import gc
import sys
from contextlib import suppress
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from serving.bundle import Bundle
from serving.errors import BundleError
from serving.index import ExactIndex, Index
from serving.live_users import LiveUsers
from serving.pace import Rest, at_once
from serving.recall import Recaller
from serving.scann_index import ScannIndex, ScannParameters

YOUNG = 10_000
SWITCH_S = 0.0005


def load_libraries() -> None:
    """Loads what every bundle needs, once in a process, and settles how threads and the collector share its time.

    TensorFlow is some 300,000 objects. They never go, and each look at them all would hold up every answer for 0.2 s;
    without them a look takes 2 ms.
    """
    # A waiting thread gets the interpreter this soon: a bundle that opens must not delay an answer by Python's 5 ms
    # each time.
    sys.setswitchinterval(SWITCH_S)
    if gc.get_freeze_count():
        return
    import serving.encoder  # noqa: F401

    with suppress(ImportError):  # Not on every platform: a bundle that needs it says so when it is opened.
        import scann  # noqa: F401
    gc.collect()
    gc.freeze()
    # Requests make few cycles: the young need no look for each 700 of them.
    gc.set_threshold(YOUNG, 20, 20)


def open_index(bundle: Bundle) -> Index:
    """The index of a bundle; exact search where it carries none.

    Raises:
        BundleError: the index cannot be opened, or ScaNN is not installed on this platform.
    """
    info, directory = bundle.manifest.index, bundle.index_path
    if info is None or directory is None:
        return ExactIndex(bundle.recall_vectors)
    try:
        parameters = TypeAdapter(ScannParameters).validate_python(info.parameters)
    except ValidationError as error:
        raise BundleError(f"{bundle.path}: index.parameters of the manifest: {error.errors()[0]['msg']}") from None
    return ScannIndex.load(directory, bundle.recall_vectors, parameters)


def missing_index(bundle: Bundle) -> str | None:
    """A warning where nobody has built an index; None with one, and with `exact`, which `towers index` also chooses."""
    manifest = bundle.manifest
    if manifest.index is not None:
        return None
    scan = f"every query scans all {manifest.items:,} items exactly"
    return f"{bundle.path} has no index: {scan}; `towers index --bundle {bundle.path}` builds one"


def open_recaller(
    path: Path, *, verify: bool = True, tower: bool = True, users: LiveUsers | None = None, rest: Rest = at_once
) -> Recaller:
    """Opens a bundle and everything that answers from it.

    Args:
        path: the bundle directory.
        verify: see `Bundle.open`.
        tower: also load the query tower, warmed up; without it no features can be encoded.
        users: what users took since the bundle was made.
        rest: called after each piece of work.

    Raises:
        BundleError: names the path and the reason.
    """
    bundle = Bundle.open(path, verify=verify, rest=rest)
    encoder = None
    if tower:
        from serving.encoder import Encoder

        encoder = Encoder.of_queries(bundle)
        rest()
        encoder.warm_up()
        rest()
    index = open_index(bundle)
    rest()
    recaller = Recaller(bundle, index, encoder, users)
    rest()
    return recaller
