"""Builds reports: rankers on held-out users, baselines, figures with intervals, the printed table."""
