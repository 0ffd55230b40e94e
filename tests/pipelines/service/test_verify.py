"""The files of a bundle are read behind a bar that counts them, and one that is not the manifest's is named."""

import re
import shutil
from pathlib import Path

import pytest

from pipelines.service.verify import verify
from serving.bundle.manifest import MANIFEST
from serving.errors import BundleError
from tests.support.paths import ROOT

BUNDLE = ROOT / "tests" / "golden" / "bundle"


@pytest.mark.parametrize("times", [5, 9])
def test_the_bar_ends_with_all_that_was_read(times: int, capsys: pytest.CaptureFixture[str]) -> None:
    verify(*[BUNDLE] * times)
    size = sum(path.stat().st_size for path in BUNDLE.rglob("*") if path.is_file() and path.name != MANIFEST)
    (line,) = capsys.readouterr().err.splitlines()
    assert times * size > 2e6 and re.fullmatch(rf"verify: {times * size / 1e6:,.0f} MB in [\d.]+ s, .* MB/s", line)


def test_an_altered_file_is_named(tmp_path: Path) -> None:
    bundle = shutil.copytree(BUNDLE, tmp_path / "bundle")
    content = bytearray((bundle / "item_vectors.npy").read_bytes())
    content[-1] ^= 1
    (bundle / "item_vectors.npy").write_bytes(content)
    with pytest.raises(BundleError, match=r"item_vectors\.npy: altered"):
        verify(BUNDLE, bundle)
