"""The offline commands, one file each: synth, prepare, train, export, index, report, recall, serve, demo."""

import os

# Before any command imports TensorFlow: Keras 2 for TensorFlow Recommenders (see `towers`), and no start-up chatter.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
