"""Two-tower recall models in TensorFlow: features, towers, losses, samplers, optimizers and training.

TensorFlow Recommenders runs on Keras 2, which TensorFlow 2.16+ uses only if TF_USE_LEGACY_KERAS is set before
`tf.keras` is first used.
"""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from towers.config.recipe import Config as Config
    from towers.config.recipe import load_config as load_config
    from towers.config.recipe import parse_config as parse_config
    from towers.config.sections import DataConfig as DataConfig
    from towers.errors import ConfigError as ConfigError

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# Imported before, TensorFlow still chooses when `tf.keras` is first used; its own import has loaded Keras 3 by then.
_tensorflow = sys.modules.get("tensorflow")
if "keras" in sys.modules and _tensorflow is not None and hasattr(_tensorflow.keras, "version"):  # of Keras 3 alone
    raise ImportError("tf.keras is Keras 3 here: import towers before anything uses it, or set TF_USE_LEGACY_KERAS=1")

_HOMES = {
    "Config": "config.recipe",
    "DataConfig": "config.recipe",
    "load_config": "config.recipe",
    "parse_config": "config.recipe",
    "ConfigError": "errors",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'towers' has no attribute {name!r}; there are {', '.join(_HOMES)}")
    return getattr(import_module(f"towers.{_HOMES[name]}"), name)
