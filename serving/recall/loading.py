"""Opens the index of a bundle, or a whole `Recaller`. Only the tower needs TensorFlow."""

import gc
import shlex
import sys
from contextlib import suppress
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from serving.background import Rest, no_pause
from serving.bundle.reader import Bundle
from serving.catalogue.user_events import UserEvents
from serving.errors import BundleError
from serving.recall.recaller import Recaller
from serving.search.exact import ExactIndex
from serving.search.index import Index
from serving.search.scann import ScannIndex
from serving.search.scann_parameters import ScannParameters

YOUNG = 10_000
SWITCH_S = 0.0005


def load_libraries() -> None:
    """Loads the libraries that bundles need, once per process, and tunes thread switching and garbage collection.

    TensorFlow creates some 300,000 permanent objects. A collection that visits them delays every answer by 0.2 s; with
    them frozen it takes 2 ms.
    """
    # A waiting thread gets the interpreter after this time: an opening bundle must not delay an answer by Python's
    # default 5 ms per switch.
    sys.setswitchinterval(SWITCH_S)
    if gc.get_freeze_count():
        return
    import serving.bundle.encoder  # noqa: F401

    with suppress(ImportError):  # Not on every platform: opening a bundle that needs it reports the error.
        import scann  # noqa: F401
    gc.collect()
    gc.freeze()
    # Requests make few cycles: a collection every 700 new objects is too often.
    gc.set_threshold(YOUNG, 20, 20)


def open_index(bundle: Bundle) -> Index:
    """Opens the index of a bundle; exact search if it has none.

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


def missing_index(bundle: Bundle, *, copy: bool = False) -> str | None:
    """A warning if no index was built; None with one, and with `exact`, which `towers index` may choose.

    Of a `copy` of a store's bundle, which the next look at the store renews, the original needs the index.
    """
    manifest = bundle.manifest
    if manifest.index is not None:
        return None
    scan = f"every query scans all {manifest.items:,} items exactly"
    todo = f"`towers index --bundle {shlex.quote(str(bundle.path))}` builds one"
    if copy:
        todo = "build one for the bundle that was published (`towers index`), and publish it under another name"
    return f"{bundle.path} has no index: {scan}; {todo}"


def open_recaller(
    path: Path, *, verify: bool = True, tower: bool = True, users: UserEvents | None = None, rest: Rest = no_pause
) -> Recaller:
    """Opens a bundle with everything needed to answer queries.

    Args:
        path: the bundle directory.
        verify: see `Bundle.open`.
        tower: also load and warm up the query tower; without it features cannot be encoded.
        users: users' events since the bundle was made.
        rest: called after each step of work.

    Raises:
        BundleError: names the path and the reason.
    """
    bundle = Bundle.open(path, verify=verify, rest=rest)
    encoder = None
    if tower:
        from serving.bundle.encoder import Encoder

        encoder = Encoder.of_queries(bundle)
        rest()
        encoder.warm_up()
        rest()
    index = open_index(bundle)
    rest()
    recaller = Recaller(bundle, index, encoder, users)
    rest()
    return recaller
