"""The data that training reads, and the batches made from it."""
