"""Training tasks: towers and a batch give a loss."""
