"""The data set on disk, as every later step reads it, and its columns as features of a model."""
