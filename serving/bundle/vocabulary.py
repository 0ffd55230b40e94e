"""The values of a feature that a tower learnt, from the files that lie beside its SavedModel."""

from contextlib import suppress
from itertools import islice

from serving.bundle.arrays import QUERY_TOWER
from serving.bundle.reader import Bundle


def known_values(bundle: Bundle, feature: str, most: int | None = None, tower: str = QUERY_TOWER) -> list[str]:
    """The first values of a feature of a tower, most frequent first; empty if it has no vocabulary.

    Args:
        bundle: an opened bundle.
        feature: the feature's name.
        most: the most values; no more are read. None for all.
        tower: the folder of the tower in the bundle.
    """
    # With task = "similarity" the item tower reads the queries.
    for side in ("query", "candidate"):
        name = f"{tower}/assets/{side}.{feature}.txt"
        if name in bundle.manifest.files:
            # An open bundle may have been deleted since.
            with suppress(OSError), (bundle.path / name).open(encoding="utf-8", newline="\n") as lines:
                return [line.removesuffix("\n") for line in islice(lines, most)]
    return []
