"""The offline commands: `from pipelines import prepare, train, export, index, report`; each has a `run`.

Paths are `pathlib.Path`, not strings, except inputs that may be URLs.

`batch` is what a step trains on, `engines` what Ray and Spark call in their processes. Each is imported at first use,
so `towers serve` loads no model.
"""

import os
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipelines.bundles import build_index as index
    from pipelines.bundles import export as export
    from pipelines.bundles import fold as fold
    from pipelines.bundles import renew as renew
    from pipelines.bundles.bulk import embed as embed
    from pipelines.bundles.bulk import engines as engines
    from pipelines.bundles.bulk import recall as recall
    from pipelines.evaluation import report as report
    from pipelines.ingest import prepare as prepare
    from pipelines.ingest.synthetic import synth as synth
    from pipelines.launch import gate as gate
    from pipelines.launch import tracking as track
    from pipelines.training import batch as batch
    from pipelines.training import check as check
    from pipelines.training import train as train
    from pipelines.tuning import tune as tune

# Before any command imports TensorFlow: Keras 2 for TensorFlow Recommenders (see `towers`), and no start-up messages.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

_COMMANDS = {
    "synth": "ingest.synthetic.synth",
    "prepare": "ingest.prepare",
    "check": "training.check",
    "train": "training.train",
    "batch": "training.batch",
    "tune": "tuning.tune",
    "export": "bundles.export",
    "renew": "bundles.renew",
    "index": "bundles.build_index",
    "fold": "bundles.fold",
    "report": "evaluation.report",
    "embed": "bundles.bulk.embed",
    "recall": "bundles.bulk.recall",
    "engines": "bundles.bulk.engines",
    "gate": "launch.gate",
    "track": "launch.tracking",
}
__all__ = [
    "batch",
    "check",
    "embed",
    "engines",
    "export",
    "fold",
    "gate",
    "index",
    "prepare",
    "recall",
    "renew",
    "report",
    "synth",
    "track",
    "train",
    "tune",
]


def __getattr__(name: str) -> ModuleType:
    if name not in _COMMANDS:
        raise AttributeError(f"module 'pipelines' has no attribute {name!r}; there are {', '.join(_COMMANDS)}")
    return import_module(f"pipelines.{_COMMANDS[name]}")
