"""Two-tower recall models: features, towers, losses, samplers, optimizers, training. TensorFlow and arrays, no files.

TensorFlow Recommenders runs on Keras 2, which TensorFlow 2.16+ uses only when this variable is set before its import.
"""

import os
import sys

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

if "keras" in sys.modules and "tf_keras" not in sys.modules and "tensorflow" in sys.modules:
    raise ImportError(
        "tensorflow was imported with Keras 3 before towers; import towers first, or set TF_USE_LEGACY_KERAS=1"
    )
