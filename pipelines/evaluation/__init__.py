"""How a report judges: rankers over held-out users in blocks, baselines, figures with intervals, the printed table."""
