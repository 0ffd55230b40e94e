"""Where negatives come from, and how often each item is expected among them. The library computes Q itself."""
