"""Two-tower recall models in TensorFlow: features, towers, losses, samplers, optimizers and training.

TensorFlow Recommenders runs on Keras 2, which TensorFlow 2.16+ uses only if TF_USE_LEGACY_KERAS is set before
its import.
"""

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from towers.config.recipe import Config as Config
    from towers.config.recipe import load_config as load_config
    from towers.config.recipe import parse_config as parse_config
    from towers.config.sections import DataConfig as DataConfig
    from towers.errors import ConfigError as ConfigError

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# Imported before, TensorFlow has chosen: this is what `from tensorflow.keras import ...` finds, whatever `tf.keras` is.
_keras = find_spec("tensorflow.keras") if hasattr(sys.modules.get("tensorflow"), "__path__") else None
if _keras is not None and "_tf_keras" in Path(_keras.origin or "").parts:  # where Keras 3 has it
    raise ImportError("TensorFlow was imported with Keras 3; import towers before it, or set TF_USE_LEGACY_KERAS=1")

_HOMES = {
    "Config": "config.recipe",
    "DataConfig": "config.sections",
    "load_config": "config.recipe",
    "parse_config": "config.recipe",
    "ConfigError": "errors",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'towers' has no attribute {name!r}; there are {', '.join(_HOMES)}")
    return getattr(import_module(f"towers.{_HOMES[name]}"), name)
