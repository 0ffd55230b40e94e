"""Ten steps, or five, a save, a new process and five more: the same draws and the same weights, bit for bit."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

HERE = Path(__file__).parent
ENVIRONMENT = os.environ | {"PYTHONPATH": f"{HERE}:{HERE.parent}"}

RECIPES: dict[str, dict[str, Any]] = {
    "learned_unigram": {"sampler": {"name": "learned_unigram", "negatives": 16}},
    "learned in-batch and distinct noise": {
        "sampler": {
            "name": "mixed",
            "parts": [
                {"name": "learned_unigram", "negatives": 8, "distinct": True},
                {"name": "in_batch", "frequencies": "learned"},
                {"name": "log_uniform", "negatives": 8},
            ],
        },
        "loss": {"name": "nce", "log_z": "learned", "bottleneck": 1e-4},
        "model": {"combine": "concat", "cross_layers": 1, "query_dropout": 0.2, "candidate_dropout": 0.1},
    },
}


def run(directory: Path, steps: int, sections: dict[str, Any], out: Path) -> dict[str, np.ndarray]:
    words = [sys.executable, str(HERE / "resumed_run.py"), str(directory), str(steps), str(out), json.dumps(sections)]
    done = subprocess.run(words, cwd=HERE.parent, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr[-2000:]
    with np.load(out) as kept:
        return {name: kept[name] for name in kept.files}


@pytest.mark.slow
@pytest.mark.parametrize("sections", RECIPES.values(), ids=RECIPES.keys())
def test_a_new_process_goes_on_bit_for_bit(sections: dict[str, Any], tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", 10, sections, tmp_path / "whole.npz")
    half = run(tmp_path / "cut", 5, sections, tmp_path / "half.npz")
    resumed = run(tmp_path / "cut", 10, sections, tmp_path / "resumed.npz")
    assert (int(half["steps"]), int(whole["steps"]), int(resumed["steps"])) == (5, 10, 10)
    assert whole.keys() == resumed.keys()
    for name, value in whole.items():
        np.testing.assert_array_equal(resumed[name], value, err_msg=name)
    # What is compared does change from the fifth step to the tenth.
    assert not np.array_equal(half["item"], whole["item"])
    assert any(not np.array_equal(half[name], value) for name, value in whole.items() if name.startswith("variable"))
