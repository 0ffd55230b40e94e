"""The recipe: every setting, its checks and its errors; no TensorFlow."""
