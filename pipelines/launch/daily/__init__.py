"""`towers daily`: a day of the loop from new events to the bundle that answers."""
