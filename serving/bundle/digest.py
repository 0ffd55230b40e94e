"""The digest of a whole bundle: that of its manifest, which holds the SHA-256 of every other file."""

import json
from pathlib import Path

from serving.bundle.manifest import DIGEST, MANIFEST, read_manifest


def bundle_digest(bundle: Path) -> str:
    """SHA-256 of the content of a bundle; equal bundles exported at different times have different ones.

    The other files are not read: `Bundle.open` compares them with the manifest.

    Raises:
        BundleError: the manifest is missing, damaged or altered.
    """
    read_manifest(bundle)
    return str(json.loads((bundle / MANIFEST).read_bytes())[DIGEST])
