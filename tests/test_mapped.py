"""Memory-mapped arrays give their pages back, and keep their values."""

import sys
from pathlib import Path

import numpy as np
import pytest

from pipelines.ingest.layout import map_array, map_events, new_array, write_events
from towers.catalogue import Catalogue
from towers.events import Events
from towers.examples import Examples
from towers.mapped import blocks, let_go
from towers.tables import Tables

ROWS = 4_000_000  # 32 MB


def resident(path: Path) -> int:
    """Bytes of a file that this process has mapped and in memory."""
    inside, found = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(maxsplit=1)[0]:
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            found += 1024 * int(line.split()[1])
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/smaps")
def test_what_was_read_and_written_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    written = new_array(path, (ROWS,), np.int64)
    written[:] = np.arange(ROWS)
    assert resident(path) >= 8 * ROWS
    let_go(written)
    assert resident(path) < 1 << 20
    read = map_array(path)
    assert int(read.sum()) == ROWS * (ROWS - 1) // 2
    let_go(read[5:], None, np.arange(3))  # a view is of the same file; what no file backs stays
    assert resident(path) < 1 << 20
    assert read[:3].tolist() == [0, 1, 2] and written[-1] == ROWS - 1


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/smaps")
def test_a_pass_in_blocks_holds_one_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("towers.mapped.BLOCK_ROWS", 300_000)
    path = tmp_path / "a.npy"
    np.save(path, np.arange(ROWS))
    read, total, most = map_array(path), 0, 0
    for block in blocks(read, None):
        total += int(read[block].sum())
        most = max(most, resident(path))
    assert total == ROWS * (ROWS - 1) // 2
    # The system may map a file by pages of 2 MB.
    assert 0 < most <= 8 * 300_000 + 2 * (2 << 20)
    assert list(blocks(None)) == []


def test_what_was_written_to_a_private_copy_stays(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(1000))
    private = np.load(tmp_path / "a.npy", mmap_mode="c")
    private[:] = 1
    let_go(private)
    assert private.tolist() == [1] * 1000


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/smaps")
def test_batches_hold_the_pages_of_a_part_and_go_through_all_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users, each = 40_000, 100
    item = np.arange(users * each, dtype=np.int32)
    user = np.repeat(np.arange(users, dtype=np.int32), each)
    write_events(tmp_path, Events(user, item, np.arange(users + 1) * each))
    monkeypatch.setattr("towers.examples.PART", len(item) // 20)
    catalogue = Catalogue(item, np.arange(len(item)), np.ones(len(item), np.int64))
    examples = Examples(map_events(tmp_path), Tables({}, {}), catalogue, 30_000, seed=3)
    for epoch in (0, 1):
        found, most = [], 0
        for step in range(examples.steps):
            found.append(examples.batch(epoch, step).item)
            most = max(most, resident(tmp_path / "item.npy"))
        together = np.concatenate(found)
        assert len(np.unique(together)) == together.size > len(item) - 30_000
        # A twentieth of 16 MB, runs rounded up to pieces of 64 KB at both ends; two parts where one ends in a batch.
        assert 0 < most < 2 * (4 * len(item) // 20 + 32 * 2 * (1 << 16))
    monkeypatch.setattr("towers.examples.PART", len(item))
    for step in range(examples.steps):
        examples.batch(0, step)
    assert resident(tmp_path / "item.npy") > 4 * len(item) * 0.9, "all of a set that is one part stays"
