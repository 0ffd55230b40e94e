"""The two towers: preparation, prior and export."""
