"""The page of a service: ask it, see why, compare two bundles."""
