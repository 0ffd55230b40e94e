"""Other packages doing the same work, each in a file of its own, as their own documentation does it."""
