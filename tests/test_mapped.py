"""Memory-mapped arrays give their pages back, and keep their values."""

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest

from pipelines.heldout import user_blocks
from pipelines.ingest.layout import history_ends, map_array, map_events, new_array, write_events
from towers.catalogue import Catalogue
from towers.events import Events, Past
from towers.examples import Examples
from towers.mapped import blocks, let_go
from towers.sequences import SequenceExamples
from towers.tables import SequenceTable, Tables

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
    users, each = 20_000, 100
    item = np.arange(users * each, dtype=np.int32)
    user = np.repeat(np.arange(users, dtype=np.int32), each)
    write_events(tmp_path, Events(user, item, np.arange(users + 1) * each))
    monkeypatch.setattr("towers.examples.PART", len(item) // 20)
    write_events(tmp_path / "context", Events(user, item, np.arange(users + 1) * each))
    column = map_array(tmp_path / "context" / "item.npy")
    catalogue = Catalogue(item, np.arange(len(item)), np.ones(len(item), np.int64))
    examples = Examples(map_events(tmp_path), Tables({}, {}, {"device": column}), catalogue, 20_000, seed=3)
    found, most = [], 0
    for step in range(examples.steps):
        found.append(examples.batch(1, step).item)
        if step % 5 == 4:
            most = max(most, *(resident(folder / "item.npy") for folder in (tmp_path, tmp_path / "context")))
    together = np.concatenate(found)
    assert len(np.unique(together)) == together.size > len(item) - 20_000
    # A twentieth of 8 MB in 32 runs, each of them one or two pieces of 64 KB; two parts where one ends in a batch.
    assert 0 < most < 0.8 * 4 * len(item)
    monkeypatch.setattr("towers.examples.PART", len(item))
    for step in range(examples.steps):
        examples.batch(0, step)
    assert resident(tmp_path / "item.npy") > 4 * len(item) * 0.9, "all of a set that is one part stays"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/smaps")
def test_passes_over_events_and_over_users_give_back_what_they_read(tmp_path: Path) -> None:
    users, each = 40_000, 50
    item = np.arange(users * each, dtype=np.int32)
    user, offsets = np.repeat(np.arange(users, dtype=np.int32), each), np.arange(users + 1) * each
    write_events(tmp_path, Events(user, item, offsets))
    write_events(tmp_path / "taken", Events(user, item, offsets))
    files = [tmp_path / "item.npy", tmp_path / "taken" / "item.npy"]
    events, taken = map_events(tmp_path), map_events(tmp_path / "taken")
    both = dataclasses.replace(events, taken_past=Past(taken.item, taken.offsets, None, None))

    def read(rows: slice) -> list[int]:
        assert (both.item[rows] == both.past.item[rows]).all()
        return [resident(file) for file in files]

    assert min(map(min, zip(*map(read, both.blocks()), strict=True))) > 0
    assert [resident(file) for file in files] == [0, 0]
    for low, high in user_blocks([both]):
        assert min(read(slice(int(offsets[low]), int(offsets[high])))) > 0
    assert [resident(file) for file in files] == [0, 0]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/smaps")
def test_batches_of_whole_histories_hold_the_pages_of_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    users, each = 20_000, 100
    item = np.arange(users * each, dtype=np.int32)
    user, offsets = np.repeat(np.arange(users, dtype=np.int32), each), np.arange(users + 1) * each
    time = np.tile(np.arange(each), users)
    write_events(tmp_path, Events(user, item, offsets, time, history_ends(offsets, time)))
    monkeypatch.setattr("towers.sequences.PART", len(item) // 20)
    catalogue = Catalogue(item, np.arange(len(item)), np.ones(len(item), np.int64))
    tables = Tables({}, {}, sequences={"past": SequenceTable(np.ones(len(item), np.int32), 50)})
    examples = SequenceExamples(map_events(tmp_path), tables, catalogue, 50_000, seed=3)
    held = []
    for step in range(examples.steps):
        examples.batch(0, step)
        if step % 4 == 3:
            held.append(resident(tmp_path / "item.npy"))
    assert 0 < max(held) < 0.8 * 4 * len(item)
