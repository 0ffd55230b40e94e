"""`towers recall`, `towers embed`: all users or items at once, resumable, and in shards over many machines."""
