"""Opens bundles behind a bar that counts the files compared with the manifest; tries real searches on one of them."""

from pathlib import Path

from pipelines.console import Advance, phase, progress
from serving.bundle.manifest import read_manifest
from serving.bundle.reader import Bundle
from serving.recall.recaller import Recaller
from serving.recall.self_test import open_probed

VERIFY, PROBE = "verify", "probe"


def verify(*bundles: Path) -> list[Bundle]:
    """Opens some bundles and reads every file of them.

    Raises:
        BundleError: a file is missing or not the manifest's.
    """
    with progress(VERIFY, total=sum(map(megabytes, bundles)), unit="MB") as advance:
        return [verified(bundle, advance) for bundle in bundles]


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


def _sizes(bundle: Path) -> list[float]:
    return [info.bytes / 1e6 for info in read_manifest(bundle).files.values()]
