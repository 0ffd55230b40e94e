"""Metrics over held-out events, which choose the epoch, the prior and the norm exponent."""
