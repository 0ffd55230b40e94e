"""Opens bundles behind a bar that counts the files compared with the manifest; tries real searches on one of them.

A command that makes something of a bundle asks at its end whether the bundle is still the one that it opened.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl

from pipelines.console import Advance, phase, progress
from serving.bundle.manifest import MANIFEST, read_manifest
from serving.bundle.reader import Bundle
from serving.errors import BundleError
from serving.recall.recaller import Recaller
from serving.recall.self_test import open_probed

VERIFY, PROBE = "verify", "probe"


def verify(*bundles: Path) -> list[Bundle]:
    """Opens some bundles and reads every file of them.

    Raises:
        BundleError: a file is missing or not the manifest's.
    """
    return list(verify_each(bundles))


def verify_each(bundles: Sequence[Path]) -> Iterator[Bundle]:
    """Does the work of `verify` one by one: an open bundle holds a handle for every file that it maps."""
    with progress(VERIFY, total=sum(map(megabytes, bundles)), unit="MB") as advance:
        for bundle in bundles:
            yield verified(bundle, advance)


def verified(bundle: Path, advance: Advance) -> Bundle:
    """Does the work of `verify` with one bundle, under a bar that is already there.

    Args:
        bundle: the directory.
        advance: called with the megabytes of each file, once it is compared.
    """
    sizes = iter(_sizes(bundle))
    # It rests after each file, in the manifest's order, then after steps that read nothing new.
    return Bundle.open(bundle, rest=lambda: advance(next(sizes, 0)))


def megabytes(bundle: Path) -> float:
    """The size of all files that `verified` reads.

    Raises:
        BundleError: there is no manifest, or it cannot be read.
    """
    return sum(_sizes(bundle))


def probed(bundle: Path) -> Recaller:
    """Opens a bundle that `verify` has read, with both towers, and asks it what a service would.

    Raises:
        BundleError: it cannot be opened, or fails a real search.
    """
    with phase(PROBE):
        return open_probed(bundle, verify=False)


def refuse_changed(bundle: Bundle, file: str = MANIFEST) -> None:
    """Refuses a bundle in whose place another one is since it was opened, such as one without a forgotten user.

    Args:
        bundle: the bundle as it was opened.
        file: one of its files, which is read next.

    Raises:
        BundleError: it is another one, or there is none, or the file is gone. An index of its own may have come
            meanwhile.
    """
    before, now = bundle.manifest, read_manifest(bundle.path)
    told = f"model {before.model_version}, now {now.model_version}"
    same = (before.model_version, before.created_at) == (now.model_version, now.created_at)
    if same and not (bundle.path / file).is_file():
        same, told = False, f"{file} is gone"
    if not same:
        raise BundleError(
            f"{bundle.path}: another command has replaced it meanwhile ({told}); nothing was written: give the command "
            "again"
        )


def query_ids(bundle: Bundle) -> pl.Series:
    """Returns the ids of the stored users of a bundle that may have been opened long ago.

    Raises:
        BundleError: they are read only now, and another bundle lies there; see `refuse_changed`.
    """
    if "query_ids" in vars(bundle):
        return bundle.query_ids
    try:
        ids = bundle.query_ids
        refuse_changed(bundle)
    except BundleError:
        vars(bundle).pop("query_ids", None)  # the next call would take them for those of the vectors
        refuse_changed(bundle)  # most often the cause of ids that do not fit the manifest, too
        raise
    return ids


def _sizes(bundle: Path) -> list[float]:
    return [info.bytes / 1e6 for info in read_manifest(bundle).files.values()]
