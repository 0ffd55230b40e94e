"""Numerics independent of any model: seeded random numbers, gradients of table rows, unpublished TensorFlow names."""
