"""`towers train` and `towers check`: a run from a data set and a recipe."""
