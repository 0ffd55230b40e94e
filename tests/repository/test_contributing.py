"""CONTRIBUTING's way to add a loss: its class, its function and two lines are enough to train it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages.programs import program
from tests.support.paths import ROOT
from tests.support.worlds.training import recipe
from towers.errors import ConfigError

PROGRAM = """
import sys
from pathlib import Path
from tests.support.worlds.training import trainer
summary = trainer(Path(sys.argv[1]), loss={"name": "hinge", "margin": 0.3}, train={"epochs": 12}).fit()
print(summary.best_metric)
"""


def added(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{path}: {old}"
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.long
def test_a_loss_is_one_class_one_function_and_a_line_each(tmp_path: Path) -> None:
    section, function = re.split(r"\n+# towers/losses/pairwise\.py.*\n", program("CONTRIBUTING.md", "class Hinge"))
    shutil.copytree(ROOT / "towers", tmp_path / "towers", ignore=shutil.ignore_patterns("__pycache__"))
    config, losses = tmp_path / "towers" / "config", tmp_path / "towers" / "losses"
    for path, code in ((config / "margin_losses.py", section), (losses / "pairwise.py", function)):
        path.write_text(f"{path.read_text(encoding='utf-8')}\n\n{code}\n", encoding="utf-8")
    added(
        config / "losses.py",
        "from towers.config.section import",
        "from towers.config.margin_losses import Hinge\nfrom towers.config.section import",
    )
    added(config / "losses.py", "    | Gbce,\n", "    | Gbce\n    | Hinge,\n")
    added(losses / "registry.py", "graded_hinge, pair, triplet", "graded_hinge, hinge, pair, triplet")
    added(losses / "registry.py", "    bsl,\n)", "    bsl,\n    hinge,\n)")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "run")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (tmp_path, ROOT)))},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout.splitlines()[-1]) > 0.6  # chance is 0.05
    with pytest.raises(ConfigError, match="hinge"):
        recipe(loss={"name": "hinge"})
