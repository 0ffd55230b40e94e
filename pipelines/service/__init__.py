"""`towers serve`, `keys` and `query`; imports nothing of `towers`."""
