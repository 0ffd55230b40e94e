"""Converts tables of text to typed columns."""
