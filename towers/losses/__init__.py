"""Training objectives: scoring, negatives, loss and reduction are separate steps, plain functions each."""
