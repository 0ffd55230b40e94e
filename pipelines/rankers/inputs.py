"""Opens bundles that are evaluated on the data set they were trained on; both are compared with their manifests."""

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from pipelines.console import progress, say
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.digests import refuse_changes
from pipelines.service.verify import VERIFY, megabytes, verified
from serving.bundle.reader import Bundle
from serving.errors import BundleError


def open_inputs(bundles: Sequence[Path], data: Dataset) -> list[Bundle]:
    """Opens bundles, and reads every file of them and of their data set behind one bar.

    Raises:
        BundleError: a bundle is damaged or was trained on other data.
        DataError: a file of the data set has changed.
    """
    total = sum(map(megabytes, bundles)) + data.manifest.megabytes
    with progress(VERIFY, total=total, unit="MB") as advance:
        opened = [verified(bundle, advance) for bundle in bundles]
        for bundle in opened:
            _refuse_strangers(bundle, data)
        refuse_changes(data, advance)
    return opened


def _refuse_strangers(bundle: Bundle, data: Dataset) -> None:
    """Refuses a bundle that was trained on another data set, or has items that are not in it."""
    trained_on = bundle.manifest.lineage.get("dataset")
    if trained_on is None:
        say(f"warning: {bundle.path} does not name its data set; the test events may be among its training events")
    elif trained_on != data.manifest.fingerprint:
        # Even with the same items, a test event here may have been a training event there.
        raise BundleError(
            f"{bundle.path}: was trained on the data set {str(trained_on)[:12]}, but {data.path} is "
            f"{data.manifest.fingerprint[:12]}; its test events may be that model's training events"
        )
    ids = pl.Series(bundle.item_ids, dtype=pl.String)
    strange = ids.filter(~ids.is_in(data.items["item_id"].implode()))
    if len(strange):
        raise BundleError(
            f"{bundle.path}: {len(strange):,} of its {len(ids):,} items, {strange[0]!r} for one, are not in "
            f"{data.path}; a bundle is reported on the data set it was trained on"
        )
