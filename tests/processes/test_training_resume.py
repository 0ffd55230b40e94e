"""Ten steps, or five, a save, a new process and five more: the same draws and the same weights, bit for bit."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.paths import PROCESSES, ROOT

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}

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


def run(folder: Path, *runs: tuple[str, str, int, str]) -> None:
    """Trains in one new process: the name of a recipe, the folder it goes on in, the steps in all, what to write."""
    given = [
        [str(folder / where / name), steps, str(folder / name / out), RECIPES[name]] for name, where, steps, out in runs
    ]
    words = [sys.executable, str(PROCESSES / "resumed_run.py"), json.dumps(given)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of each recipe, one folder: what a whole run, half of one and its other half in a new process came to."""
    folder = tmp_path_factory.mktemp("resume")
    for name in RECIPES:
        (folder / name).mkdir()
    whole = [(name, "whole", 10, "whole.npz") for name in RECIPES]
    run(folder, *whole, *((name, "cut", 5, "half.npz") for name in RECIPES))
    run(folder, *((name, "cut", 10, "resumed.npz") for name in RECIPES))
    return folder


@pytest.mark.long
@pytest.mark.parametrize("name", RECIPES)
def test_a_new_process_goes_on_bit_for_bit(states: Path, name: str) -> None:
    whole, half, resumed = (dict(np.load(states / name / f"{each}.npz")) for each in ("whole", "half", "resumed"))
    assert (int(half["steps"]), int(whole["steps"]), int(resumed["steps"])) == (5, 10, 10)
    assert whole.keys() == resumed.keys()
    for name, value in whole.items():
        np.testing.assert_array_equal(resumed[name], value, err_msg=name)
    # What is compared does change from the fifth step to the tenth.
    assert not np.array_equal(half["item"], whole["item"])
    assert any(not np.array_equal(half[name], value) for name, value in whole.items() if name.startswith("variable"))
