"""Opens a bundle that is to answer: compares its files with the manifest behind a bar, then tries real searches."""

from pathlib import Path

from pipelines.console import Advance, phase, progress
from serving.bundle.manifest import read_manifest
from serving.bundle.reader import Bundle
from serving.recall.recaller import Recaller
from serving.recall.self_test import open_probed

VERIFY, PROBE = "verify", "probe"


def verify(*bundles: Path) -> None:
    """Reads every file of some bundles.

    Raises:
        BundleError: a file is missing or not the manifest's.
    """
    with progress(VERIFY, total=sum(map(sum, map(_sizes, bundles))), unit="MB") as advance:
        for bundle in bundles:
            _read(bundle, advance)


def probed(bundle: Path) -> Recaller:
    """Opens a bundle that `verify` has read, with both towers, and asks it what a service would.

    Raises:
        BundleError: it cannot be opened, or fails a real search.
    """
    with phase(PROBE):
        return open_probed(bundle, verify=False)


def _read(bundle: Path, advance: Advance) -> None:
    sizes = iter(_sizes(bundle))
    # It rests after each file, in the manifest's order, then after steps that read nothing new.
    Bundle.open(bundle, rest=lambda: advance(next(sizes, 0)))


def _sizes(bundle: Path) -> list[float]:
    """Megabytes of each file."""
    return [info.bytes / 1e6 for info in read_manifest(bundle).files.values()]
