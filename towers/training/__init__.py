"""The training loop: optimizers, checkpoints, progress."""
