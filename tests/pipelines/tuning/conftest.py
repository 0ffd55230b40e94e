"""The tiny data set of the searches."""

from pathlib import Path

import numpy as np
import pytest

from pipelines.ingest import prepare
from towers.config.sections import DataConfig

USERS, ITEMS, GROUPS, TAKEN = 60, 30, 3, 8


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Users of group g take eight of the ten items of group g; split at random."""
    folder = tmp_path_factory.mktemp("tune")
    rng = np.random.default_rng(0)
    taken = [(u, i) for u in range(USERS) for i in rng.permutation(range(u % GROUPS, ITEMS, GROUPS))[:TAKEN]]
    (folder / "events.txt").write_text("\n".join(f"u{u} i{i}" for u, i in rng.permutation(taken)))
    config = DataConfig(split="random", valid_share=0.2, test_share=0.2)
    prepare.run(config, folder / "events.txt", folder / "dataset", format="pairs")
    return folder / "dataset"
