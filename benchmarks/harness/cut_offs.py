"""MovieLens-100k at five cut-offs in time: a data set of the events up to each, for benchmarks of how data changes."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.dataset.dataset import Dataset
from pipelines.ingest import prepare
from towers.config.recipe import parse_config

CUTS = (0.5, 0.6, 0.7, 0.8, 0.9)  # shares of the events, by time
SHARE = 0.1  # of all events, for the test after a cut-off and for the validation before it


def split_at(cut: float) -> dict[str, Any]:
    """The `data` section: of the events up to `cut` + SHARE the last are the test, those before it validation."""
    share = round(SHARE / (cut + SHARE), 6)
    return {"split": "global_time", "valid_share": share, "test_share": share}


def prepared(data: Path, cut: float, work: Path) -> Dataset:
    """The data set of one cut-off, prepared where it is not there yet."""
    out = work / "datasets" / f"{data.name}_cut_{cut:g}"
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=work) as folder:
            header, *lines = (data / "ml-100k.inter").read_text(encoding="utf-8").splitlines()
            times = np.array([int(line.split("\t")[3]) for line in lines])
            count = round((cut + SHARE) * len(times))
            # Events of one moment stay together.
            end = np.sort(times)[count] if count < len(times) else times.max() + 1
            kept = [line for line, time in zip(lines, times, strict=True) if time < end]
            (Path(folder) / "ml-100k.inter").write_text("\n".join([header, *kept]) + "\n", encoding="utf-8")
            for side in ("item", "user"):
                shutil.copyfile(data / f"ml-100k.{side}", Path(folder) / f"ml-100k.{side}")
            prepare.run(parse_config({"data": split_at(cut)}).data, Path(folder), out, format="recbole")
    return Dataset.open(out)
