"""Removing a user from everything that was written: state, bundles, data sets."""
