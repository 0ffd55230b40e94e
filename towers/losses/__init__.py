"""Training objectives: scoring, negatives, loss and reduction are separate steps, each a plain function."""
