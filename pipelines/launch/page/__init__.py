"""The page of a comparison, and its templates."""
